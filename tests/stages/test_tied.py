"""`Tied`: widths that grow by the same number, the best candidates of each together."""

from typing import Any

import pytest
import torch
from torch import nn

import firefly
from firefly.stages.selection import select
from laws import make_ballot


def make_net(*sizes: int) -> nn.Sequential:
    torch.manual_seed(0)
    layers: list[nn.Module] = []
    for before, after in zip((6, *sizes), sizes):
        layers += [nn.Linear(before, after), nn.ReLU()]
    return nn.Sequential(*layers, nn.Linear(sizes[-1], 3))


def choose(budget: Any, *gains: list[float], sizes: tuple[int, ...] = (8, 8, 8)) -> list[int]:
    names = [str(2 * k) for k in range(len(gains))]
    anatomy = firefly.trace(make_net(*sizes), torch.randn(2, 6))
    ballot = make_ballot(anatomy, {name: torch.tensor(gain) for name, gain in zip(names, gains)}, budget)
    chosen = select(ballot)
    for name in names:  # the best of each width
        best = ballot.gains[name].argsort(descending=True)[: len(chosen.slots.get(name, ()))]
        assert set(best.tolist()) == set(chosen.slots.get(name, torch.empty(0)).tolist())
    return [len(chosen.slots.get(name, ())) for name in names]


RICH, POOR, BAD = [4.0, 3.0, 2.0, 1.0], [0.5, 0.4, 0.3, 0.2], [0.1, -0.1, -0.2, -9.0]


def test_tied_widths_grow_alike_and_others_as_they_like() -> None:
    assert choose(firefly.Neurons(6), RICH, POOR, RICH) == [3, 0, 3]
    assert choose(firefly.Neurons(6) & firefly.Tied(), RICH, POOR, RICH) == [2, 2, 2]
    assert choose(firefly.Tied(("0", "2")) & firefly.Neurons(6), RICH, POOR, RICH) == [1, 1, 4]
    assert choose(firefly.Tied("[02]") & firefly.Neurons(6), RICH, POOR, RICH) == [1, 1, 4]
    assert choose(firefly.Neurons(7) & firefly.Tied(), RICH, POOR, RICH) == [2, 2, 2]


def test_a_poor_member_is_made_up_for_by_the_others() -> None:
    assert choose(firefly.Neurons(12) & firefly.Tied(("0", "2")), RICH, BAD, POOR) == [3, 3, 4]


def test_a_group_grows_no_further_than_each_of_it_can() -> None:
    assert choose(firefly.Neurons(12) & firefly.Tied(("0", "2")), RICH, POOR[:2], RICH) == [2, 2, 4]


def test_groups_that_meet_are_one_and_multiples_hold() -> None:
    both = firefly.Tied(("0", "2"), ("2", "4"))
    assert choose(firefly.Neurons(6) & both, RICH, POOR, RICH) == [2, 2, 2]
    assert choose(firefly.Neurons(12) & both & firefly.Multiples(3), RICH, POOR, RICH, sizes=(8, 8, 8)) == [4, 4, 4]
    assert choose(firefly.Neurons(9) & both & firefly.Multiples(3), RICH, POOR, RICH, sizes=(8, 8, 8)) == [1, 1, 1]


def test_without_names_equal_sizes_are_tied() -> None:
    assert choose(firefly.Neurons(6) & firefly.Tied(), RICH, POOR, RICH, sizes=(8, 7, 8)) == [3, 0, 3]


def test_the_cost_of_a_group_is_what_all_of_it_costs() -> None:
    model = make_net(8, 8, 8)
    x, y = torch.randn(32, 6), torch.randint(0, 3, (32,))
    growth = firefly.grow(
        *(model, lambda net, batch: nn.functional.cross_entropy(net(batch[0]), batch[1]), [(x, y)]), example=x[:2],
        neighborhood=firefly.New(12), budget=firefly.Parameters(200) & firefly.Tied(), steps=10,
    )  # fmt: skip
    sizes = {after for _, after in growth.widths.values()}
    assert len(sizes) == 1 and sizes.pop() > 8
    assert growth.spent["parameters"][0] == growth.parameters[1] - growth.parameters[0] <= 200


def test_what_is_no_name_is_refused() -> None:
    with pytest.raises(firefly.FireflyError, match=r"Tied\(.3,.*names of widths"):
        firefly.Tied((3, "0"))  # type: ignore[arg-type]
