"""NASH: random widenings that preserve the function, each trained and judged; the best becomes the model."""

from typing import Any

import pytest
import torch
from torch import nn

import firefly
from firefly.baselines.nash import nash
from firefly.surgery.residual import find_layers
from laws import (
    assert_close,
    assert_optimizer_fits,
    assert_untouched,
    in_double,
    loss_on,
    make_trained,
    run,
    snapshot,
    trace_entry,
)
from zoo import ZOO, Entry

PLACES = ["features.2", "features.6", "features.9"]  # of the vgg's dormant layers


def climb(model: nn.Module, entry: Entry, **options: Any) -> firefly.Growth:
    given: dict[str, Any] = {"tune": lambda child: None, "judge": lambda child: 0.0, "neighbours": 3} | options
    given.setdefault("anatomy", trace_entry(entry.name))
    return nash(model, entry.loss, entry.batches(), example=entry.example(), **given)


def marked(values: list[float]) -> tuple[list[nn.Module], dict[str, Any]]:
    """Children that reach these values, in turn, each with a mark of its own in its last bias."""
    children: list[nn.Module] = []

    def tune(child: nn.Module) -> None:
        children.append(child)
        with torch.no_grad():
            list(child.parameters())[-1].fill_(float(len(children)))

    def judge(child: nn.Module) -> float:
        return values[children.index(child)]

    return children, {"tune": tune, "judge": judge, "neighbours": len(values)}


@pytest.mark.parametrize("kind", ["split", "new"])
@pytest.mark.parametrize("name", ["mlp", "vgg", "resnet"])
def test_the_best_neighbour_wins(name: str, kind: str) -> None:
    entry = ZOO[name]
    model, optimizer = make_trained(entry)
    children, how = marked([0.4, 0.1, 0.3])
    layers = list(model.modules())
    growth = climb(model, entry, kind=kind, optimizer=optimizer, **how)
    assert len(children) == 3 and model not in children
    assert all(a is b for a, b in zip(layers, model.modules()))
    for key, value in model.state_dict().items():
        assert torch.equal(value, children[1].state_dict()[key]), key
    assert growth.neurons == int(0.3 * sum(before for before, _ in growth.widths.values()))
    assert sum(added[kind] for added in growth.added.values()) == growth.neurons
    assert growth.notes == ("the best of 3 neighbours, trained: 0.4, 0.1, 0.3",)
    assert_optimizer_fits(model, optimizer)
    entry.loss(model, entry.batches()[0]).backward()
    optimizer.step()


def test_neighbours_differ_and_have_the_same_number_of_neurons() -> None:
    entry = ZOO["vgg"]
    children, how = marked([0.5] * 6)
    climb(entry.make(), entry, **how)
    sizes = [tuple(child.features[k].out_channels for k in (0, 4, 7)) for child in children]
    assert {sum(size) for size in sizes} == {30 + 9}
    assert len(set(sizes)) > 2


@pytest.mark.parametrize("count", [1, 2])
def test_the_reported_loss_is_that_of_the_batches_asked_for(count: int) -> None:
    entry = ZOO["mlp"]
    model, _ = make_trained(entry)
    before = loss_on(model, entry, count)
    assert climb(model, entry, evaluate_on=count).loss_before == pytest.approx(before, rel=1e-5)


def test_of_equal_neighbours_the_first_wins() -> None:
    entry = ZOO["vgg"]
    model = entry.make()
    children, how = marked([0.5, 0.2, 0.2, 0.2])
    climb(model, entry, **how)
    assert all(map(torch.equal, model.state_dict().values(), children[1].state_dict().values()))


def test_a_neighbour_that_is_not_a_number_loses() -> None:
    entry = ZOO["mlp"]
    model = entry.make()
    children, how = marked([float("nan"), 0.2])
    climb(model, entry, **how)
    assert all(map(torch.equal, model.state_dict().values(), children[1].state_dict().values()))


@pytest.mark.parametrize(("kind", "noise"), [("split", 0.0), ("new", 0.05)])
@pytest.mark.parametrize("name", ["mlp", "vgg", "resnet"])
def test_the_widening_preserves_the_function(name: str, kind: str, noise: float) -> None:
    entry = in_double(ZOO[name])
    model = make_trained(entry)[0].eval()
    before = run(model, entry.example())
    growth = climb(model, entry, kind=kind, noise=noise)
    assert growth.neurons and growth.output_change < 1e-12
    assert_close(run(model, entry.example()), before, 1e-12)


def test_the_parent_may_stay() -> None:
    entry = ZOO["vgg"]
    model, optimizer = make_trained(entry)
    sizes = {name: value.shape for name, value in model.state_dict().items()}
    children, how = marked([0.1, 0.2, 0.3])
    growth = climb(model, entry, keep_parent=True, optimizer=optimizer, **how)
    assert growth.neurons == 0 and growth.parameters[0] == growth.parameters[1]
    assert {name: value.shape for name, value in model.state_dict().items()} == sizes
    assert all(map(torch.equal, model.state_dict().values(), children[0].state_dict().values()))
    assert "not widened" in growth.notes[0] and growth.notes[1].endswith("0.1, 0.2, 0.3, the parent first")
    assert_optimizer_fits(model, optimizer)
    _, how = marked([0.3, 0.2, 0.1])
    assert climb(model, entry, keep_parent=True, **how).neurons == 9


# ---- new layers ------------------------------------------------------------------------------------------------------


def make_deep(entry: Entry, count: int) -> tuple[nn.Module, firefly.Anatomy]:
    model = make_trained(entry)[0]
    firefly.deepen(model, entry.example(), count=count)
    return model, firefly.trace(model, entry.example())


