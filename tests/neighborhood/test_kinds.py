"""Kinds of growth: the laws of each, the slots they share, and a fourth kind that nothing but this file knows."""

from dataclasses import dataclass
from typing import Any, ClassVar

import pytest
import torch
from torch import Tensor, nn

import firefly
from firefly.neighborhood.kinds import Copy, Kind
from firefly.neighborhood.overgrown import OverGrown
from firefly.neighborhood.slots import list_slots
from laws import (
    assert_close,
    assert_epsilon_zero_preserves,
    assert_grown_is_overgrown,
    assert_optimizer_fits,
    grow,
    grow_blindly,
    in_double,
    make_trained,
    run,
    trace_entry,
)
from zoo import ZOO, Entry


@dataclass(frozen=True)
class Fourfold(Kind):
    """A neuron becomes four: two stay close, two move apart."""

    name: ClassVar[str] = "fourfold"
    becomes: ClassVar[tuple[Copy, ...]] = (Copy(+1, 0.25), Copy(-1, 0.25), Copy(+0.5, 0.25), Copy(-0.5, 0.25))
    epsilon: float = 0.2

    def find_existing(self, width: firefly.Width) -> Tensor:
        return torch.arange(width.size) % 2 == 0

    def start_rows(self, scale: Tensor) -> Tensor:
        return torch.full_like(scale, 0.1)


def mixed(anatomy: firefly.Anatomy) -> list[Kind]:
    """Every other neuron becomes four, the others may be unlocked, and there are new ones."""
    locked = {width.name: torch.arange(width.size) % 2 == 1 for width in anatomy}
    return [Fourfold(), firefly.Unlock(locked=locked), firefly.New(3)]


@pytest.fixture(params=["mlp", "vgg", "resnet", "mobilenet_v1", "vit", "group_norm"])
def entry(request: Any) -> Entry:
    return in_double(ZOO[request.param])


def overgrow(model: nn.Module, entry: Entry, kinds: list[Kind], fold: bool = True) -> OverGrown:
    anatomy = trace_entry(entry.name)
    names = [width.name for width in anatomy.growable()]
    return OverGrown(model, anatomy, names, kinds, torch.Generator().manual_seed(0), fold=fold)


@pytest.mark.parametrize("kinds", ["fourfold", "unlock", "mixed"])
def test_the_laws_hold_for_every_kind(entry: Entry, kinds: str) -> None:
    anatomy = trace_entry(entry.name)
    given = {"fourfold": [Fourfold()], "unlock": [firefly.Unlock()], "mixed": mixed(anatomy)}[kinds]
    model, example = entry.make().eval(), entry.example()
    expected = run(model, example)
    for fold in (True, False):
        assert_epsilon_zero_preserves(overgrow(model, entry, given, fold), example, expected, 1e-12)
    blind = grow_blindly(model, entry, neighborhood=given, budget=firefly.Neurons(9))
    assert blind.growth.neurons > 0 and set(blind.growth.kinds) == {kind.name for kind in given}
    assert_grown_is_overgrown(model, blind, example, 1e-12)


def test_folded_copies_compute_the_same(entry: Entry) -> None:
    model, example = entry.make().eval(), entry.example()
    found = []
    for fold in (True, False):
        over = overgrow(model, entry, mixed(trace_entry(entry.name)), fold)
        with torch.no_grad():
            for k, delta in enumerate(over.delta.values()):
                delta.copy_(torch.randn(delta.shape, generator=torch.Generator().manual_seed(k)))
        with over.attached():
            found.append(run(model, example))
    assert_close(*found, 1e-12)


def test_a_growth_tells_kinds_by_name_and_counts_their_neurons() -> None:
    """A budget of 7 neurons: a neuron that becomes four brings three."""
    entry = ZOO["mlp"]
    model, optimizer = make_trained(entry)
    before = {name: model.get_parameter(f"{name}.weight").shape[0] for name in ("0", "2")}
    growth = grow(
        model, entry, neighborhood=[Fourfold(), firefly.New(4)], budget=firefly.Neurons(7), optimizer=optimizer
    )
    assert growth.neurons <= 7 and set(growth.kinds) <= {"fourfold", "new"}
    for name, added in growth.added.items():
        assert growth.widths[name][1] - before[name] == 3 * added["fourfold"] + added["new"]
        assert [len(growth.chosen[name][kind]) for kind in added] == list(added.values())
        assert all(number % 2 == 0 for number in growth.chosen[name]["fourfold"])
    assert_optimizer_fits(model, optimizer)
    assert "fourfold" in str(growth) and growth.to_dict()["added"] == growth.added


