"""A race of neighbourhoods: the kind whose copy does best after some training is the one that grows."""

import copy
from typing import Any

import pytest
import torch
from torch import nn

import firefly
from firefly.baselines import race
from laws import assert_optimizer_fits, assert_untouched, make_trained, snapshot, trace_entry
from zoo import ZOO, Entry

LANES = (firefly.Split(), firefly.New(4), [firefly.Split(), firefly.New(4)])


def run_race(model: nn.Module, entry: Entry, values: list[float], **options: Any) -> tuple[firefly.Growth, list[Any]]:
    """The children reach these values, in turn."""
    children: list[nn.Module] = []
    given: dict[str, Any] = {
        "example": entry.example(),
        "anatomy": trace_entry(entry.name),
        "tune": children.append,
        "judge": lambda child: values[children.index(child)],
        "neighborhoods": LANES,
        "budget": firefly.Neurons(4),
        "steps": 2,
    } | options
    return race(model, entry.loss, entry.batches(), **given), children


@pytest.mark.parametrize("best", [0, 1, 2])
def test_the_best_neighbourhood_grows(best: int) -> None:
    entry = ZOO["vgg"]
    model, optimizer = make_trained(entry)
    growth, children = run_race(model, entry, [0.1 if lane == best else 0.4 for lane in range(3)], optimizer=optimizer)
    assert len(children) == 3 and growth.neurons == 4
    assert growth.kinds == [["split"], ["new"], ["split", "new"]][best]
    for key, value in model.state_dict().items():
        assert torch.equal(value, children[best].state_dict()[key]), key
    assert_optimizer_fits(model, optimizer)
    assert "the best of split, new, split and new, trained: " in growth.notes[-1]


def test_a_race_that_nobody_ends_changes_nothing() -> None:
    entry = ZOO["mlp"]
    model = entry.make()
    before = snapshot(model)
    with pytest.raises(firefly.FireflyError, match="finite"):
        run_race(model, entry, [float("nan")] * 3)
    assert_untouched(before, snapshot(model))


@pytest.mark.parametrize("lanes", [(), (firefly.Split(),)])
def test_a_race_takes_two(lanes: Any) -> None:
    entry = ZOO["mlp"]
    with pytest.raises(firefly.FireflyError, match="at least two"):
        run_race(entry.make(), entry, [], neighborhoods=lanes)


def test_batches_that_can_be_read_once_are_refused() -> None:
    entry = ZOO["mlp"]
    with pytest.raises(firefly.FireflyError, match="once for every neighbourhood"):
        race(entry.make(), entry.loss, iter(entry.batches()), example=entry.example(), tune=print, judge=len)


def test_an_average_grows_with_the_best_alone() -> None:
    entry = ZOO["vgg"]
    model, _ = make_trained(entry)
    average = copy.deepcopy(model)
    growth, _ = run_race(model, entry, [0.4, 0.1, 0.3], also=[average])
    assert growth.kinds == ["new"]
    assert [one.shape for one in average.state_dict().values()] == [one.shape for one in model.state_dict().values()]


def test_a_race_has_no_preview() -> None:
    """It would leave the weights of the best copy in a model that has not grown."""
    entry = ZOO["mlp"]
    model = entry.make()
    before = snapshot(model)
    with pytest.raises(firefly.FireflyError, match="no preview"):
        run_race(model, entry, [0.1, 0.2, 0.3], preview=True)
    assert_untouched(before, snapshot(model))


def test_buffers_that_no_state_dict_holds_are_those_of_the_best() -> None:
    entry = ZOO["mlp"]
    model = entry.make()
    model.register_buffer("scale", torch.ones(()), persistent=False)
    children: list[Any] = []

    def tune(child: nn.Module) -> None:
        children.append(child)
        child.get_buffer("scale").fill_(len(children))

    values = iter([0.3, 0.1, 0.2])
    run_race(model, entry, [], tune=tune, judge=lambda child: next(values))
    assert model.get_buffer("scale") == 2
