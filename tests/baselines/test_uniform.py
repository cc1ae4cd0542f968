"""Uniform growth: the same share for every width, exactly the budget, and the same function where that is promised."""

import math
from itertools import pairwise

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

import firefly
from firefly.baselines.uniform import find_shares, uniform
from firefly.stages.budget import Budget, Limit
from firefly.tensors import Run
from laws import assert_close, assert_optimizer_fits, grow, in_double, make_trained, run, trace_entry
from zoo import ZOO

SPLIT, NEW = [firefly.Split()], [firefly.New(16)]
MODELS = ["mlp", "vgg", "resnet"]


@settings(deadline=None)
@given(st.lists(st.integers(1, 600), min_size=1, max_size=12), st.floats(0.02, 3))
def test_every_width_gets_its_share_of_neurons(sizes: list[int], fraction: float) -> None:
    present = {f"w{k}": size for k, size in enumerate(sizes)}
    allowed = max(1, int(fraction * sum(sizes)))
    limit = Limit("neurons", allowed, tuple(((Run(name, 1),),) for name in present))
    shares = find_shares([limit], present, list(present))
    assert sum(shares.values()) == allowed
    for name, size in present.items():
        assert abs(shares[name] - allowed / sum(sizes) * size) < 1


@settings(deadline=None)
@given(st.lists(st.integers(1, 60), min_size=2, max_size=6), st.integers(1, 20_000))
def test_other_costs_get_the_largest_common_factor(sizes: list[int], allowed: int) -> None:
    """A chain of dense layers: the cost of a width depends on its neighbours."""
    present = {f"w{k}": size for k, size in enumerate(sizes)}
    sides = [(Run(None, 5),), *((Run(name, size),) for name, size in present.items()), (Run(None, 3),)]
    limit = Limit("parameters", allowed, tuple(pairwise(sides)))
    shares = find_shares([limit], present, list(present))

    def cost(added: dict[str, int]) -> float:
        return limit.cost({name: size + added[name] for name, size in present.items()}) - limit.cost(present)

    assert cost(shares) <= allowed
    # one c for all of them, rounded up or down
    assert max((shares[n] - 1) / present[n] for n in present) < min((shares[n] + 1) / present[n] for n in present)
    assert cost({name: share + 1 for name, share in shares.items()}) > allowed


def test_all_of_two_budgets_hold() -> None:
    entry = ZOO["vgg"]
    both = firefly.Parameters(fraction=0.5) & firefly.Neurons(6)
    growth = grow(entry.make(), entry, neighborhood=NEW, budget=both, method=uniform())
    assert growth.neurons == 6
    assert all(spent <= allowed for spent, allowed in growth.spent.values()) and len(growth.spent) == 2


@pytest.mark.parametrize("neighborhood", [SPLIT, NEW], ids=["split", "new"])
@pytest.mark.parametrize("name", MODELS)
def test_thirty_percent_everywhere(name: str, neighborhood: list) -> None:
    entry = ZOO[name]
    model, optimizer = make_trained(entry)
    growth = grow(
        model, entry, neighborhood=neighborhood, budget=firefly.Neurons(fraction=0.3), method=uniform(),
        optimizer=optimizer,
    )  # fmt: skip
    total = sum(before for before, _ in growth.widths.values())
    assert growth.neurons == int(0.3 * total) and growth.spent == {"neurons": (int(0.3 * total),) * 2}
    for before, after in growth.widths.values():
        assert math.floor(0.3 * before) <= after - before + 1 <= math.ceil(0.3 * before) + 1
    kinds = {kind for added in growth.added.values() for kind, count in added.items() if count}
    assert kinds == {"split" if neighborhood is SPLIT else "new"}
    assert growth.predicted == 0 and not growth.notes
    assert_optimizer_fits(model, optimizer)


@pytest.mark.parametrize("budget", [firefly.Parameters(fraction=0.4), firefly.Flops(fraction=0.4)], ids=type)
@pytest.mark.parametrize("name", MODELS)
def test_parameters_and_flops_are_nearly_spent(name: str, budget: Budget) -> None:
    entry = ZOO[name]
    growth = grow(entry.make(), entry, neighborhood=SPLIT, budget=budget, method=uniform())
    (spent, allowed), = growth.spent.values()  # fmt: skip
    assert 0.7 * allowed < spent <= allowed
    used, total = (growth.parameters, growth.flops)[isinstance(budget, firefly.Flops)]
    assert spent == pytest.approx(total - used, abs=2)
    factors = [(after - before) / before for before, after in growth.widths.values()]
    assert max(factors) - min(factors) <= 1.01 / min(before for before, _ in growth.widths.values())


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("name", MODELS)
def test_new_neurons_change_nothing_at_first(name: str, training: bool) -> None:
    entry = in_double(ZOO[name])
    model = make_trained(entry)[0].train(training)
    before = {mode: run(model, entry.example(), mode) for mode in (True, False)}  # train mode moves the statistics
    growth = grow(model, entry, neighborhood=NEW, method=uniform())
    assert growth.neurons and growth.output_change < 1e-12
    for mode in (False, True):
        assert_close(run(model, entry.example(), mode), before[mode], 1e-12)


