"""The parts of the training loop by themselves: schedules, early stop, the captured step."""

import math

import pytest
import torch

from firefly.errors import FireflyError
from firefly.training import Epoch, History, Step
from firefly.training.history import should_stop
from firefly.training.recipe import list_factors


def test_schedules() -> None:
    assert list_factors("cosine", 0, 2, 2) == pytest.approx([1, 0.5 + math.sqrt(0.125)])
    assert list_factors("cosine", 1, 2, 2) == pytest.approx([0.5, 0.5 - math.sqrt(0.125)])
    assert [list_factors("step", epoch, 4, 1)[0] for epoch in range(4)] == [1, 1, 0.1, 0.01]
    assert list_factors(lambda time: 2 * time, 3, 10, 4) == [6, 6.5, 7, 7.5]
    assert list_factors("constant", 3, 10, 2) == [1, 1]


def test_the_rate_is_held_before_the_schedule_begins() -> None:
    assert [list_factors("cosine", epoch, 6, 1, hold=2)[0] for epoch in (0, 1, 2)] == [1, 1, 1]
    assert list_factors("cosine", 4, 6, 2, hold=2) == list_factors("cosine", 2, 4, 2)


def test_a_rate_rises_to_its_schedule() -> None:
    rising = [factor for epoch in range(3) for factor in list_factors("constant", epoch, 3, 4, warmup=1.5)]
    assert rising == pytest.approx([*(step / 6 for step in range(1, 6)), *[1.0] * 7])
    plain, warm = (list_factors("cosine", 1, 3, 4, warmup=warmup) for warmup in (0.0, 0.5))
    assert warm == plain
    assert list_factors(lambda time: 2.0, 0, 3, 4, warmup=1) == [0.5, 1.0, 1.5, 2.0]


def test_stops_early() -> None:
    def after(losses: list[float]) -> History:
        return History(tuple(Epoch(number + 1, loss, 0.1, 1.0, 10) for number, loss in enumerate(losses)))

    assert not should_stop(2, after([3, 2, 2.5])) and should_stop(2, after([3, 2, 2.5, 2]))
    assert should_stop(lambda history: history[-1].loss < 1, after([3, 0.5])) and not should_stop(None, after([1, 1]))


def test_step_without_a_gpu_is_the_closure() -> None:
    total = torch.zeros(())
    step = Step(lambda: total.add_(1), [total])
    assert step().item() == 1 and step() is total and not step.refresh()
    with pytest.raises(FireflyError, match="capture=True"):
        Step(lambda: total, [total], capture=True)
