"""The laws of one growth on every model of the zoo (Sec. 2.2, Algorithm 1), and its budgets, exact to the neuron."""

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import firefly
from firefly.method import Method
from firefly.neighborhood.overgrown import OverGrown
from firefly.stages.scores import integrate
from laws import (
    SMALL,
    assert_close,
    assert_epsilon_zero_preserves,
    assert_grown_is_overgrown,
    assert_optimizer_fits,
    every_growing,
    grow,
    grow_blindly,
    in_double,
    loss_on,
    make_trained,
    overgrown_loss,
    run,
    ties,
    trace_entry,
    train,
)
from zoo import ZOO, Entry

KINDS = {
    "split": [firefly.Split()],
    "new": [firefly.New(3)],
    "unlock": [firefly.Unlock()],
    "both": [firefly.Split(), firefly.New(3)],
    "continual": [firefly.Unlock(), firefly.New(2)],
}


def overgrow(model: nn.Module, name: str, kinds: str = "both", fold: bool = False) -> OverGrown:
    anatomy = trace_entry(name)
    names = [width.name for width in anatomy.growable()]
    return OverGrown(model, anatomy, names, KINDS[kinds], torch.Generator().manual_seed(0), fold=fold)


# ---- f_{ε,δ} ---------------------------------------------------------------------------------------------------------


@every_growing
def test_epsilon_zero_preserves_the_function(entry: Entry) -> None:
    entry = in_double(entry)
    model, example = entry.make(), entry.example()
    expected = run(model, example)
    for kinds in KINDS:
        assert_epsilon_zero_preserves(overgrow(model, entry.name, kinds), example, expected, 1e-12)
    assert_close(run(model, example), expected, 0.0)


@every_growing
def test_epsilon_zero_preserves_the_function_in_train_mode(entry: Entry) -> None:
    """Batch statistics of copies are those of their parent."""
    if entry.name == "mlp_dropout":
        pytest.skip("functional dropout draws other numbers for a larger layer")
    entry = in_double(entry)
    model, example = entry.make(), entry.example()
    for module in model.modules():
        if isinstance(module, nn.modules.dropout._DropoutNd):
            module.p = 0.0
        if isinstance(module, nn.MultiheadAttention):
            module.dropout = 0.0
    expected = run(copy.deepcopy(model), example, training=True)
    assert_epsilon_zero_preserves(overgrow(model, entry.name), example, expected, 1e-12, training=True)


@every_growing
def test_overgrown_network_starts_as_the_network(entry: Entry) -> None:
    """New neurons are read with zeros at first, so that step one starts at f_t."""
    entry = in_double(entry)
    model, example = entry.make(), entry.example()
    expected = run(model, example)
    over = overgrow(model, entry.name, "new")
    with over.attached():
        assert_close(run(model, example), expected, 1e-12)


@every_growing
def test_folded_pairs_compute_the_same(entry: Entry) -> None:
    """Summing each pair of copies in front of its readers changes the cost, not the function."""
    entry = in_double(entry)
    model, example = entry.make(), entry.example()
    plain, folded = overgrow(model, entry.name, fold=False), overgrow(model, entry.name, fold=True)
    with plain.attached():
        expected = run(model, example)
    try:
        with folded.attached():
            found = run(model, example)
    except RuntimeError:  # its readers cannot be folded; a growth then goes without
        return
    assert_close(found, expected, 1e-12)


@every_growing
def test_grown_network_is_the_overgrown_one_with_the_rest_off(entry: Entry) -> None:
    entry, anatomy = in_double(entry), trace_entry(entry.name)
    for seed, widths in enumerate((None, [anatomy.growable()[0].name], [anatomy.growable()[-1].name])):
        model = entry.make().eval()
        blind = grow_blindly(model, entry, seed=seed, widths=widths)
        assert_grown_is_overgrown(model, blind, entry.example(), 1e-12)