def test_new_neurons_can_learn() -> None:
    """Their incoming rows are random and differ, so that their zero columns get gradients of their own."""
    entry = ZOO["mlp"]
    model = entry.make()
    grow(model, entry, neighborhood=NEW, budget=firefly.Neurons(8), widths=["2"], method=uniform())
    entry.loss(model, entry.batches()[0]).backward()
    columns = model[4].weight.grad[:, 12:]
    assert not model[4].weight[:, 12:].any() and model[4].weight.shape[1] == 20
    assert torch.linalg.matrix_rank(columns) == 3  # of four classes, whose gradients sum to zero


def test_copies_are_halved_and_a_little_apart() -> None:
    entry = in_double(ZOO["mlp"])
    model = entry.make()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    growth = grow(model, entry, neighborhood=SPLIT, budget=firefly.Neurons(4), widths=["2"], method=uniform())
    assert growth.added == {"2": {"split": 4}}
    weight, columns = model[2].weight.detach(), model[4].weight.detach()
    moved = [i for i in range(12) if not torch.equal(weight[i], before["2.weight"][i])]
    assert len(moved) == 4
    for copy, i in enumerate(moved, 12):
        assert torch.allclose((weight[i] + weight[copy]) / 2, before["2.weight"][i])
        assert torch.equal(columns[:, i], before["4.weight"][:, i] / 2) and torch.equal(columns[:, i], columns[:, copy])
        apart = (weight[i] - weight[copy]).norm() / before["2.weight"][i].norm()
        assert 0.02 < apart < 0.2
    assert 0 < growth.output_change < 0.05


def who_split(seed: int) -> list[int]:
    entry = ZOO["mlp"]
    model = entry.make()
    before = model[2].weight.detach().clone()
    grow(model, entry, neighborhood=SPLIT, budget=firefly.Neurons(4), widths=["2"], method=uniform(), seed=seed)
    return [i for i in range(12) if not torch.equal(model[2].weight[i], before[i])]


def test_a_seed_decides_which_neurons() -> None:
    assert who_split(1) == who_split(1)
    assert len({tuple(who_split(seed)) for seed in range(6)}) > 3


def test_equal_widths_take_turns_at_the_last_neuron() -> None:
    entry = ZOO["resnet"]
    grown = set()
    for seed in range(8):
        grown |= set(grow(entry.make(), entry, budget=firefly.Neurons(1), method=uniform(), seed=seed).added)
    assert len(grown) > 1


def test_splits_come_first_and_data_does_not_matter() -> None:
    entry = ZOO["mlp"]
    models = [entry.make(), entry.make()]
    growth = grow(models[0], entry, method=uniform(), neighborhood=[*SPLIT, *NEW])
    grow(models[1], entry, method=uniform(), neighborhood=[*SPLIT, *NEW], loss=lambda m, b: -entry.loss(m, b))
    assert all(added["split"] and not added["new"] for added in growth.added.values())
    assert all(map(torch.equal, models[0].state_dict().values(), models[1].state_dict().values()))


def test_too_much_is_said_and_too_little_too() -> None:
    entry = ZOO["mlp"]
    model: nn.Module = entry.make()
    with pytest.raises(firefly.FireflyError, match=r"width '0': .* 24 more neurons.* each of its 16 .*New\(24\)"):
        grow(model, entry, neighborhood=SPLIT, budget=firefly.Neurons(fraction=1.5), method=uniform())
    with pytest.raises(firefly.FireflyError, match=r"width '0': .* 5 more neurons.* 2 candidates: .*New\(5\)"):
        grow(model, entry, neighborhood=[firefly.New(2)], budget=firefly.Neurons(fraction=0.3), method=uniform())
    assert model[0].weight.shape == (16, 8)
    growth = grow(model, entry, neighborhood=NEW, budget=firefly.Parameters(3), method=uniform())
    assert growth.neurons == 0 and "smaller than any one neuron" in growth.notes[0]
    more = grow(model, entry, neighborhood=[firefly.New(24)], budget=firefly.Neurons(fraction=1.5), method=uniform())
    assert more.widths == {"0": (16, 40), "2": (12, 30)}
    assert trace_entry("mlp").sizes()["0"] == 16
