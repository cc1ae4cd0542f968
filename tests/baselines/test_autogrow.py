"""AutoGrow: the policy on made-up accuracies, the loop, and a run in `fit` that is stopped and taken up."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from firefly.baselines import AutoGrow, autogrow
from firefly.baselines.autogrow import decide
from firefly.errors import FireflyError
from firefly.training import fit

RISING = [0.1 * epoch for epoch in range(9)]


def test_stages_grow_in_turn_every_interval() -> None:
    plans = [decide(RISING[:epochs], stages=3, interval=2, patience=100) for epochs in range(9)]
    assert [plan.grown for plan in plans] == [(), (), (0,), (0,), (0, 1), (0, 1), (0, 1, 2), (0, 1, 2), (0, 1, 2, 0)]
    assert [plan.due for plan in plans] == [False, False, True, False, True, False, True, False, True]
    assert not any(plan.done or plan.closed for plan in plans)
    assert plans[-1].depths([1, 1, 4]) == (3, 2, 5)


def test_a_stage_whose_unit_did_not_help_is_closed() -> None:
    accuracies = [0.5, 0.6, 0.7, 0.7, 0.7, 0.9, 0.9]
    plans = [decide(accuracies[:epochs], stages=3, interval=1, patience=2) for epochs in range(8)]
    assert plans[4].closed == set()  # 0.7 against 0.6
    assert plans[5].closed == {0} and plans[5].grown == (0, 1, 2, 0, 1)  # the first stage grew last, in epoch 4
    assert plans[6].closed == {0} and plans[6].grown[-1] == 2  # it helped again
    assert plans[7].closed == {0} and plans[7].grown[-1] == 1  # the turn of 0 is passed over


def test_it_ends_when_all_stages_are_closed() -> None:
    plan = decide([0.5] * 20, stages=3, interval=1, patience=4)
    assert plan.done and not plan.due and plan.closed == {0, 1, 2}
    assert plan.grown == (0, 1, 2, 0, 1, 2)  # four before the patience is over, then one each for those still open
    assert plan == decide([0.5] * 7, stages=3, interval=1, patience=4)


def test_nothing_closes_within_the_patience_and_small_rises_do_not_count() -> None:
    assert not decide([0.5] * 10, interval=1, patience=10).closed
    slow = [0.5 + 1e-5 * epoch for epoch in range(12)]
    assert decide(slow, interval=1, patience=5).closed and not decide(slow, interval=1, patience=5, threshold=0).closed


def test_a_rise_of_just_the_threshold_counts() -> None:
    steps = [0.0, 0.25, 0.5, 0.75, 1.0]  # exact in binary
    assert not decide(steps, interval=1, patience=1, threshold=0.25).closed
    assert decide(steps, interval=1, patience=1, threshold=0.2501).closed
    assert not decide([0.5] * 9, interval=1, patience=1, threshold=0.0).closed


def test_a_fall_does_not_close_what_the_best_says_otherwise() -> None:
    assert not decide([0.1, 0.5, 0.9, 0.3, 0.3], stages=2, interval=1, patience=3).closed


def test_time_can_be_up() -> None:
    plan = decide(RISING[:6], interval=3, epochs=6)
    assert plan.done and not plan.due and plan.grown == (0,)
    assert decide(RISING[:5], interval=3, epochs=5).done


def test_the_loop_appends_what_is_decided() -> None:
    accuracies = iter([0.1, 0.5, 0.5, 0.5, 0.5, 0.5, 0.5, 0.5])
    appended: list[int] = []
    plan, seen = autogrow(lambda: next(accuracies), appended.append, stages=2, interval=1, patience=2)
    assert tuple(appended) == plan.grown and plan.done
    assert seen == [0.1] + [0.5] * (len(seen) - 1) and len(seen) == len(appended) + 1


@pytest.mark.parametrize(
    "wrong", [{"stages": 0}, {"interval": 0}, {"patience": 0.5}, {"threshold": -1.0}, {"epochs": 0}]
)
def test_what_it_cannot_do_is_said(wrong: dict[str, Any]) -> None:
    name, value = next(iter(wrong.items()))
    with pytest.raises(FireflyError, match=rf"autogrow\({name}={value}\)"):
        decide([0.5], **wrong)


# ---- in fit ----------------------------------------------------------------------------------------------------------


def make() -> tuple[nn.Sequential, torch.optim.SGD, AutoGrow]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Sequential(nn.Linear(4, 6)), nn.Sequential(nn.Linear(6, 6)), nn.Linear(6, 2))
    optimizer = torch.optim.SGD(model.parameters(), 0.1, 0.9)

    def append(stage: int) -> None:
        torch.manual_seed(stage)
        layer = nn.Sequential(nn.ReLU(), nn.Linear(6, 6))
        model[stage].append(layer)
        optimizer.param_groups[0]["params"].extend(layer.parameters())

    return model, optimizer, AutoGrow(append, stages=2, interval=2, patience=4, epochs=20)


def run(folder: Path, stop_after: int = 99) -> tuple[nn.Sequential, AutoGrow, int]:
    model, optimizer, auto = make()
    inputs = torch.randn(64, 4, generator=torch.Generator().manual_seed(1))
    data = inputs, (inputs[:, 0] > 0).long()
    if folder.exists():
        import json

        history = json.loads((folder / "fit.json").read_text())["history"]
        auto.rebuild([row["test_accuracy"] for row in history["epochs"]])

    def stop(history: Any) -> bool:
        done = auto.stop(history)
        if len(history) == stop_after:
            raise KeyboardInterrupt
        return done

    how: dict[str, Any] = {"test": data, "optimizer": optimizer, "schedule": "constant", "batch": 16, "device": "cpu"}
    history = fit(model, data, 20, grower=auto, stop=stop, checkpoint=folder, progress=False, **how)
    return model, auto, len(history)


def test_a_run_in_fit_resumes_with_the_same_network(tmp_path: Path) -> None:
    whole, auto, epochs = run(tmp_path / "whole")
    assert auto.plan.done and sum(len(stage) - 1 for stage in whole[:2]) == len(auto.plan.grown) > 2
    assert [len(stage) for stage in whole[:2]] == list(auto.plan.depths([1, 1]))
    with pytest.raises(KeyboardInterrupt):
        run(tmp_path / "parts", stop_after=5)
    model, again, count = run(tmp_path / "parts")
    assert count == epochs and again.plan == auto.plan
    assert all(map(torch.equal, whole.state_dict().values(), model.state_dict().values()))
    assert run(tmp_path / "parts")[2] == epochs  # over at once
