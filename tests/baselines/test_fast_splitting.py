"""Fast splitting: following the Rayleigh quotients leads to the eigenvectors that exact splitting finds."""

import copy
import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import firefly
from firefly.baselines import fast_splitting, splitting
from firefly.baselines.fast_splitting import descend_quotients, differentiate_quotients
from firefly.baselines.splitting import dot, find_lowest, multiply
from firefly.experiments.rbf import RBF, draw_network, draw_truth, mean_square, train
from firefly.neighborhood.overgrown import OverGrown

Batch = tuple[Tensor, Tensor]


def overgrow(model: nn.Module, example: Tensor) -> OverGrown:
    anatomy = firefly.trace(model, example)
    names = [width.name for width in anatomy.growable()]
    return OverGrown(model, anatomy, names, [firefly.Split()], torch.Generator().manual_seed(0))


def squares(model: nn.Module, batch: Batch) -> Tensor:
    return (model(batch[0]) - batch[1]).square().mean()


def conv_net() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(2, 3, 3), nn.BatchNorm2d(3), nn.ReLU(), nn.Conv2d(3, 4, 3, bias=False), nn.Tanh(), nn.Flatten(),
        nn.Linear(16, 2),
    ).double().eval()  # fmt: skip


def draw_batches(count: int) -> list[Batch]:
    generator = torch.Generator().manual_seed(1)
    images = torch.randn(count, 16, 2, 6, 6, generator=generator, dtype=torch.float64)
    return [(x, x.mean((2, 3)) + x[:, :, 2, 2].square()) for x in images]


def half_trained_rbf() -> tuple[RBF, Batch]:
    data = draw_truth(7)
    net = draw_network(5, 1.0, 3)
    train([net], [data], 500, 0.03, torch.float64)
    return net, data


def compare(over: OverGrown, batches: list[Batch], iterations: int) -> tuple[dict[str, Any], dict[str, Any], Any]:
    """λ by mini-batches and by Lanczos on all of them, and the cosines of their vectors."""
    start = {name: delta.detach() for name, delta in over.delta.items() if over.layouts[name].role("makes") is not None}

    def product(k: int, vectors: dict[str, Tensor]) -> dict[str, Tensor]:
        return multiply(over, squares, [batches[k % len(batches)]], vectors)

    fast, turned = descend_quotients(over, product, start, iterations, 0.05)
    exact, vectors = find_lowest(over, lambda v: multiply(over, squares, batches, v), start, 27)
    return fast, exact, {name: value.abs() for name, value in dot(over, turned, vectors).items()}


def test_one_batch_over_and_over_leads_to_the_lowest_eigenvectors() -> None:
    batches = draw_batches(1)
    fast, exact, cosines = compare(overgrow(conv_net(), batches[0][0]), batches, 600)
    assert set(fast) == {"0", "3"}
    for name, values in exact.items():
        assert torch.allclose(fast[name], values, rtol=0.02), name
        assert (fast[name] >= values - 1e-12).all()  # no quotient is below the lowest eigenvalue
        assert cosines[name].min() > 0.98


def test_mini_batches_lead_there_too() -> None:
    batches = draw_batches(8)
    fast, exact, cosines = compare(overgrow(conv_net(), batches[0][0]), batches, 400)
    found, expected = (torch.cat(list(values.values())) for values in (fast, exact))
    ranks = torch.stack([values.argsort().argsort().double() for values in (found, expected)])
    assert torch.corrcoef(ranks)[0, 1] > 0.9
    assert torch.cat(list(cosines.values())).mean() > 0.9


def test_slopes_are_those_of_the_quotients() -> None:
    """∂(vᵀSv / vᵀv)/∂v = 2(Sv - λv) / vᵀv, against differences."""
    batches = draw_batches(1)
    over = overgrow(conv_net(), batches[0][0])
    vectors = {name: delta.detach() for name, delta in over.delta.items() if "makes" in over.layouts[name].roles}
    values, slopes = differentiate_quotients(over, vectors, multiply(over, squares, batches, vectors))
    direction = {name: torch.randn_like(vector) for name, vector in vectors.items()}
    there = {name: vector + 1e-6 * direction[name] for name, vector in vectors.items()}
    moved, _ = differentiate_quotients(over, there, multiply(over, squares, batches, there))
    expected, square = dot(over, slopes, direction), dot(over, vectors, vectors)
    for name, value in values.items():
        assert torch.allclose((moved[name] - value) / 1e-6, 2 * expected[name] / square[name], rtol=1e-3, atol=1e-9)


