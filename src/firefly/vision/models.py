"""The networks that the experiments widen (Sec. 3 and app. B): VGG-16, VGG-19 and MobileNetV1 for 32 x 32 images.

Each is a chain convolution, batch norm, activation, ... in `features`, then `pool`, `flatten` and a linear `head`.
The start of a run has the same few channels in every layer (16 for VGG-19, 32 for MobileNetV1); "full" is the size
the papers of those networks give, 20,035,018 parameters for VGG-19 with 10 classes.
"""

from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise

from torch import nn

from firefly.errors import FireflyError

Widths = int | Sequence[int] | str
Activation = Callable[[], nn.Module]

VGG16 = (64, 64), (128, 128), (256, 256, 256), (512, 512, 512), (512, 512, 512)  # a max-pooling ends each stage
VGG19 = (64, 64), (128, 128), (256, 256, 256, 256), (512, 512, 512, 512), (512, 512, 512, 512)
MOBILENET_V1 = (32, 64, 128, 128, 256, 256, 512, 512, 512, 512, 512, 512, 1024, 1024)  # the stem, then 13 blocks
MOBILENET_V1_HALVING = (2, 4, 6, 12)  # the blocks of stride 2


def vgg16(classes: int = 10, widths: Widths = 16, channels: int = 3, activation: Activation = nn.ReLU) -> nn.Module:
    """VGG-16 with batch norm and without hidden fully connected layers: 13 convolutions."""
    return build_vgg(VGG16, classes, widths, channels, activation)


def vgg19(classes: int = 10, widths: Widths = 16, channels: int = 3, activation: Activation = nn.ReLU) -> nn.Module:
    """VGG-19 with batch norm and without hidden fully connected layers: 16 convolutions.

    `widths` is one number for all layers, a list of 16, or "full"; `channels` are those of the images.
    """
    return build_vgg(VGG19, classes, widths, channels, activation)


def mobilenet_v1(
    classes: int = 100, widths: Widths = 32, channels: int = 3, activation: Activation = nn.ReLU
) -> nn.Module:
    """MobileNetV1: a 3 x 3 convolution, then 13 blocks of a depthwise 3 x 3 and a pointwise convolution.

    `widths` is one number for all layers, a list of 14 (the first convolution, then each block), or "full".
    """
    sizes = list_widths(widths, MOBILENET_V1, "mobilenet_v1")
    layers = [*convolve(channels, sizes[0], activation)]
    for block, (before, after) in enumerate(pairwise(sizes), start=1):
        stride = 2 if block in MOBILENET_V1_HALVING else 1
        layers += convolve(before, before, activation, stride=stride, groups=before)
        layers += convolve(before, after, activation, kernel=1)
    return crown(layers, sizes[-1], classes)


def build_vgg(
    stages: tuple[tuple[int, ...], ...], classes: int, widths: Widths, channels: int, activation: Activation
) -> nn.Module:
    """Stages of 3 x 3 convolutions, each ended by a max-pooling that halves the map: 32, 16, 8, 4, 2, 1."""
    full = sum(stages, ())
    sizes = list_widths(widths, full, f"vgg{len(full) + 3}")
    makers = iter(sizes)
    layers: list[nn.Module] = []
    for stage in stages:
        for _ in stage:
            width = next(makers)
            layers += convolve(channels, width, activation)
            channels = width
        layers.append(nn.MaxPool2d(2))
    return crown(layers, channels, classes)


def convolve(
    before: int, after: int, activation: Activation, kernel: int = 3, stride: int = 1, groups: int = 1
) -> Iterator[nn.Module]:
    """A convolution that keeps the map's size (or divides it by the stride), its batch norm and its activation."""
    yield nn.Conv2d(before, after, kernel, stride=stride, padding=kernel // 2, groups=groups, bias=False)
    yield nn.BatchNorm2d(after)
    yield activation()


def crown(layers: list[nn.Module], width: int, classes: int) -> nn.Module:
    """Put the mean over the map and a linear head on top of the features."""
    parts: list[tuple[str, nn.Module]] = [
        ("features", nn.Sequential(*layers)),
        ("pool", nn.AdaptiveAvgPool2d(1)),
        ("flatten", nn.Flatten()),
        ("head", nn.Linear(width, classes)),
    ]
    return nn.Sequential(OrderedDict(parts))


def list_widths(widths: Widths, full: Sequence[int], model: str) -> list[int]:
    """One width per layer, whichever way they were given."""
    if isinstance(widths, int):
        sizes = [widths] * len(full)
    elif isinstance(widths, str):
        sizes = list(full) if widths == "full" else []
    else:
        sizes = list(widths)
    if len(sizes) != len(full) or not all(isinstance(size, int) and size > 0 for size in sizes):
        raise FireflyError(f'{model}: widths={widths!r} must be a positive number, {len(full)} of them, or "full"')
    return sizes
