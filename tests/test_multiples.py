"""`Multiples`: grown widths are multiples of a number, and what is chosen is the best that way."""

from typing import Any

import pytest
import torch
from torch import nn

import firefly
from firefly.stages.selection import select
from laws import make_ballot


def make_net(first: int = 8, second: int = 5) -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, first), nn.ReLU(), nn.Linear(first, second), nn.ReLU(), nn.Linear(second, 3))


def grow(model: nn.Module, budget: Any) -> firefly.Growth:
    x, y = torch.randn(32, 6), torch.randint(0, 3, (32,))
    return firefly.grow(
        model,
        lambda net, batch: nn.functional.cross_entropy(net(batch[0]), batch[1]),
        [(x, y)],
        example=x[:2],
        neighborhood=[firefly.Split(), firefly.New(12)],
        budget=budget,
        steps=10,
    )


@pytest.mark.parametrize("limit", [firefly.Neurons(12), firefly.Parameters(300), firefly.Flops(fraction=1.5)])
def test_grown_widths_are_multiples(limit: Any) -> None:
    growth = grow(make_net(), limit & firefly.Multiples(4))
    assert growth.neurons > 0
    for before, after in growth.widths.values():
        assert after == before or after % 4 == 0
    assert all(spent <= allowed for spent, allowed in growth.spent.values())


def test_whole_bundles_only() -> None:
    growth = grow(make_net(), firefly.Multiples(4) & firefly.Neurons(2))
    assert growth.neurons == 0 and growth.notes


def choose(gains: list[float], other: list[float], budget: Any) -> dict[str, int]:
    anatomy = firefly.trace(make_net(8, 8), torch.randn(2, 6))
    values = {name: torch.tensor(found) for name, found in zip(("0", "2"), (gains, other))}
    chosen = select(make_ballot(anatomy, values, budget))
    return {name: len(chosen.slots.get(name, ())) for name in values}


def test_a_bundle_is_worth_its_mean() -> None:
    one_star = [9.0, 0.1, 0.1, 0.1] + [0.0] * 8  # the best candidate, but poor company
    solid = [3.0, 3.0, 3.0, 3.0] + [0.0] * 8
    assert choose(one_star, solid, firefly.Neurons(4) & firefly.Multiples(4)) == {"0": 0, "2": 4}
    assert choose(one_star, solid, firefly.Neurons(4)) == {"0": 1, "2": 3}


def test_two_multiples_give_their_common_one() -> None:
    assert (firefly.Multiples(4) & firefly.Multiples(6) & firefly.Neurons(1)).multiple == 12


@pytest.mark.parametrize("number", [0, -8, 1.5])
def test_a_multiple_must_be_a_whole_number(number: Any) -> None:
    with pytest.raises(firefly.FireflyError, match="Multiples"):
        firefly.Multiples(number)


def test_multiples_alone_are_no_budget() -> None:
    with pytest.raises(firefly.FireflyError, match="join it"):
        grow(make_net(), firefly.Multiples(8))


def test_the_power_of_the_cost() -> None:
    """Width "0" is dear: 6 inputs and 8 readers; "2" is cheap: 8 inputs, 3 readers. Gains are as 5 to 4.5."""
    values = {"0": torch.full((12,), 5.0), "2": torch.full((12,), 4.5)}
    anatomy = firefly.trace(make_net(8, 8), torch.randn(2, 6))
    ballot = make_ballot(anatomy, values, firefly.Parameters(60))
    assert set(select(ballot, power=0.0).slots) == {"0"}
    assert set(select(ballot, power=1.0).slots) == {"2"}
