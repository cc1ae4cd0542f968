"""What PyTorch differentiates twice in a way that splitting cannot use.

The second derivative of ReLU is zero almost everywhere. That of a grouped convolution is right, but a loop over the
groups, and a depthwise layer has as many of them as channels.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.overrides import TorchFunctionMode

RELU = (F.relu, torch.relu, Tensor.relu)
CONVOLUTIONS = (torch.conv1d, torch.conv2d, torch.conv3d)


class TwiceDifferentiable(TorchFunctionMode):
    """ReLU as it is, with the second derivative of a softplus; grouped convolutions as they are, without the loop."""

    def __init__(self, sharpness: float) -> None:
        super().__init__()
        self.sharpness = sharpness

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in RELU and args:
            return _Rectify.apply(args[0], self.sharpness)
        if func in CONVOLUTIONS:
            return convolve(func, *args, **(kwargs or {}))
        return func(*args, **(kwargs or {}))


class _Rectify(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, u: Tensor, sharpness: float) -> Tensor:
        ctx.save_for_backward(u)
        ctx.sharpness = sharpness
        return u.clamp(min=0)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        return gradient * _Gate.apply(ctx.saved_tensors[0], ctx.sharpness), None


class _Gate(torch.autograd.Function):
    """The slope of ReLU; its derivative is that of a sigmoid."""

    @staticmethod
    def forward(ctx: Any, u: Tensor, sharpness: float) -> Tensor:
        ctx.save_for_backward(u)
        ctx.sharpness = sharpness
        return (u > 0).to(u.dtype)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        (u,) = ctx.saved_tensors
        s = torch.sigmoid(ctx.sharpness * u)
        return gradient * ctx.sharpness * s * (1 - s), None


# ---- grouped convolutions --------------------------------------------------------------------------------------------
# ⟨g, x∗w⟩ is linear in g, in x and in w: its slopes in them are three functions whose own slopes are these three again.


def convolve(
    func: Any,
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: Any = 1,
    padding: Any = 0,
    dilation: Any = 1,
    groups: int = 1,
) -> Tensor:
    """func(...), a convolution that may have groups."""
    if groups == 1 or isinstance(padding, str) or input.ndim != weight.ndim:
        return func(input, weight, bias, stride, padding, dilation, groups)
    input, weight, bias = _cast(input), _cast(weight), None if bias is None else _cast(bias)
    stride, padding, dilation = (_repeat(value, weight.ndim - 2) for value in (stride, padding, dilation))
    out = _Convolve.apply(input, weight, (stride, padding, dilation, False, [0] * len(stride), groups))
    return out if bias is None else out + bias.reshape(-1, *[1] * len(stride))


def _cast(tensor: Tensor) -> Tensor:
    """As autocast does, if it is on: it works below func, too late to find one type for input and weight."""
    kind = tensor.device.type
    doubles = tensor.dtype == torch.float64  # which it leaves alone
    return tensor if doubles or not torch.is_autocast_enabled(kind) else tensor.to(torch.get_autocast_dtype(kind))


def _repeat(value: Any, count: int) -> list[int]:
    values = [value] if isinstance(value, int) else list(value)
    return values * count if len(values) == 1 else values


class _Convolve(torch.autograd.Function):
    """x∗w, the slope in g."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, w: Tensor, how: Any) -> Tensor:
        ctx.save_for_backward(x, w)
        ctx.how = how
        return torch.ops.aten.convolution(x, w, None, *how)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Any:
        x, w = ctx.saved_tensors
        return _InInput.apply(g, w, x, ctx.how), _InWeight.apply(g, x, w, ctx.how), None


class _InInput(torch.autograd.Function):
    """The slope in x, which only lends its shape."""

    @staticmethod
    def forward(ctx: Any, g: Tensor, w: Tensor, x: Tensor, how: Any) -> Tensor:
        ctx.save_for_backward(g, w)
        ctx.how = how
        return torch.ops.aten.convolution_backward(g, x, w, None, *how, (True, False, False))[0]

    @staticmethod
    def backward(ctx: Any, x: Tensor) -> Any:
        g, w = ctx.saved_tensors
        return _Convolve.apply(x, w, ctx.how), _InWeight.apply(g, x, w, ctx.how), None, None


class _InWeight(torch.autograd.Function):
    """The slope in w, which only lends its shape."""

    @staticmethod
    def forward(ctx: Any, g: Tensor, x: Tensor, w: Tensor, how: Any) -> Tensor:
        ctx.save_for_backward(g, x)
        ctx.how = how
        return torch.ops.aten.convolution_backward(g, x, w, None, *how, (False, True, False))[1]

    @staticmethod
    def backward(ctx: Any, w: Tensor) -> Any:
        g, x = ctx.saved_tensors
        return _Convolve.apply(x, w, ctx.how), _InInput.apply(g, w, x, ctx.how), None, None
