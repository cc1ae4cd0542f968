"""An interrupt never tears what is half done, comes as soon as it may, and reaches the handler that the user set."""

import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from firefly.surgery.guard import State, catch, interruptible, lasting, see_through, unbroken
from firefly.surgery.swap import exchanged, swapped, switched

sys.path.append(str(Path(__file__).parents[2] / "benchmarks"))

from attacks.interrupts import Aim, interrupt


def press() -> None:
    signal.raise_signal(signal.SIGINT)


@pytest.fixture(autouse=True)
def calm() -> Iterator[None]:
    """Whatever happens, the handler is the user's again."""
    yield
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    assert (State.depth, State.held, State.lasting, State.promised) == (0, 0, 0, 0)


@contextmanager
def handler(function: Any) -> Iterator[None]:
    previous = signal.signal(signal.SIGINT, function)
    try:
        yield
    finally:
        assert signal.signal(signal.SIGINT, previous) is function


def test_an_interrupt_waits_for_the_end_of_the_outermost_block() -> None:
    done = []
    with pytest.raises(KeyboardInterrupt), unbroken():
        press()
        with unbroken():
            press()
            done.append("inner")
        done.append("outer")
    assert done == ["inner", "outer"]


def test_in_an_interruptible_block_it_comes_at_once() -> None:
    done = []
    with pytest.raises(KeyboardInterrupt), interruptible():
        done.append("before")
        press()
        done.append("after")
    assert done == ["before"]


def test_it_waits_while_a_context_manager_is_entered_or_left() -> None:
    done = []

    @contextmanager
    def pressed() -> Iterator[None]:
        press()
        done.append("entered")
        yield
        press()
        done.append("left")

    with pytest.raises(KeyboardInterrupt), interruptible(), pressed():
        done.append("inside")
    assert done == ["entered", "inside", "left"]
    with pytest.raises(KeyboardInterrupt), interruptible(), ExitStack() as stack:
        stack.callback(done.append, "called back")
        stack.callback(press)
    assert done[-1] == "called back"


def test_behind_the_point_of_no_return_it_waits_for_the_end_of_the_lasting_block() -> None:
    done = []
    with pytest.raises(KeyboardInterrupt), lasting():
        with interruptible(), unbroken():
            see_through()
        press()
        done.append("told")
    with pytest.raises(KeyboardInterrupt), lasting():
        press()
        done.append("never")
    with pytest.raises(KeyboardInterrupt), interruptible():
        with lasting():
            see_through()
        press()  # the block that lasted is over
        done.append("never")
    with pytest.raises(KeyboardInterrupt), interruptible():
        see_through()  # no lasting block around
        press()
        done.append("never")
    assert done == ["told"]


def test_an_error_of_the_block_is_told_along_with_the_interrupt() -> None:
    with pytest.raises(KeyboardInterrupt) as caught, unbroken():
        press()
        raise ValueError("first")
    assert isinstance(caught.value.__context__, ValueError)


def test_the_users_own_handler_is_called_once_and_may_return() -> None:
    called = []
    with handler(lambda number, frame: called.append(number)):
        with unbroken():
            press()
            press()
            assert called == []
        assert called == [signal.SIGINT]
        with interruptible():
            press()
            press()
        assert called == [signal.SIGINT] * 3


def test_a_handler_set_inside_the_block_stays() -> None:
    def own(number: int, frame: Any) -> None: ...

    with unbroken():
        signal.signal(signal.SIGINT, own)
    assert signal.signal(signal.SIGINT, signal.default_int_handler) is own


@pytest.mark.parametrize("setting", [signal.SIG_IGN, signal.SIG_DFL])
def test_where_python_handles_no_interrupts_nothing_is_changed(setting: Any) -> None:
    with handler(setting), unbroken():
        assert signal.getsignal(signal.SIGINT) is setting


def test_in_another_thread_it_does_nothing() -> None:
    seen = []

    def work() -> None:
        with unbroken():
            seen.append(signal.getsignal(signal.SIGINT))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert seen == [signal.default_int_handler]
    with unbroken():
        assert signal.getsignal(signal.SIGINT) is catch


# ---- aimed -----------------------------------------------------------------------------------------------------------


def use_generators(model: nn.Module, tensors: dict[str, Any], end: Callable[[], None]) -> None:
    """Nested swaps inside generators and stacks, as a growth has them."""

    @contextmanager
    def attached() -> Iterator[None]:
        with swapped(model, tensors, [("0", "out_features", 9)]), switched(model.modules(), False):
            yield

    with ExitStack() as stack:
        stack.enter_context(attached())
        with attached():
            end()


def stop() -> None:
    raise KeyboardInterrupt


@pytest.mark.parametrize("end", [lambda: None, stop], ids=["undisturbed", "already interrupted"])
def test_an_interrupt_at_any_line_leaves_the_model_as_it_was(end: Callable[[], None]) -> None:
    model = nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3))
    own = {**model.state_dict(keep_vars=True)}
    others = {name: torch.zeros_like(tensor) for name, tensor in own.items()}
    files = ("/firefly/surgery/", "/contextlib.py")
    count = Aim(files=files)
    interrupt(lambda: use_generators(model, others, end), count)
    assert count.seen > 100
    for at in range(1, count.seen + 1):
        outcome = interrupt(lambda: use_generators(model, others, end), Aim(at, files))
        assert outcome in ("interrupted", "done")
        now = model.state_dict(keep_vars=True)
        assert all(now[name] is tensor for name, tensor in own.items()), at
        assert model[0].out_features == 3 and all(module.training for module in model.modules()), at
        assert signal.getsignal(signal.SIGINT) is signal.default_int_handler, at


def test_a_place_that_refuses_its_value_undoes_the_others() -> None:
    class Stubborn(nn.Module):
        def __setattr__(self, name: str, value: Any) -> None:
            if value == 7:
                raise ValueError("not seven")
            super().__setattr__(name, value)

    model = Stubborn()
    model.first = model.second = 1
    with pytest.raises(ValueError, match="seven"), exchanged([(model, "first", 2), (model, "second", 7)]):
        pass
    assert (model.first, model.second) == (1, 1)
