"""The step as a GPU captures it, played on a CPU: rates and weights from tables, a warm-up that leaves no trace."""

from typing import Any

import pytest
import torch
from test_fit import make_data, make_grower, make_net, train
from test_options import make_dropping, set_rate

from firefly.training import History, Step, engine
from firefly.training.capture import keep, put_back


class Rehearsed(Step[None]):
    """A step that warms up as before a capture, in which Python runs once, and then calls the closure as it was."""

    made: list["Rehearsed"]

    def __init__(self, fn: Any, tensors: Any, *, capture: bool, warmup: int) -> None:
        super().__init__(fn, tensors, capture=False)
        self.rehearsals, self.ready = warmup, False
        assert capture
        self.made.append(self)

    def __call__(self) -> None:
        if not self.ready:
            kept, random = keep(self.list_tensors()), torch.get_rng_state()
            for _ in range(self.rehearsals):
                self.fn()
            put_back(kept, self.list_tensors())
            torch.set_rng_state(random)
            self.ready = True
        self.fn()


@pytest.fixture
def rehearsed(monkeypatch: pytest.MonkeyPatch) -> list[Rehearsed]:
    """From here on `fit` takes the way of a GPU."""
    monkeypatch.setattr(Rehearsed, "made", [], raising=False)
    monkeypatch.setattr(engine, "Step", Rehearsed)
    monkeypatch.setattr(engine, "choose_graph", lambda *_: True)
    return Rehearsed.made


def go(**how: Any) -> tuple[Any, History]:
    return train(make_dropping(), epochs=4, cutout=3, ema=0.9, each_epoch=set_rate, test=make_data(60), **how)


@pytest.mark.parametrize("precision", ["float32", "bf16"])
def test_tables_and_warm_up_change_nothing(rehearsed: list[Rehearsed], precision: str) -> None:
    model, history = go(precision=precision)
    assert len(rehearsed) == 1 and rehearsed[0].ready
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(engine, "Step", Step)
        patch.setattr(engine, "choose_graph", lambda *_: False)
        plain, expected = go(precision=precision)
    assert [row.loss for row in history.epochs] == pytest.approx([row.loss for row in expected.epochs], rel=1e-4)
    assert history.average is not None and expected.average is not None
    for one, other in ((model, plain), (history.average, expected.average)):
        for name, tensor in one.state_dict().items():
            torch.testing.assert_close(tensor, other.state_dict()[name], rtol=1e-3, atol=1e-4)


def test_the_step_is_made_anew_after_a_growth_and_only_then(rehearsed: list[Rehearsed]) -> None:
    model = make_net(dropout=0.0)
    _, history = train(model, epochs=5, grower=make_grower(model), ema=0.9)
    assert [row.grown for row in history.epochs] == [False, True, False, True, False]
    assert len(rehearsed) == 3 and all(step.ready for step in rehearsed)
