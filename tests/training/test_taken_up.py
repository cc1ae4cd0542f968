"""A run is taken up by the call that began it and by no other, and an interrupt leaves nothing in its folder."""

import itertools
import signal
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from test_fit import make_data, make_grower, make_net, timeless, train

from firefly import checkpoint
from firefly.descent import Firefly
from firefly.errors import FireflyError
from firefly.schedule import Plateau
from firefly.stages.budget import Neurons
from firefly.training import History, fit, lock
from firefly.training.lock import hold


def change_labels(data: tuple[torch.Tensor, torch.Tensor]) -> tuple[torch.Tensor, torch.Tensor]:
    return data[0], data[1].flip(0)


@pytest.mark.parametrize("name", ["data", "test", "grow_on", "grower", "grower budget", "grower schedule"])
def test_other_data_or_another_grower_of_the_same_size_are_not_taken_up(tmp_path: Path, name: str) -> None:
    """Of another fold of the same size, say, the finished run of the first one would be the answer."""
    data, test = make_data(), make_data(30)
    how: dict[str, Any] = {"epochs": 3, "batch": 32, "device": "cpu", "progress": False, "checkpoint": tmp_path}

    def go_on(data: Any, test: Any = test, grow_on: Any = data, **changed: Any) -> History:
        model = make_net()
        grower = Firefly(model, torch.zeros(2, 3, 8, 8), **{"steps": 2, "budget": Neurons(2), **changed})
        return fit(model, data, test=test, grow_on=grow_on, grower=grower, **how)

    done = go_on(data)
    assert timeless(go_on(data)) == timeless(done)
    others: dict[str, Any] = {
        "data": lambda: go_on(change_labels(data)),
        "test": lambda: go_on(data, test=change_labels(test)),
        "grow_on": lambda: go_on(data, grow_on=change_labels(data)),
        "grower": lambda: fit(make_net(), data, test=test, grow_on=data, **how),
        "grower budget": lambda: go_on(data, budget=Neurons(3)),
        "grower schedule": lambda: go_on(data, schedule=Plateau()),
    }
    with pytest.raises(FireflyError, match=f"was made with {name}="):
        others[name]()


def test_a_run_and_a_checkpoint_of_its_own_do_not_share_a_folder(tmp_path: Path) -> None:
    """For `load` would have to guess which of the two is meant."""
    train(epochs=1, checkpoint=tmp_path / "run")
    with pytest.raises(FireflyError, match="the folder of a run"):
        checkpoint.save(tmp_path / "run", make_net())
    checkpoint.save(tmp_path / "saved", make_net())
    with pytest.raises(FireflyError, match="holds a checkpoint"):
        train(epochs=1, checkpoint=tmp_path / "saved")
    assert not (tmp_path / "saved" / "fit.lock").exists()


def interrupt_at(number: int, files: set[str]) -> Any:
    """A trace that sends Ctrl-C before the line of this number that runs in one of the files."""
    lines = itertools.count(1)

    def trace(frame: Any, event: str, _: Any) -> Any:
        if frame.f_code.co_filename not in files:
            return None
        if event == "line" and next(lines) == number:
            signal.raise_signal(signal.SIGINT)
        return trace

    return trace


def test_an_interrupt_at_any_line_of_the_lock_leaves_nothing_locked(tmp_path: Path) -> None:
    before, stopped = sys.gettrace(), []
    for number in itertools.count(1):
        try:
            sys.settrace(interrupt_at(number, {lock.__file__}))
            with hold(tmp_path / "run"):
                pass
            break
        except KeyboardInterrupt as interrupt:
            stopped.append(interrupt)  # as a notebook keeps it, with the frames and what they hold
        finally:
            sys.settrace(before)
        with hold(tmp_path / "run"):
            pass
    assert len(stopped) > 30


def test_an_interrupt_in_a_save_leaves_no_checkpoint_behind(tmp_path: Path) -> None:
    """The one before a growth is no more needed after it; the epoch is saved once more, as it is undone."""
    before = sys.gettrace()
    for number in itertools.count(1):
        folder, model = tmp_path / str(number), make_net()
        try:
            sys.settrace(interrupt_at(number, {lock.__file__}))
            train(model, epochs=2, grower=make_grower(model), checkpoint=folder)
            break
        except KeyboardInterrupt:
            pass
        finally:
            sys.settrace(before)
        if (folder / "fit.json").exists():
            assert len(list(folder.glob("epoch-*"))) == 1, number
