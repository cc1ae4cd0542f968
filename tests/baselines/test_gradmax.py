"""GradMax: singular vectors where a neuron is linear, the largest first gradient where it is not; f stays as it is."""

import copy
import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import firefly
from firefly.baselines import gradmax
from laws import in_double
from zoo import ZOO

Batch = tuple[Tensor, Tensor]


def squares(model: nn.Module, batch: Batch) -> Tensor:
    return (model(batch[0]) - batch[1]).square().mean()


def draw(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def seeded(*layers: nn.Module) -> Any:
    """The layers in double precision, with weights from a fixed seed."""
    model = (layers[0] if len(layers) == 1 else nn.Sequential(*layers)).double()
    with torch.no_grad():
        for k, parameter in enumerate(model.parameters()):
            parameter.copy_(0.4 * draw(*parameter.shape, seed=10 + k))
    return model


def grow(model: nn.Module, batch: Batch, count: int, **options: Any) -> firefly.Growth:
    given = {"neighborhood": [firefly.New(count)], "budget": firefly.Neurons(count), "method": gradmax()} | options
    return firefly.grow(model, squares, [batch], example=batch[0], **given)


def rows_of(model: nn.Module, makers: tuple[str, ...]) -> Tensor:
    """All incoming weights of every neuron of a width, one row each."""
    tensors = [model.get_parameter(name).detach() for name in makers]
    return torch.cat([tensor.view(len(tensor), -1) for tensor in tensors], 1)


def slopes_of(model: nn.Module, batch: Batch, readers: tuple[str, ...]) -> Tensor:
    """The gradient of all outgoing weights of every neuron of a width, one row each."""
    found = torch.autograd.grad(squares(model, batch), [model.get_parameter(name) for name in readers])
    return torch.cat([slope.movedim(1, 0).flatten(1) for slope in found], 1)


# ---- linear neurons: an explicit matrix and its singular vectors -----------------------------------------------------


class Stream(nn.Module):
    """A residual stream of 4 channels with two makers and two readers, and no activation in it."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.down, self.up, self.head = nn.Linear(3, 4), nn.Linear(4, 5), nn.Linear(5, 4), nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        stream = self.stem(x)
        return self.head(stream + self.up(torch.tanh(self.down(stream))))


def extra_dense(model: nn.Module, x: Tensor, w: Tensor, out: Tensor) -> Tensor:
    """The network with one more neuron, of incoming weights w and outgoing ones `out`."""
    return model(x) + (x @ w[:5] + w[5])[:, None] * out


def extra_channel(model: nn.Sequential, x: Tensor, w: Tensor, out: Tensor) -> Tensor:
    hidden = F.conv2d(x, w[:18].view(1, 2, 3, 3), w[18:], stride=2, padding=1)
    return torch.tanh(model[:3](x) + F.conv2d(F.avg_pool2d(hidden, 2, 1), out.view(3, 1, 2, 2), padding=1))


def extra_stream(model: Stream, x: Tensor, w: Tensor, out: Tensor) -> Tensor:
    stream, more = model.stem(x), x @ w[:3] + w[8]
    inside = torch.tanh(model.down(stream) + more[:, None] * out[:5])
    late = more + inside @ w[3:8] + w[9]
    return model.head(stream + model.up(inside)) + late[:, None] * out[5:]


def dense() -> Any:
    return seeded(nn.Linear(5, 4), nn.Linear(4, 3))


def strided() -> Any:
    return seeded(nn.Conv2d(2, 4, 3, stride=2, padding=1), nn.AvgPool2d(2, 1), nn.Conv2d(4, 3, 2, padding=1), nn.Tanh())


CASES: dict[str, tuple[Any, Batch, Callable[..., Tensor], tuple[str, ...], tuple[str, ...]]] = {
    "dense": (dense, (draw(40, 5), draw(40, 3, seed=1)), extra_dense, ("0.weight", "0.bias"), ("1.weight",)),
    "convolution": (
        strided,
        (draw(12, 2, 8, 8), draw(12, 3, 4, 4, seed=1)),
        extra_channel,
        ("0.weight", "0.bias"),
        ("2.weight",),
    ),
    "stream": (
        lambda: seeded(Stream()),
        (draw(40, 3), draw(40, 2, seed=1)),
        extra_stream,
        ("stem.weight", "up.weight", "stem.bias", "up.bias"),
        ("down.weight", "head.weight"),
    ),
}


def explicit_matrix(model: nn.Module, batch: Batch, extra: Callable[..., Tensor], rows: int, columns: int) -> Tensor:
    """∂²L/∂w∂out at zero: how the inputs of a new neuron go with the errors that its readers make."""

    def pull(w: Tensor) -> Tensor:
        out = torch.zeros(columns, dtype=torch.float64, requires_grad=True)
        loss = (extra(model, batch[0], w, out) - batch[1]).square().mean()
        return torch.autograd.grad(loss, out, create_graph=True)[0]

    return torch.autograd.functional.jacobian(pull, torch.zeros(rows, dtype=torch.float64)).T


@pytest.mark.parametrize("case", CASES)
def test_linear_neurons_get_the_singular_vectors(case: str) -> None:
    make, batch, extra, makers, readers = CASES[case]
    model = make()
    own, columns = rows_of(model, makers), slopes_of(model, batch, readers).shape[1]
    u, sigma, _ = torch.linalg.svd(explicit_matrix(model, batch, extra, own.shape[1], columns))
    usual = own.square().mean(1).sqrt().mean() * own.shape[1] ** 0.5  # the mean size of the neurons that exist
    method = gradmax(iterations=150, rate=0.5)
    growth = grow(model, batch, 3, widths=[makers[0].split(".")[0]], method=method)
    rows = rows_of(model, makers)[4:] / usual
    assert growth.neurons == 3
    assert torch.allclose((rows @ u[:, :3]).abs(), torch.eye(3, dtype=torch.float64), atol=1e-4)
    strengths = slopes_of(model, batch, readers)[4:].norm(dim=1)
    assert torch.allclose(strengths, usual * sigma[:3], rtol=1e-5)
    assert math.isclose(growth.predicted, 0.5 * strengths.square().sum(), rel_tol=1e-5)
    assert growth.output_change < 1e-14


def test_there_are_no_more_neurons_than_the_rank_of_the_matrix() -> None:
    """Two readers: beyond the second singular vector nothing pulls."""
    model = seeded(nn.Linear(5, 4), nn.Linear(4, 2))
    growth = grow(model, (draw(40, 5), draw(40, 2, seed=1)), 4)
    assert growth.neurons == 2
    assert "candidates that lower the loss: only 2, so the budget is not used up" in growth.notes


def test_there_are_no_more_neurons_than_weights_of_one() -> None:
    model = seeded(nn.Linear(2, 4), nn.ReLU(), nn.Linear(4, 6))
    growth = grow(model, (draw(40, 2), draw(40, 6, seed=1)), 9)
    assert 0 < growth.neurons <= 3
    rows = rows_of(model, ("0.weight", "0.bias"))[4:]
    cosines = F.normalize(rows) @ F.normalize(rows).T
    assert torch.allclose(cosines, torch.eye(len(rows), dtype=torch.float64), atol=1e-6)


# ---- activations, norms and pools ------------------------------------------------------------------------------------

WIDTHS = {
    "0": (("0.weight", "0.bias"), ("4.weight",)),
    "4": (("4.weight",), ("7.weight",)),
    "7": (("7.weight", "7.bias"), ("10.weight",)),
}
IMAGES = (draw(24, 2, 8, 8), draw(24, 3, seed=1))


def vgg_like(norms: bool) -> Any:
    torch.manual_seed(0)
    norm: Callable[[int], nn.Module] = nn.BatchNorm2d if norms else lambda _: nn.Identity()
    return nn.Sequential(
        nn.Conv2d(2, 4, 3, padding=1), norm(4), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(4, 5, 3, stride=2, padding=1, bias=False), norm(5), nn.ReLU(inplace=True),
        nn.Conv2d(5, 4, 2), nn.GELU(), nn.Flatten(), nn.Linear(4, 3),
    ).double()  # fmt: skip


def strengths_of(model: nn.Module, width: str, count: int) -> Tensor:
    return slopes_of(model, IMAGES, WIDTHS[width][1])[-count:].norm(dim=1)


@torch.no_grad()
def shuffle_rows(model: nn.Module, width: str, count: int, seed: int) -> nn.Module:
    """The grown network with random orthogonal incoming weights of the same length for its new neurons."""
    model = copy.deepcopy(model)
    makers = WIDTHS[width][0]
    rows = rows_of(model, makers)[-count:]
    random = torch.linalg.qr(draw(rows.shape[1], count, seed=seed))[0].T * rows.norm(dim=1, keepdim=True)
    for name, part in zip(makers, random.split([model.get_parameter(n)[0].numel() for n in makers], 1)):
        tensor = model.get_parameter(name)
        tensor[-count:] = part.view(tensor[-count:].shape)
    return model


@pytest.mark.parametrize("norms", [True, False])
@pytest.mark.parametrize("width", WIDTHS)
def test_the_first_gradient_beats_random_directions(width: str, norms: bool) -> None:
    model = vgg_like(norms)
    growth = grow(model, IMAGES, 3, widths=[width], method=gradmax(iterations=20))
    assert growth.neurons == 3
    found = strengths_of(model, width, 3)
    others = torch.stack([strengths_of(shuffle_rows(model, width, 3, seed), width, 3) for seed in range(20)])
    assert found.square().sum() > 1.5 * others.square().sum(1).max()
    assert found.max() > others.max()
    assert torch.equal(found, found.sort(descending=True)[0])


@pytest.mark.parametrize("norms", [True, False])
def test_the_best_neuron_is_at_a_summit(norms: bool) -> None:
    """No small turn of its incoming weights makes the gradient of its outgoing weights larger."""
    model = vgg_like(norms)
    grow(model, IMAGES, 1, widths=["4"], method=gradmax(iterations=300))
    best = strengths_of(model, "4", 1).item()
    row = model[4].weight.detach()[-1].clone()
    for seed in range(10):
        turn = 0.02 * row.norm() * F.normalize(draw(*row.shape, seed=seed).flatten(), dim=0).view_as(row)
        with torch.no_grad():
            model[4].weight[-1] = F.normalize((row + turn).flatten(), dim=0).view_as(row) * row.norm()
        assert strengths_of(model, "4", 1).item() < best * 1.001


@pytest.mark.parametrize("training", [True, False])
def test_a_first_step_keeps_the_promise(training: bool) -> None:
    """The gain is what one gradient step on the new outgoing weights takes from the loss."""
    model = vgg_like(norms=True).train(training)
    growth = grow(model, IMAGES, 6, budget=firefly.Neurons(9), method=gradmax(rate=1e-4))
    assert growth.neurons == 9 and growth.predicted > 0
    assert math.isclose(growth.loss_after, growth.loss_before, rel_tol=1e-12)
    before = squares(model, IMAGES)
    readers = ["4.weight", "7.weight", "10.weight"]
    slopes = torch.autograd.grad(before, [model.get_parameter(name) for name in readers])
    with torch.no_grad():
        for name, slope, (start, end) in zip(readers, slopes, growth.widths.values()):
            old_rows = {"4.weight": 5, "7.weight": 4, "10.weight": 3}[name]
            model.get_parameter(name)[:old_rows, start:end] -= 1e-4 * slope[:old_rows, start:end]
    assert math.isclose((before - squares(model, IMAGES)).item(), growth.predicted, rel_tol=0.01)


def test_statistics_turn_with_the_neuron_in_eval_mode_too() -> None:
    """With running statistics that fit the data the gains are about those of train mode."""
    gains = []
    for training in (True, False):
        model = vgg_like(norms=True)
        for _ in range(100):
            model(IMAGES[0])
        growth = grow(model.train(training), IMAGES, 3, widths=["4"], method=gradmax(iterations=20))
        gains.append(growth.predicted)
    assert math.isclose(*gains, rel_tol=0.2)


@pytest.mark.parametrize("name", ["resnet", "mobilenet_v2", "densenet", "squeeze_excite", "vit", "llama", "two_heads"])
def test_the_function_stays_as_it_is(name: str) -> None:
    entry = in_double(ZOO[name])
    model = entry.make()
    growth = firefly.grow(
        model, entry.loss, entry.batches(), example=entry.example(), neighborhood=[firefly.New(4)],
        budget=firefly.Neurons(5), method=gradmax(iterations=2, batches=2),
    )  # fmt: skip
    assert growth.neurons == 5 and growth.predicted > 0
    assert growth.output_change < 1e-12
    assert math.isclose(growth.loss_after, growth.loss_before, rel_tol=1e-12)


def test_a_seed_decides_everything() -> None:
    models = [vgg_like(norms=True) for _ in range(3)]
    for model, seed in zip(models, (0, 0, 1)):
        grow(model, IMAGES, 3, seed=seed, method=gradmax(iterations=3))
    tensors = [list(model.state_dict().values()) for model in models]
    assert all(torch.equal(a, b) for a, b in zip(tensors[0], tensors[1]))
    assert any(a.shape != b.shape or not torch.equal(a, b) for a, b in zip(tensors[0], tensors[2]))


def test_what_it_cannot_do_is_said() -> None:
    batch = CASES["dense"][1]
    for kinds in ([firefly.Split()], [firefly.Split(), firefly.New(3)]):
        with pytest.raises(firefly.FireflyError, match=r"neighborhood=\[firefly.New\(count\)\]"):
            grow(dense(), batch, 3, neighborhood=kinds)
    with pytest.raises(firefly.FireflyError, match="iterations=0"):
        gradmax(iterations=0)