def list_awake(model: nn.Module) -> list[str]:
    return [path for path, layer in find_layers(model).items() if not layer.dormant]


def test_every_place_gets_one_layer_and_the_function_stays() -> None:
    entry = in_double(ZOO["vgg"])
    model, anatomy = make_deep(entry, 2)
    model.eval()
    before = run(model, entry.example())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    budget = firefly.Neurons(5)
    growth = climb(model, entry, insert=3, noise=0.0, budget=budget, anatomy=anatomy, optimizer=optimizer)
    awake = list_awake(model)
    assert growth.woken == awake and [path.rpartition(".deeper.")[0] for path in awake] == PLACES
    assert all(growth.added[path] == {"new": 3} for path in awake)
    assert sum(kinds.get("split", 0) for kinds in growth.added.values()) == 5 == growth.neurons - 9
    assert growth.output_change < 1e-12
    assert_close(run(model, entry.example()), before, 1e-12)
    assert growth.parameters == (anatomy.parameters(), sum(p.numel() for p in model.parameters()))
    assert_optimizer_fits(model, optimizer)
    for path in awake:
        layer = find_layers(model)[path]
        assert layer.make.weight.abs().sum() > 0 and not layer.read.weight.any()


def test_neighbours_have_their_new_layers_in_other_places() -> None:
    entry = ZOO["vgg"]
    model, anatomy = make_deep(entry, 4)
    children, how = marked([0.5, 0.4, 0.3, 0.2])
    climb(model, entry, insert=2, anatomy=anatomy, **how)
    places = [tuple(list_awake(child)) for child in children]
    assert all(len(awake) == 3 for awake in places) and len(set(places)) > 1
    assert tuple(list_awake(model)) == places[3]
    rows = {find_layers(child)[path].make.weight.sum().item() for child, (path, *_) in zip(children, places)}
    assert len(rows) == 4  # and with other weights


def test_where_no_layer_sleeps_any_more_it_only_widens() -> None:
    entry = ZOO["vgg"]
    model, anatomy = make_deep(entry, 1)
    climb(model, entry, insert=2, anatomy=anatomy)
    awake = list_awake(model)
    growth = climb(model, entry, insert=2, anatomy=firefly.trace(model, entry.example()))
    assert len(awake) == 3 and not growth.woken and growth.neurons > 0


def test_without_insert_dormant_layers_sleep_on() -> None:
    entry = ZOO["vgg"]
    model, anatomy = make_deep(entry, 1)
    growth = climb(model, entry, anatomy=anatomy)
    assert growth.neurons and not growth.woken and not list_awake(model)


def test_the_parent_gets_no_layer() -> None:
    entry = ZOO["vgg"]
    model, anatomy = make_deep(entry, 1)
    _, how = marked([0.1, 0.2])
    growth = climb(model, entry, insert=2, keep_parent=True, anatomy=anatomy, **how)
    assert not growth.neurons and not list_awake(model)


def test_training_decides_with_data_held_out() -> None:
    """The whole of a step: each neighbour trains for a while, the winner's error is the lowest of all."""
    entry = ZOO["vgg"]
    *seen, held_out = entry.batches()
    errors = []

    def tune(child: nn.Module) -> None:
        optimizer = torch.optim.SGD(child.parameters(), lr=0.05, momentum=0.9)
        for batch in seen * 4:
            optimizer.zero_grad()
            entry.loss(child, batch).backward()
            optimizer.step()

    @torch.no_grad()
    def judge(child: nn.Module) -> float:
        errors.append(entry.loss(child.eval(), held_out).item())
        return errors[-1]

    model = entry.make()
    climb(model, entry, tune=tune, judge=judge)
    assert len(set(errors)) == 3
    assert judge(model) == pytest.approx(min(errors[:3]), rel=1e-6)


def test_a_seed_decides_everything() -> None:
    entry = ZOO["vgg"]
    models = [entry.make().eval() for _ in range(3)]
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    for model, seed in zip(models, (2, 2, 3)):
        climb(model, entry, seed=seed, neighbours=1, tune=lambda child: torch.rand(7))
    assert torch.equal(torch.rand(3), expected)
    assert all(map(torch.equal, models[0].state_dict().values(), models[1].state_dict().values()))
    assert not torch.equal(models[0].features[0].weight[:8], models[2].features[0].weight[:8])


def test_a_search_that_fails_leaves_everything_alone() -> None:
    entry = ZOO["vgg"]
    model, optimizer = make_trained(entry)
    before = snapshot(model, optimizer)

    def fail(child: nn.Module) -> float:
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        climb(model, entry, judge=fail, optimizer=optimizer)
    with pytest.raises(firefly.FireflyError, match="none of the 3 tuned copies"):
        climb(model, entry, judge=lambda child: float("nan"), optimizer=optimizer)
    assert_untouched(before, snapshot(model, optimizer))


def test_what_it_cannot_do_is_said() -> None:
    entry = ZOO["mlp"]
    model = entry.make()
    for options, words in (
        ({"neighbours": 0}, "neighbours=0.*at least 1"),
        ({"neighbours": 1, "keep_parent": True}, "neighbours=1.*at least 2"),
        ({"insert": 1}, "insert=1.*at least 2 neurons"),
        ({"kind": "both"}, "kind='both'.*'split' or 'new'"),
        ({"kind": "new", "count": 1}, "more than the 2 candidates"),
        ({"budget": firefly.Neurons(99)}, "more than the 28 candidates"),
    ):
        with pytest.raises(firefly.FireflyError, match=words):
            climb(model, entry, **options)
    assert model[0].weight.shape == (16, 8)