def test_newborn_statistics_are_measured_and_others_left_alone() -> None:
    """New neurons get the running statistics that they have on the batches; norms that do not grow keep theirs."""
    entry = in_double(ZOO["vgg"])
    model = entry.make().eval()
    expected = run(model, entry.example())
    blind = grow_blindly(model, entry, widths=["features.0"], preview=True, neighborhood=[firefly.New(2)])
    assert_epsilon_zero_preserves(blind.over, entry.example(), expected, 1e-12)
    for name, norm, old in (("vgg", "features.1", 8), ("instance_norm", "7", 10)):
        entry = ZOO[name]
        model, width = entry.make().eval(), {"vgg": "features.0", "instance_norm": "6"}[name]
        assert grow(model, entry, neighborhood=[firefly.New(6)], widths=[width]).neurons > 0
        mean, variance = model.get_buffer(f"{norm}.running_mean"), model.get_buffer(f"{norm}.running_var")
        assert not mean[:old].any() and (variance[:old] == 1).all()
        assert (mean[old:] != 0).all() and (variance[old:] != 1).all()


# ---- gains -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["mlp", "vgg", "group_norm", "gpt", "llama", "embedding_mean", "weight_norm"])
def test_gains_add_up_to_what_the_overgrown_network_gains(name: str) -> None:
    """Σ D_i = L(0) - L(ε̃): on the joint path the integral is complete."""
    entry = in_double(ZOO[name])
    model, batches = entry.make().eval(), entry.batches()[:2]
    over = overgrow(model, name)
    with torch.no_grad():
        for k, delta in enumerate(over.delta.values()):
            delta.copy_(torch.randn(delta.shape, generator=torch.Generator().manual_seed(k)))
    zero = {width: torch.zeros_like(epsilon) for width, epsilon in over.epsilon.items()}
    decrease = overgrown_loss(over, entry.loss, batches, zero) - overgrown_loss(over, entry.loss, batches)
    for points, tolerance in ((3, 0.05), (24, 0.01)):
        gains = torch.cat(list(integrate(over, entry.loss, batches, points=points).values()))
        assert abs(gains.sum().item() - decrease) < tolerance * gains.abs().sum().item()


def test_joint_and_single_path_agree_in_ranking() -> None:
    """The paper integrates one candidate at a time; all at once ranks nearly the same, for far less."""
    entry = ZOO["mlp"]
    model, _ = make_trained(entry)
    joint, single = ScoreSpy("joint"), ScoreSpy("single")
    for spy in (joint, single):
        options = {"method": spy.method, "path": spy.path, "preview": True, "steps": 20}
        grow(model, entry, batches=entry.batches()[:2], **options)
    ranks = [torch.cat(list(spy.gains.values())).argsort(descending=True).argsort().double() for spy in (joint, single)]
    assert torch.corrcoef(torch.stack(ranks))[0, 1] > 0.8
    best = [set(rank.argsort()[:8].tolist()) for rank in ranks]
    assert len(best[0] & best[1]) >= 5


