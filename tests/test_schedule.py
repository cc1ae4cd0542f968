"""When to grow: what a schedule refuses, shows and remembers."""

import json
import math

import numpy as np
import pytest
import torch

from firefly import Every, FireflyError, Milestones, Plateau
from firefly.schedule import Schedule, check_schedule

SCHEDULES = [Every(3), Every(2, times=4), Milestones(5, 1, 9), Plateau(), Plateau(2, 0.25, "max")]
LOSSES = [1.0, 0.9, 0.95, 0.94, 0.3, 0.31, 0.32, 0.29, 0.3, 0.33, 0.2, 0.2, 0.2, 0.2]


@pytest.mark.parametrize("schedule", SCHEDULES, ids=repr)
def test_a_schedule_shows_the_call_that_makes_it(schedule):
    again = eval(repr(schedule))
    assert repr(again) == repr(schedule) and vars(again) == vars(schedule)


@pytest.mark.parametrize("schedule", SCHEDULES, ids=repr)
@pytest.mark.parametrize("cut", range(0, len(LOSSES), 3))
def test_a_state_goes_on_where_it_was(schedule, cut):
    whole, first, second = (eval(repr(schedule)) for _ in range(3))
    expected = [whole.due(epoch, loss) for epoch, loss in enumerate(LOSSES)]
    found = [first.due(epoch, loss) for epoch, loss in enumerate(LOSSES[:cut])]
    second.load_state_dict(json.loads(json.dumps(first.state_dict())))
    assert second.state_dict() == first.state_dict()
    assert found + [second.due(cut + k, loss) for k, loss in enumerate(LOSSES[cut:])] == expected


WRONG = [0, -1, True, 2.0, math.nan, "3", None, [1]]


@pytest.mark.parametrize("value", WRONG, ids=repr)
def test_numbers_of_epochs_that_are_none_are_refused(value):
    for make in (Every, Plateau, *([] if value is None else [lambda value: Every(2, times=value)])):
        with pytest.raises(FireflyError, match=r"(Every|Plateau)\("):
            make(value)


@pytest.mark.parametrize("epochs", [(), (-1,), (True,), (2.5,), ("3",), (None,), ([1, -2],), ([],)], ids=repr)
def test_milestones_that_are_none_are_refused(epochs):
    with pytest.raises(FireflyError, match="Milestones"):
        Milestones(*epochs)


@pytest.mark.parametrize("threshold", [-0.1, math.nan, math.inf, True, None, "1"], ids=repr)
def test_thresholds_that_are_none_are_refused(threshold):
    with pytest.raises(FireflyError, match="threshold"):
        Plateau(threshold=threshold)


@pytest.mark.parametrize("mode", ["mean", None, 1, ["min"]], ids=repr)
def test_modes_that_are_none_are_refused(mode):
    with pytest.raises(FireflyError, match="mode"):
        Plateau(mode=mode)


def test_whole_numbers_of_numpy_are_numbers():
    assert Every(np.int64(3)).due(np.int64(2)) and Milestones(np.arange(2, 4)).due(3)


@pytest.mark.parametrize("epoch", [-1, 1.5, None, True, "1"], ids=repr)
def test_epochs_that_are_none_are_refused(epoch):
    for schedule in (Every(1), Milestones(1), Plateau()):
        with pytest.raises(FireflyError, match="count from 0"):
            schedule.due(epoch, 1.0)


def test_a_plateau_reads_a_tensor_and_refuses_what_is_no_number():
    schedule = Plateau()
    assert schedule.due(0, torch.tensor(0.5)) is False and schedule.best == 0.5
    for metric in ("low", torch.zeros(2), [1.0]):
        with pytest.raises(FireflyError, match="one number"):
            schedule.due(1, metric)
    assert schedule.state_dict() == {"best": 0.5, "waited": 0}


@pytest.mark.parametrize("mode", ["min", "max"])
@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_a_metric_that_is_not_finite_never_counts_as_better(mode, bad):
    schedule = Plateau(patience=2, mode=mode)
    assert [schedule.due(epoch, bad) for epoch in range(4)] == [False, True, False, True]
    assert schedule.due(4, 1.0) is False and schedule.best is not None and math.isfinite(schedule.best)


STATES = [
    None,
    [],
    ["best", "waited"],
    {},
    {"best": 1.0},
    {"best": 1.0, "waited": 0, "more": 1},
    {"best": math.nan, "waited": 0},
]
STATES += [{"best": True, "waited": 0}, {"best": "1", "waited": 0}, {"best": 1.0, "waited": -1}, {1: 2, "best": 0}]
STATES += [{"best": 1.0, "waited": 0.5}, {"best": 1.0, "waited": True}, {"best": [1.0], "waited": None}]


@pytest.mark.parametrize("state", STATES, ids=repr)
def test_a_wrong_state_is_refused_and_changes_nothing(state):
    schedule = Plateau()
    schedule.due(0, 0.5)
    schedule.due(1, 0.7)
    with pytest.raises(FireflyError, match="Plateau"):
        schedule.load_state_dict(state)
    assert schedule.state_dict() == {"best": 0.5, "waited": 1}


@pytest.mark.parametrize("schedule", SCHEDULES[:3], ids=repr)
@pytest.mark.parametrize("state", [None, [], {"best": 1.0, "waited": 0}, 5], ids=repr)
def test_a_schedule_without_memory_takes_no_state(schedule, state):
    with pytest.raises(FireflyError, match="goes on from no state"):
        schedule.load_state_dict(state)


@pytest.mark.parametrize(
    "value", [5, None, "every 10", Every, lambda epoch: True, {"epochs": 3}], ids=[str(k) for k in range(6)]
)
def test_what_is_no_schedule_is_refused(value):
    with pytest.raises(FireflyError, match=r"schedule=.*give Every\(10\)"):
        check_schedule(value)


def test_a_schedule_of_ones_own_is_one():
    class Odd(Schedule):
        def due(self, epoch, metric=None):
            return epoch % 2 == 1

    mine = Odd()
    assert check_schedule(mine) is mine and mine.state_dict() == {}
    assert all(check_schedule(schedule) is schedule for schedule in SCHEDULES)


@pytest.mark.parametrize("mode", ["min", "max"])
def test_a_change_below_the_threshold_is_no_improvement(mode):
    sign = 1 if mode == "min" else -1
    creeping = [sign * (1 - 0.01 * epoch) for epoch in range(4)]
    slow, fast = (Plateau(patience=3, threshold=threshold, mode=mode) for threshold in (0.5, 0.001))
    assert [slow.due(epoch, value) for epoch, value in enumerate(creeping)] == [False, False, False, True]
    assert not any(fast.due(epoch, value) for epoch, value in enumerate(creeping))
