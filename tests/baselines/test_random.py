"""Random growth: blind, deterministic for a seed; random search keeps the best of its tries."""

from collections import Counter

import pytest
import torch
from torch import Tensor, nn

import firefly
from firefly.baselines import random_growth, random_search

BATCH = (
    torch.randn(16, 3, generator=torch.Generator().manual_seed(1)),
    torch.randn(16, 2, generator=torch.Generator().manual_seed(2)),
)
BOTH = [firefly.Split(), firefly.New(4)]


def make_model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2))


def squares(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
    return (model(batch[0]) - batch[1]).square().mean()


ANATOMY = firefly.trace(make_model(), BATCH[0])
SHARED = {"example": BATCH[0], "neighborhood": BOTH, "budget": firefly.Neurons(1), "anatomy": ANATOMY}


def grow(model: nn.Module, seed: int) -> firefly.Growth:
    return firefly.grow(model, squares, [BATCH], **SHARED, method=random_growth(), seed=seed)


def who_grew(seed: int) -> tuple[str, int | None]:
    """Which candidate a growth took: a neuron that split, or a new one."""
    model = make_model()
    before = model[0].weight.detach().clone()
    kind = next(kind for kind, count in grow(model, seed).added["0"].items() if count)
    moved = [i for i in range(4) if not torch.equal(model[0].weight[i], before[i])]
    return kind, moved[0] if moved else None


def test_every_candidate_has_its_chance() -> None:
    seen = Counter(who_grew(seed) for seed in range(120))
    assert set(seen) == {("split", i) for i in range(4)} | {("new", None)}
    assert all(4 <= count <= 32 for (kind, _), count in seen.items() if kind == "split")  # 15 expected
    assert 40 <= seen["new", None] <= 80  # 60 expected


def test_what_a_neuron_costs_does_not_decide_its_chance() -> None:
    """A neuron of the first width costs 25 parameters, one of the second 6; the budget is for one of the first."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(20, 4), nn.Tanh(), nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 1))
    data = torch.randn(16, 20), torch.randn(16, 1)
    how = {"example": data[0], "anatomy": firefly.trace(model, data[0]), "neighborhood": firefly.Split()}
    how |= {"budget": firefly.Parameters(25), "method": random_growth(), "preview": True}
    dear = sum("0" in firefly.grow(model, squares, [data], **how, seed=seed).added for seed in range(30))
    assert 7 <= dear <= 23  # 15 expected


def test_a_seed_decides_everything_and_the_data_nothing() -> None:
    models = [make_model() for _ in range(3)]
    grow(models[0], 3)
    firefly.grow(models[1], lambda m, b: -squares(m, b), [BATCH], **SHARED, method=random_growth(), seed=3)
    grow(models[2], 4)
    same = [torch.equal(a, b) for a, b in zip(models[0].state_dict().values(), models[1].state_dict().values())]
    assert all(same)
    assert not torch.equal(models[0][0].weight, models[2][0].weight)


def test_directions_are_random_too() -> None:
    steps = []
    for seed in range(12):
        model = make_model()
        before = model[0].weight.detach().clone()
        if grow(model, seed).added["0"]["split"]:
            steps.append(nn.functional.normalize((model[0].weight[:4] - before).sum(0), dim=0))
    cosines = torch.stack(steps) @ torch.stack(steps).T
    assert cosines.fill_diagonal_(0).abs().max() < 0.999


def test_search_keeps_the_best_of_its_tries() -> None:
    model, children, reached = make_model(), [], []
    first = model[0]
    optimizer = torch.optim.Adam(model.parameters())

    def tune(child: nn.Module) -> None:
        children.append(child)
        with torch.no_grad():
            child[2].bias.fill_([0.3, 0.1, 0.2][len(children) - 1])

    def judge(child: nn.Module) -> float:
        reached.append(child[2].bias[0].item())
        return reached[-1]

    growth = random_search(model, squares, [BATCH], **SHARED, tune=tune, judge=judge, optimizer=optimizer)
    assert len(children) == 3 and all(child is not model for child in children)
    assert model[0] is first and growth.neurons == 1
    for name, value in model.state_dict().items():
        assert torch.equal(value, children[1].state_dict()[name])
    held = [p for group in optimizer.param_groups for p in group["params"]]
    assert {id(p) for p in held} == {id(p) for p in model.parameters()}
    assert "0.3, 0.1, 0.2" in growth.notes[-1]


def test_search_tunes_by_itself_and_disturbs_nothing() -> None:
    model = make_model()
    before = squares(model, BATCH).item()
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    growth = random_search(model, squares, iter([BATCH]), **SHARED, iterations=50, lr=0.01)
    assert torch.equal(torch.rand(3), expected)
    reached = [float(word) for word in growth.notes[-1].split(": ")[1].split(", ")]
    assert squares(model, BATCH).item() == pytest.approx(min(reached), rel=1e-3)
    assert min(reached) < before
    assert all(p.grad is None for p in model.parameters())


def test_a_search_that_fails_leaves_the_model_alone() -> None:
    model = make_model()
    before = {name: value.clone() for name, value in model.state_dict().items()}

    def fail(child: nn.Module) -> None:
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        random_search(model, squares, [BATCH], **SHARED, tune=fail)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


def test_a_search_needs_a_try() -> None:
    with pytest.raises(firefly.FireflyError, match="tries=0"):
        random_search(make_model(), squares, [BATCH], **SHARED, tries=0)
