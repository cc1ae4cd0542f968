"""ReLU and grouped convolutions under the second derivative that splitting takes."""

from contextlib import nullcontext
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from firefly.baselines.twice import TwiceDifferentiable


def test_relu_gets_the_curvature_of_a_softplus_and_keeps_its_slope() -> None:
    u = torch.tensor([-1.0, -0.1, 0.2, 2.0], dtype=torch.float64, requires_grad=True)
    for call in (nn.ReLU(), nn.ReLU(inplace=True), torch.relu, lambda x: x.relu()):
        with TwiceDifferentiable(3.0):
            out = call(u * 1)
        (slope,) = torch.autograd.grad(out.sum(), u, create_graph=True)
        (curvature,) = torch.autograd.grad(slope.sum(), u)
        s = torch.sigmoid(3 * u.detach())
        assert torch.equal(out, u.detach().clamp(min=0))
        assert torch.equal(slope, (u > 0).double())
        assert torch.allclose(curvature, 3 * s * (1 - s))


def differentiate(layer: nn.Module, x: Tensor, mode: Any) -> list[Tensor]:
    """What the layer returns, its slopes, and the slopes of something that depends on these."""
    inputs = [x, *layer.parameters()]
    with mode:
        out = layer(x)
    first = torch.autograd.grad(out.pow(3).sum(), inputs, create_graph=True)
    second = torch.autograd.grad(sum(slope.pow(2).sum() for slope in first), inputs)
    return [out, *first, *second]


CONVOLUTIONS = {
    "depthwise": (nn.Conv2d(6, 6, 3, padding=1, groups=6, bias=False), (2, 6, 5, 5)),
    "more outputs than inputs": (nn.Conv2d(4, 8, 3, groups=4), (2, 4, 5, 5)),
    "strides, dilation": (nn.Conv2d(6, 4, (3, 2), stride=(2, 1), padding=(1, 2), dilation=2, groups=2), (2, 6, 7, 6)),
    "one dimension": (nn.Conv1d(4, 4, 3, padding=1, groups=2), (2, 4, 7)),
    "three dimensions": (nn.Conv3d(4, 4, 2, groups=4), (1, 4, 3, 3, 3)),
    "padding by name": (nn.Conv2d(4, 4, 3, padding="same", groups=4), (2, 4, 5, 5)),
    "reflected": (nn.Conv2d(4, 4, 3, padding=1, padding_mode="reflect", groups=4), (2, 4, 5, 5)),
    "no batch": (nn.Conv2d(4, 4, 3, groups=4), (4, 5, 5)),
    "one group": (nn.Conv2d(4, 4, 3), (2, 4, 5, 5)),
}


@pytest.mark.parametrize("name", CONVOLUTIONS)
def test_convolutions_keep_their_values_slopes_and_curvature(name: str) -> None:
    layer, shape = CONVOLUTIONS[name]
    layer, x = layer.double(), torch.randn(shape, dtype=torch.float64, requires_grad=True)
    found, expected = differentiate(layer, x, TwiceDifferentiable(3.0)), differentiate(layer, x, nullcontext())
    for a, b in zip(found, expected, strict=True):
        torch.testing.assert_close(a, b)


def test_a_convolution_called_by_hand() -> None:
    x, w = torch.randn(2, 4, 5, 5), torch.randn(4, 1, 3, 3)
    with TwiceDifferentiable(3.0):
        found = torch.conv2d(x, w, stride=2, padding=[1], groups=4)
    torch.testing.assert_close(found, torch.conv2d(x, w, None, 2, 1, 1, 4))


class Counted(TorchDispatchMode):
    calls = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.calls += 1
        return func(*args, **(kwargs or {}))


def count_calls(channels: int, half: bool) -> int:
    layer, kind = nn.Conv2d(channels, channels, 3, groups=channels), torch.bfloat16 if half else torch.float32
    x = torch.randn(2, channels, 5, 5, dtype=kind, requires_grad=True)
    with Counted() as counted, torch.autocast("cpu", torch.bfloat16, half, cache_enabled=False):
        differentiate(layer, x, TwiceDifferentiable(3.0))
    return counted.calls


@pytest.mark.parametrize("half", [False, True])
def test_the_work_does_not_grow_with_the_groups(half: bool) -> None:
    assert count_calls(4, half) == count_calls(16, half)


def test_autocast_is_obeyed() -> None:
    layer, x = nn.Conv2d(4, 4, 3, groups=4, bias=False), torch.randn(2, 4, 5, 5)
    with torch.autocast("cpu", torch.bfloat16):
        expected = layer(x)
        with TwiceDifferentiable(3.0):
            found, doubled = layer(x), torch.conv2d(x.double(), layer.weight.double(), groups=4)
    assert found.dtype == expected.dtype == torch.bfloat16 and doubled.dtype == torch.float64
    torch.testing.assert_close(found, expected, atol=0.01, rtol=0.01)
