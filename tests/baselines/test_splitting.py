"""Splitting steepest descent: the matrix-free eigenvectors are those of the explicit splitting matrices."""

import math

import pytest
import torch
from torch import Tensor, nn

import firefly
from firefly.baselines import splitting
from firefly.baselines.splitting import dot, find_directions, find_lowest, multiply, score_curvature
from firefly.experiments.rbf import RBF, draw_network, draw_truth, mean_square, train
from firefly.neighborhood.overgrown import OverGrown
from firefly.stages.step_one import Steps
from laws import in_double, overgrown_loss
from zoo import ZOO

STEPS = Steps(100, 0.1, lambda step, steps: None)


def overgrow(model: nn.Module, example: Tensor) -> OverGrown:
    anatomy = firefly.trace(model, example)
    names = [width.name for width in anatomy.growable()]
    return OverGrown(model, anatomy, names, [firefly.Split()], torch.Generator().manual_seed(0))


def squares(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
    return (model(batch[0]) - batch[1]).square().mean()


def half_trained_rbf() -> tuple[RBF, tuple[Tensor, Tensor]]:
    data = draw_truth(7)
    net = draw_network(5, 1.0, 3)
    train([net], [data], 500, 0.03, torch.float64)
    return net, data


def splitting_matrices(net: RBF, data: tuple[Tensor, Tensor]) -> Tensor:
    """S_i = E[∂L/∂f · w_i · σ''(t_i) · x̂x̂ᵀ] with σ'' = (t² - 1)·exp(-t²/2), x̂ = (x, 1)."""
    x, y = data
    with torch.no_grad():
        t = net.hidden(x)
        weight = 2 * (net(x) - y) / len(x) * net.out.weight * (t.square() - 1) * torch.exp(-t.square() / 2)
    inputs = torch.cat([x, torch.ones_like(x)], 1)
    return torch.einsum("nc,nd,ne->cde", weight, inputs, inputs)


def conv_net() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(2, 3, 3, padding=1), nn.BatchNorm2d(3), nn.SiLU(),
        nn.Conv2d(3, 4, 3, bias=False), nn.Tanh(), nn.Flatten(), nn.Linear(64, 2),
    ).double()  # fmt: skip


IMAGES = (torch.randn(8, 2, 6, 6, generator=torch.Generator().manual_seed(1), dtype=torch.float64), torch.ones(8, 2))


def test_directions_are_the_lowest_eigenvectors() -> None:
    net, data = half_trained_rbf()
    values, vectors = torch.linalg.eigh(splitting_matrices(net, data))
    over = overgrow(net, data[0])
    over.turn(find_directions(over, mean_square, [data], STEPS, step=0.01, iterations=20, count=8, sharpness=3.0))
    found = torch.cat([over.delta["hidden.weight"], over.delta["hidden.bias"][:, None]], 1).detach()
    assert torch.allclose((found * vectors[:, :, 0]).sum(1).abs(), torch.ones(5, dtype=torch.float64), atol=1e-9)
    gains = score_curvature(over, mean_square, [data], "joint", sharpness=3.0)["hidden"]
    assert torch.allclose(gains, -0.5 * 0.01**2 * values[:, 0], rtol=1e-5)


@pytest.mark.parametrize("training", [True, False])
def test_curvature_is_the_change_of_the_loss(training: bool) -> None:
    """½ uᵀSu is what one split changes, for every neuron of every layer, also with batch norm in train mode."""
    model = conv_net().train(training)
    over = overgrow(model, IMAGES[0])
    assert set(over.rosters) == {"0", "3"}
    vectors = {name: delta.detach() for name, delta in over.delta.items()}
    curvature = dot(over, vectors, multiply(over, squares, [IMAGES], vectors))
    off = {name: torch.zeros_like(epsilon, dtype=torch.float64) for name, epsilon in over.epsilon.items()}
    before = overgrown_loss(over, squares, [IMAGES], off)
    step = 1e-3
    for name, values in curvature.items():
        for i, value in enumerate(values):
            one = {key: epsilon.clone() for key, epsilon in off.items()}
            one[name][i] = step / over.scale[name][i]
            change = overgrown_loss(over, squares, [IMAGES], one) - before
            assert math.isclose(change, 0.5 * step**2 * value, rel_tol=2e-3, abs_tol=1e-11)