def grow(net: nn.Module, data: Batch, **options: Any) -> firefly.Growth:
    given = {"neighborhood": [firefly.Split()], "budget": firefly.Neurons(1), "method": fast_splitting()} | options
    return firefly.grow(net, mean_square, [data], example=data[0], **given)


def test_grow_splits_the_neuron_that_exact_splitting_splits() -> None:
    start, data = half_trained_rbf()
    nets = [copy.deepcopy(start) for _ in range(2)]
    methods = (splitting(step=0.01), fast_splitting(step=0.01, iterations=300))
    exact, fast = (grow(net, data, method=method) for net, method in zip(nets, methods))
    assert exact.added == fast.added == {"hidden": {"split": 1}}
    assert math.isclose(fast.predicted, exact.predicted, rel_tol=0.01)
    assert math.isclose(fast.loss_before - fast.loss_after, fast.predicted, rel_tol=0.02)
    before, *after = (torch.cat([net.hidden.weight, net.hidden.bias[:, None]], 1).detach() for net in (start, *nets))
    steps = [rows[:5] - before for rows in after]
    assert torch.equal(steps[0].norm(dim=1) > 0, steps[1].norm(dim=1) > 0)
    assert math.isclose(steps[1].norm(), 0.01, rel_tol=1e-4)
    assert torch.cosine_similarity(steps[0].flatten(), steps[1].flatten(), dim=0).abs() > 0.99


def test_a_seed_decides_everything() -> None:
    models = [conv_net().train() for _ in range(3)]
    batches = draw_batches(3)
    for model, seed in zip(models, (0, 0, 1)):
        firefly.grow(
            model, squares, iter(batches), example=batches[0][0], neighborhood=[firefly.Split()], seed=seed,
            method=fast_splitting(iterations=5, always=True), budget=firefly.Neurons(2),
        )  # fmt: skip
    tensors = [list(model.state_dict().values()) for model in models]
    assert all(torch.equal(a, b) for a, b in zip(tensors[0], tensors[1]))
    assert any(a.shape != b.shape or not torch.equal(a, b) for a, b in zip(tensors[0], tensors[2]))


def test_a_method_may_serve_many_growths() -> None:
    """Nothing of one growth is left for the next."""
    method = fast_splitting(iterations=20)
    net, data = half_trained_rbf()
    nets = [copy.deepcopy(net) for _ in range(2)]
    batches = draw_batches(1)
    kinds = [firefly.Split()]
    firefly.grow(conv_net(), squares, batches, example=batches[0][0], neighborhood=kinds, method=method)
    again, fresh = (grow(one, data, method=m) for one, m in zip(nets, (method, fast_splitting(iterations=20))))
    assert again.predicted == fresh.predicted


def test_without_negative_curvature_nothing_splits_unless_always() -> None:
    torch.manual_seed(0)
    batch = (torch.randn(8, 3), torch.randn(8, 2))
    for always, expected in ((False, 0), (True, 1)):
        model = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 2))
        growth = firefly.grow(
            model, squares, [batch], example=batch[0], neighborhood=[firefly.Split()], budget=firefly.Neurons(1),
            method=fast_splitting(iterations=5, always=always),
        )  # fmt: skip
        assert growth.neurons == expected


def test_what_it_cannot_do_is_said() -> None:
    net, data = half_trained_rbf()
    with pytest.raises(firefly.FireflyError, match=r"fast splitting only splits.*neighborhood=\[firefly.Split\(\)\]"):
        grow(net, data, neighborhood=[firefly.Split(), firefly.New(2)])
    with pytest.raises(firefly.FireflyError, match="lr=0"):
        fast_splitting(lr=0)