class ScoreSpy:
    """Firefly itself, with the gains kept."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.gains: dict[str, Tensor] = {}
        self.method = Method(score=self.score)

    def score(self, over: OverGrown, loss: Any, batches: list[Any], path: str) -> dict[str, Tensor]:
        assert path == self.path
        self.gains = integrate(over, loss, batches, path)
        return self.gains


# ---- a whole growth with its defaults --------------------------------------------------------------------------------


@every_growing
def test_growth_lowers_the_loss_and_training_goes_on(entry: Entry) -> None:
    model, optimizer = make_trained(entry)
    kind, tied, members = type(model), ties(model), [len(group["params"]) for group in optimizer.param_groups]
    anatomy, example = trace_entry(entry.name), entry.example()
    growth = firefly.grow(model, entry.loss, entry.batches(), example=example, optimizer=optimizer, anatomy=anatomy)
    assert growth.neurons > 0
    assert growth.loss_overgrown < growth.loss_before
    assert growth.loss_after <= 1.01 * growth.loss_before
    assert growth.total_gain == pytest.approx(growth.loss_before - growth.loss_overgrown, rel=0.3, abs=0.02)
    assert growth.parameters[1] == sum(p.numel() for p in model.parameters())
    assert f"+{growth.neurons} neuron" in str(growth)

    assert type(model) is kind and ties(model) == tied
    assert [len(group["params"]) for group in optimizer.param_groups] == members
    assert_optimizer_fits(model, optimizer)

    before = loss_on(model, entry)
    optimizer.param_groups[0]["lr"] = 0.003
    train(model, entry, optimizer, 8)
    assert loss_on(model, entry) < before


@pytest.mark.parametrize("name", ["mlp", "two_towers", "gpt"])
def test_reported_numbers_are_those_of_the_model(name: str) -> None:
    entry = ZOO[name]
    model, optimizer = make_trained(entry)
    example, anatomy = entry.example(), trace_entry(name)
    output, loss = run(model, example), loss_on(model, entry, 2)
    growth = grow(model, entry, steps=10, optimizer=optimizer, evaluate_on=2)
    change = max((a - b).abs().max().item() for a, b in zip(output, run(model, example)))
    assert growth.loss_before == pytest.approx(loss, rel=1e-5)
    assert growth.loss_after == pytest.approx(loss_on(model, entry, 2), rel=1e-5)
    assert growth.output_change == pytest.approx(change, rel=1e-3)
    assert growth.predicted == pytest.approx(sum(sum(gain.values()) for gain in growth.gains.values()), rel=1e-4)
    assert set(growth.widths) == {width.name for width in anatomy.growable()}
    for width, (before, after) in growth.widths.items():
        assert anatomy[width].size == before
        assert after - before == sum(growth.added.get(width, {}).values())
    assert growth.candidates == sum(anatomy[w].size + max(1, 4 // anatomy[w].block) for w in growth.widths)


# ---- neighbourhoods and widths ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["split", "new"])
def test_a_neighborhood_of_one_kind_adds_that_kind_only(kind: str) -> None:
    entry = ZOO["vgg"]
    model, _ = make_trained(entry)
    neighborhood = {"split": [firefly.Split()], "new": firefly.New(4)}[kind]
    growth = grow(model, entry, neighborhood=neighborhood, budget=firefly.Neurons(5))
    assert growth.neurons == 5
    assert sum(kinds[kind] for kinds in growth.added.values()) == 5
    sizes = sum(width.size for width in trace_entry("vgg").growable())
    assert growth.candidates == {"split": sizes, "new": 3 * 4}[kind]


def test_ranking_by_magnitude_takes_no_kind_that_was_not_asked_for() -> None:
    entry = ZOO["mlp"]
    growth = grow(entry.make(), entry, neighborhood=[firefly.New(2)], rank="magnitude", budget=firefly.Neurons(10))
    assert growth.added == {"0": {"new": 2}, "2": {"new": 2}}


def test_widths_are_chosen_by_name_or_by_filter() -> None:
    entry = ZOO["vgg"]
    assert set(grow(entry.make(), entry, widths=["features.4"]).widths) == {"features.4"}
    assert set(grow(entry.make(), entry, widths="features.0").widths) == {"features.0"}
    small = grow(entry.make(), entry, widths=lambda width: width.size < 12)
    assert set(small.widths) == {"features.0", "features.7"}


def test_a_width_of_heads_gets_whole_heads() -> None:
    entry = ZOO["gpt"]
    model, _ = make_trained(entry)
    growth = grow(model, entry, widths=["blocks.0.attn.q"], budget=firefly.Neurons(3))
    assert growth.widths == {"blocks.0.attn.q": (4, 7)}
    attention = model.blocks[0].attn
    assert attention.q.weight.shape == attention.v.weight.shape == (28, 16)
    assert attention.proj.weight.shape == (16, 28) and attention.n_head == 7


# ---- budgets ---------------------------------------------------------------------------------------------------------

BUDGETED = ["mlp", "vgg", "conv_flatten", "resnext", "gpt"]


@pytest.mark.parametrize("name", BUDGETED)
@pytest.mark.parametrize("count", [1, 4, 9])
def test_neurons_are_exact(name: str, count: int) -> None:
    model, _ = make_trained(ZOO[name])
    growth = grow(model, ZOO[name], budget=firefly.Neurons(count))
    assert growth.neurons == count and not growth.notes
    assert growth.spent == {"neurons": (count, count)}


@pytest.mark.parametrize("name", BUDGETED)
@pytest.mark.parametrize("what", ["parameters", "flops"])
def test_costs_stay_within_the_budget_and_use_it_up(name: str, what: str) -> None:
    model, _ = make_trained(ZOO[name])
    anatomy = trace_entry(name)
    cost = {"parameters": anatomy.parameters, "flops": anatomy.flops}[what]
    allowed = 0.25 * cost()
    budget = firefly.Parameters(fraction=0.25) if what == "parameters" else firefly.Flops(fraction=0.25)
    growth = grow(model, ZOO[name], budget=budget, neighborhood=[firefly.Split(), firefly.New(20)])
    before, after = getattr(growth, what)
    assert 0 < after - before <= allowed
    assert growth.spent[what] == pytest.approx((after - before, allowed), abs=1)
    sizes = {width: size for width, (_, size) in growth.widths.items()}
    assert after == cost(sizes)
    assert all(cost({**sizes, width: size + 1}) - before > allowed for width, size in sizes.items())


def test_joined_budgets_hold_both() -> None:
    entry = ZOO["vgg"]
    neurons, parameters = firefly.Neurons(7), firefly.Parameters(300)
    loose = grow(make_trained(entry)[0], entry, budget=neurons & firefly.Parameters(10**6))
    tight = grow(make_trained(entry)[0], entry, budget=firefly.Neurons(10**4) & parameters)
    both = grow(make_trained(entry)[0], entry, budget=neurons & parameters)
    assert loose.neurons == 7
    assert tight.parameters[1] - tight.parameters[0] <= 300
    assert both.neurons <= 7 and both.parameters[1] - both.parameters[0] <= 300
    assert set(both.spent) == {"neurons", "parameters"}


def test_fractions_are_of_what_may_grow() -> None:
    entry = ZOO["mlp"]  # widths of 16 and 12 neurons, 400 parameters

    def quarter(budget: Any, **options: Any) -> firefly.Growth:
        return grow(make_trained(entry)[0], entry, budget=budget(fraction=0.25), **options)

    assert quarter(firefly.Neurons).neurons == 7
    assert quarter(firefly.Neurons, widths=["2"]).neurons == 3
    assert quarter(firefly.Parameters).spent["parameters"][1] == 100
    assert quarter(firefly.Flops).spent["flops"][1] == 184


def test_fewer_than_the_budget_is_said() -> None:
    entry = ZOO["mlp"]
    model, _ = make_trained(entry)
    growth = grow(model, entry, budget=firefly.Neurons(1000), neighborhood=SMALL)
    assert 0 < growth.neurons < 1000
    assert len(growth.notes) >= 1 and "candidate" in growth.notes[0] and growth.notes[0] in str(growth)


def test_a_budget_that_is_used_up_needs_no_excuse() -> None:
    entry = ZOO["mlp"]
    method = Method(score=lambda over, *_: {n: (e > 0).float() for n, e in over.epsilon.items()}, trust=False)
    options = {"neighborhood": [firefly.New(3)], "widths": ["0"], "method": method}
    growth = grow(entry.make(), entry, budget=firefly.Neurons(3), **options)
    assert growth.neurons == 3 and not growth.notes


def test_a_budget_too_small_for_any_neuron_is_said() -> None:
    growth = grow(ZOO["mlp"].make(), ZOO["mlp"], budget=firefly.Parameters(3))
    assert growth.neurons == 0 and growth.notes


@pytest.mark.parametrize("budget", [firefly.Neurons, firefly.Parameters, firefly.Flops])
def test_budgets_that_make_no_sense_are_refused(budget: Any) -> None:
    for given in ((), (0,), (-3,), (float("nan"),), ("many",), (3, 0.5)):
        with pytest.raises(firefly.FireflyError, match=budget.__name__):
            budget(*given)
    with pytest.raises(firefly.FireflyError, match="above 0"):
        budget(fraction=0.0)