def test_an_unlocked_neuron_stays_and_its_copy_takes_its_place() -> None:
    entry = ZOO["mlp"]
    model, optimizer = make_trained(entry)
    rows, columns = model[0].weight.detach().clone(), model[2].weight.detach().clone()
    growth = grow(
        model, entry, neighborhood=[firefly.Unlock()], widths=["0"], budget=firefly.Neurons(3), optimizer=optimizer
    )
    chosen = growth.chosen["0"]["unlock"]
    assert len(chosen) == 3 and torch.equal(model[0].weight[:16], rows)
    moved = (model[0].weight[16:] - rows[chosen]).norm(dim=1)
    assert (moved > 0).all() and (moved <= 0.31 * rows[chosen].norm(dim=1) + 0.1).all()
    assert not model[2].weight[:, chosen].any() and torch.equal(model[2].weight[:, 16:], columns[:, chosen])
    assert not optimizer.state[model[0].weight]["exp_avg"][chosen].any()  # nobody reads it: no momentum either


def test_only_locked_neurons_may_be_unlocked() -> None:
    entry = ZOO["mlp"]
    locked = {"0": torch.arange(16) >= 12}
    growth = grow(entry.make(), entry, neighborhood=[firefly.Unlock(locked=locked)], budget=firefly.Neurons(9))
    assert set(growth.added) == {"0"} and all(number >= 12 for number in growth.chosen["0"]["unlock"])
    with pytest.raises(firefly.FireflyError, match="one boolean per neuron"):
        grow(entry.make(), entry, neighborhood=[firefly.Unlock(locked={"0": torch.ones(3)})])


def test_a_neuron_has_one_future() -> None:
    entry = ZOO["mlp"]
    with pytest.raises(firefly.FireflyError, match="'split' and of 'unlock'"):
        grow(entry.make(), entry, neighborhood=[firefly.Split(), firefly.Unlock()])


def test_copies_share_all_of_the_columns() -> None:
    @dataclass(frozen=True)
    class Greedy(Kind):
        name: ClassVar[str] = "greedy"
        becomes: ClassVar[tuple[Copy, ...]] = (Copy(1, 0.5), Copy(-1, 0.6))
        epsilon: float = 0.1

    with pytest.raises(firefly.FireflyError, match=r"share 1\.1 of the columns"):
        grow(ZOO["mlp"].make(), ZOO["mlp"], neighborhood=[Greedy()])


def test_the_worked_example_of_the_numbering() -> None:
    """The table in the docstring of `firefly.tensors`."""
    width = firefly.Width("w", 3, ("a",), ("b",), ())
    slots = list_slots(width, [firefly.Split(), firefly.New(2)])
    everyone, few = slots.everyone(), slots.choose(torch.tensor([1, 4]))
    assert everyone.slot.tolist() == [0, 1, 2, 0, 1, 2, 3, 4]
    assert everyone.move.tolist() == [1, 1, 1, -1, -1, -1, 0, 0]
    assert everyone.share.tolist() == [0.5] * 6 + [0, 0]
    assert (few.slot.tolist(), few.move.tolist()) == ([0, 1, 2, 1, 4], [0, 1, 0, -1, 0])
    assert few.share.tolist() == [1, 0.5, 1, 0.5, 0]
    unlocked = list_slots(width, [firefly.Unlock()]).choose(torch.tensor([1]))
    assert (unlocked.slot.tolist(), unlocked.move.tolist()) == ([0, 1, 2, 1], [0, 0, 0, 1])
    assert unlocked.share.tolist() == [1, 0, 1, 1]


@pytest.mark.parametrize(
    "size, block, count", [(2, 1, 4), (8, 1, 4), (40, 1, 20), (512, 1, 50), (4, 16, 2), (1, 64, 1)]
)
def test_new_candidates_fit_the_width(size: int, block: int, count: int) -> None:
    assert firefly.New().count_new(firefly.Width("w", size, ("a",), ("b",), (), block)) == count
