"""AutoGrow: the policy on made-up accuracies, dormant layers that wake by it, a run in `fit` that is taken up."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import firefly
from firefly.baselines import AutoGrow, autogrow
from firefly.baselines.autogrow import decide
from firefly.errors import FireflyError
from firefly.surgery.residual import find_layers
from firefly.training import fit
from laws import assert_optimizer_fits, make_trained
from zoo import ZOO

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


def test_a_stage_gets_no_more_units_than_it_may() -> None:
    plans = [decide(RISING[:epochs], stages=2, interval=1, patience=100, most=(1, 3)) for epochs in range(7)]
    assert plans[4].grown == (0, 1, 1, 1) and plans[4].due and not plans[4].done
    assert plans[5].grown == (0, 1, 1, 1) and plans[5].done and plans[5].closed == {0, 1}


# ---- on a model with dormant layers ----------------------------------------------------------------------------------


def climb(errors: Iterable[float], **how: Any) -> tuple[nn.Module, torch.optim.Optimizer, firefly.Growth, list[int]]:
    """Two dormant layers at each of the three places of a VGG; how many layers there were in every epoch."""
    entry = ZOO["vgg"]
    model, optimizer = make_trained(entry)
    firefly.deepen(model, entry.example(), count=2, optimizer=optimizer)
    depths, values = [], iter(errors)

    def tune(model: nn.Module) -> None:
        depths.append(sum(layer.make.weight.numel() > 0 for layer in find_layers(model).values()))

    given = {"example": entry.example(), "tune": tune, "judge": lambda model: next(values), "interval": 2} | how
    growth = autogrow(model, entry.loss, entry.batches(), insert=3, optimizer=optimizer, **given)
    return model, optimizer, growth, depths


def test_layers_wake_in_turn_until_none_is_left() -> None:
    model, optimizer, growth, depths = climb(1 / epoch for epoch in range(1, 99))
    assert depths == [0, 0, 1, 1, 2, 2, 3, 3, 4, 4, 5, 5, 6, 6]
    assert len(growth.woken) == 6 and growth.neurons == 6 * 3
    assert growth.parameters[1] == sum(parameter.numel() for parameter in model.parameters())
    assert growth.notes[-1].startswith("14 epochs, the lowest error 0.07143; new layers: 2 at ")
    assert_optimizer_fits(model, optimizer)


def test_places_that_no_longer_gain_are_closed() -> None:
    model, _, growth, depths = climb([0.5] * 99, interval=1, patience=2)
    assert depths == [0, 1, 2, 3, 4] and len(growth.woken) == 4  # the third and fourth did not help in time either
    assert sum(layer.make.weight.numel() > 0 for layer in find_layers(model).values()) == 4


def test_it_preserves_the_function_where_nothing_trains() -> None:
    entry = ZOO["vgg"]
    model, _ = make_trained(entry)
    before = model.eval()(*entry.example())
    after = climb([0.5] * 99, interval=1, patience=2)[0].eval()(*entry.example())
    assert torch.allclose(before, after, atol=1e-5)


def test_what_cannot_be_climbed_is_said() -> None:
    entry = ZOO["vgg"]
    how: dict[str, Any] = {"example": entry.example(), "tune": print, "judge": lambda model: 0.5}
    with pytest.raises(FireflyError, match=r"firefly\.deepen"):
        autogrow(entry.make(), entry.loss, entry.batches(), **how)
    with pytest.raises(FireflyError, match="epoch 2 is nan"):
        climb([0.5, float("nan")])
    with pytest.raises(FireflyError, match="make interval smaller"):
        climb([0.5] * 9, epochs=2)
    with pytest.raises(FireflyError, match=r"autogrow\(patience=0\)"):
        climb([0.5] * 9, patience=0)
    with pytest.raises(FireflyError, match="knows no 'intervall'"):
        climb([0.5] * 9, intervall=3)
    with pytest.raises(FireflyError, match="at least 2 neurons"):  # of one alone no layer would ever wake
        autogrow(entry.make(), entry.loss, entry.batches(), insert=1, **how)


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