def test_matrices_of_a_deep_network_by_hand() -> None:
    """S of the second hidden layer, whose neurons read split ones: E[∂L/∂a · σ''(u) · ĥĥᵀ]."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 2)).double()
    x, y = torch.randn(16, 3).double(), torch.randn(16, 2).double()
    hidden = model[:2](x).detach()
    u = model[2](hidden).detach()
    a = torch.tanh(u).requires_grad_()
    (slope,) = torch.autograd.grad((model[4](a) - y).square().mean(), a)
    inputs = torch.cat([hidden, torch.ones(16, 1)], 1)
    curved = -2 * torch.tanh(u) * (1 - torch.tanh(u).square())
    expected = torch.einsum("nc,nd,ne->cde", slope * curved, inputs, inputs)
    over = overgrow(model, x)
    start = {name: delta.detach() for name, delta in over.delta.items()}
    found = explicit(lambda vectors: multiply(over, squares, [(x, y)], vectors), start, ["2.weight", "2.bias"])
    assert torch.allclose(found, expected, rtol=1e-6, atol=1e-9)  # the scale of a neuron is kept in float32


def test_lanczos_agrees_with_eigh_for_neurons_of_every_size() -> None:
    """Explicit matrices from products with unit vectors; the neurons own 19, 27 and 4 weights."""
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(2, 3, 3), nn.Tanh(), nn.Conv2d(3, 4, 3, bias=False), nn.Tanh(), nn.Flatten(),
        nn.Linear(16, 3), nn.SiLU(), nn.Linear(3, 5), nn.SiLU(), nn.Linear(5, 2),
    ).double()  # fmt: skip
    over = overgrow(model, IMAGES[0])

    def product(vectors: dict[str, Tensor]) -> dict[str, Tensor]:
        return multiply(over, squares, [IMAGES], vectors)

    start = {name: delta.detach() for name, delta in over.delta.items()}
    values, vectors = find_lowest(over, product, start, 27)
    for width, tensors in {"0": ["0.weight", "0.bias"], "2": ["2.weight"], "7": ["7.weight", "7.bias"]}.items():
        expected = torch.linalg.eigvalsh(explicit(product, start, tensors))[:, 0]
        assert torch.allclose(values[width], expected, rtol=1e-6, atol=1e-12), width
    for length in dot(over, vectors, vectors).values():
        assert torch.allclose(length, torch.ones_like(length))


def explicit(product, like: dict[str, Tensor], tensors: list[str]) -> Tensor:
    """(n, D, D): one product for each of a neuron's D weights, all its siblings at once."""
    zero = {name: torch.zeros_like(tensor) for name, tensor in like.items()}
    columns = []
    for name in tensors:
        for k in range(like[name].flatten(1).shape[1] if like[name].ndim > 1 else 1):
            unit = {key: value.clone() for key, value in zero.items()}
            unit[name].view(len(unit[name]), -1)[:, k] = 1
            found = product(unit)
            columns.append(torch.cat([found[key].view(len(found[key]), -1) for key in tensors], 1))
    return torch.stack(columns, 2)


def test_grow_splits_the_neuron_with_the_lowest_eigenvalue() -> None:
    net, data = half_trained_rbf()
    lowest, where = torch.linalg.eigh(splitting_matrices(net, data))[0][:, 0].min(0)
    before = net.hidden.weight.detach().clone()
    growth = firefly.grow(
        net, mean_square, [data], example=data[0], neighborhood=[firefly.Split()], budget=firefly.Neurons(1),
        method=splitting(step=0.01),
    )  # fmt: skip
    assert growth.added == {"hidden": {"split": 1}}
    moved = [i for i in range(5) if not torch.equal(net.hidden.weight[i], before[i])]
    assert moved == [where.item()]
    copies = torch.stack([torch.cat([net.hidden.weight[i], net.hidden.bias[i, None]]) for i in (where.item(), 5)])
    assert math.isclose((copies[0] - copies[1]).norm().item(), 0.02, rel_tol=1e-5)
    assert math.isclose(growth.loss_after - growth.loss_before, 0.5 * 0.01**2 * lowest, rel_tol=0.01)


def test_without_negative_curvature_nothing_splits_unless_always() -> None:
    """The top of a bump that is too low: moving its copies apart makes it lower still, so that λ > 0."""
    x = torch.linspace(-0.9, 0.9, 50, dtype=torch.float64)[:, None]
    net = draw_network(1, 1.0, 0)
    for row, value in zip(net.rows(), (1.0, 0.0, 1.0)):
        row.fill_(value)
    data = (x, 1.1 * net(x).detach())
    assert torch.linalg.eigvalsh(splitting_matrices(net, data)).min() > 0
    how = {"example": x, "neighborhood": [firefly.Split()], "budget": firefly.Neurons(1)}
    growth = firefly.grow(net, mean_square, [data], **how, method=splitting())
    assert growth.neurons == 0 and net.neurons == 1
    assert growth.notes
    assert firefly.grow(net, mean_square, [data], **how, method=splitting(always=True)).neurons == 1


@pytest.mark.parametrize("name", ["vit", "gpt", "convnext", "llama"])
def test_the_promise_is_kept_in_models_of_every_kind(name: str) -> None:
    entry = in_double(ZOO[name])
    model, example, batches = entry.make(), entry.example(), entry.batches()
    growth = firefly.grow(
        model, entry.loss, batches, example=example, neighborhood=[firefly.Split()], budget=firefly.Neurons(2),
        method=splitting(step=1e-3, iterations=5),
    )  # fmt: skip
    assert growth.neurons == 2 and growth.predicted > 0
    assert math.isclose(growth.loss_before - growth.loss_after, growth.predicted, rel_tol=0.05)


def test_a_linear_layer_never_splits() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 2))
    batch = (torch.randn(8, 3), torch.randn(8, 2))
    growth = firefly.grow(
        model, squares, [batch], example=batch[0], neighborhood=[firefly.Split()], method=splitting()
    )  # fmt: skip
    assert growth.neurons == 0


def test_what_it_cannot_do_is_said() -> None:
    net, data = half_trained_rbf()
    with pytest.raises(firefly.FireflyError, match=r"neighborhood=\[firefly.Split\(\)\]"):
        firefly.grow(net, mean_square, [data], example=data[0], neighborhood=firefly.New(), method=splitting())
    with pytest.raises(firefly.FireflyError, match="step=0"):
        splitting(step=0)
