"""The operations on the edges of a cell, as DARTS has them (Sec. 3: SepConv and DilConv of different sizes, identity).

Each is made by OPERATIONS[name](channels, stride), keeps the number of channels, and halves the image at stride 2.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import cast

import torch
from torch import Tensor, nn
from torch.nn import functional


def convolve(
    before: int, after: int, kernel: int = 1, stride: int = 1, dilation: int = 1, groups: int = 1
) -> nn.Conv2d:
    """A convolution without bias that keeps the size of the image at stride 1."""
    padding = dilation * (kernel - 1) // 2
    return nn.Conv2d(before, after, kernel, stride, padding, dilation, groups, bias=False)


def make_front(kernel: int, dilation: int, repeats: int, channels: int, stride: int) -> list[nn.Module]:
    """A separable or dilated convolution without its first activation, last pointwise convolution and last norm."""
    layers: list[nn.Module] = [convolve(channels, channels, kernel, stride, dilation, groups=channels)]
    for _ in range(repeats - 1):
        layers += [convolve(channels, channels), nn.BatchNorm2d(channels), nn.ReLU()]
        layers += [convolve(channels, channels, kernel, 1, dilation, groups=channels)]
    return layers


class Separable(nn.Sequential):
    """A depthwise convolution and a pointwise one; `dense`: as one convolution, whose weight is their product."""

    dense = False

    def __init__(self, channels: int, kernel: int, stride: int, dilation: int) -> None:
        super().__init__(
            convolve(channels, channels, kernel, stride, dilation, groups=channels), convolve(channels, channels)
        )

    def forward(self, images: Tensor) -> Tensor:
        if not self.dense or torch.compiler.is_exporting():
            return super().forward(images)
        deep, pointwise = cast(tuple[nn.Conv2d, nn.Conv2d], tuple(self))
        weight = (pointwise.weight * deep.weight.transpose(0, 1)).to(images.dtype)  # (out, in, k, k)
        return functional.conv2d(images, weight, None, deep.stride, deep.padding, deep.dilation)


def separate(channels: int, stride: int, kernel: int, dilation: int = 1, repeats: int = 1) -> nn.Sequential:
    """SepConv (twice) or DilConv (once, dilation 2)."""
    layers: list[nn.Module] = []
    for number in range(repeats):
        step = 1 if number else stride
        layers += [nn.ReLU(), Separable(channels, kernel, step, dilation), nn.BatchNorm2d(channels)]
    return nn.Sequential(*layers)


class Halve(nn.Module):
    """FactorizedReduce: half of the channels read the even pixels, the others the odd ones."""

    def __init__(self, before: int, after: int) -> None:
        super().__init__()
        self.even = convolve(before, after // 2, stride=2)
        self.odd = convolve(before, after - after // 2, stride=2)
        self.norm = nn.BatchNorm2d(after)

    def forward(self, images: Tensor) -> Tensor:
        images = functional.relu(images)
        high, wide = images.shape[2] % 2, images.shape[3] % 2
        shifted = images[:, :, 1:, 1:]
        if high or wide:  # so that both halves are of one size
            shifted = functional.pad(shifted, (0, wide, 0, high))
        return self.norm(torch.cat([self.even(images), self.odd(shifted)], dim=1))


def fit_channels(before: int, after: int) -> nn.Sequential:
    """What brings an input of a cell to its channels: activation, pointwise convolution, norm."""
    return nn.Sequential(nn.ReLU(), convolve(before, after), nn.BatchNorm2d(after))


def pool(channels: int, stride: int, most: bool) -> nn.Module:
    """Max or average pooling over 3 x 3 pixels; the average does not count what is outside."""
    return nn.MaxPool2d(3, stride, 1) if most else nn.AvgPool2d(3, stride, 1, count_include_pad=False)


def skip(channels: int, stride: int) -> nn.Module:
    return nn.Identity() if stride == 1 else Halve(channels, channels)


class Nothing(nn.Module):
    """`none`: no connection."""

    def __init__(self, channels: int, stride: int) -> None:
        super().__init__()
        self.stride = stride

    def forward(self, images: Tensor) -> Tensor:
        return torch.zeros_like(images[:, :, :: self.stride, :: self.stride])


def cross(channels: int, stride: int) -> nn.Sequential:
    """A 1 x 7 and a 7 x 1 convolution, of NASNet and AmoebaNet."""
    layers = [
        nn.Conv2d(channels, channels, (1, 7), (1, stride), (0, 3), bias=False),
        nn.Conv2d(channels, channels, (7, 1), (stride, 1), (3, 0), bias=False),
    ]
    return nn.Sequential(nn.ReLU(), *layers, nn.BatchNorm2d(channels))


OPERATIONS: dict[str, Callable[[int, int], nn.Module]] = {
    "none": Nothing,
    "skip_connect": skip,
    "max_pool_3x3": partial(pool, most=True),
    "avg_pool_3x3": partial(pool, most=False),
    "sep_conv_3x3": partial(separate, kernel=3, repeats=2),
    "sep_conv_5x5": partial(separate, kernel=5, repeats=2),
    "sep_conv_7x7": partial(separate, kernel=7, repeats=2),
    "dil_conv_3x3": partial(separate, kernel=3, dilation=2),
    "dil_conv_5x5": partial(separate, kernel=5, dilation=2),
    "conv_7x1_1x7": cross,
}
IDENTITY = "skip_connect"
SEARCHED = {  # kernel, dilation, repeats of the operations that compete for an edge (App. B.3)
    "sep_conv_3x3": (3, 1, 2),
    "sep_conv_5x5": (5, 1, 2),
    "dil_conv_3x3": (3, 2, 1),
    "dil_conv_5x5": (5, 2, 1),
}
