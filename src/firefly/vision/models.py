"""The networks that the experiments grow (Sec. 3 and app. B): VGG-16, VGG-19, MobileNetV1 and four blocks that deepen.

Each is a chain convolution, batch norm, activation, ... in `features`, then `pool`, `flatten` and a linear `head`, for
images of 32 x 32. The start of a run has the same few channels in every layer (16, or 32 for MobileNetV1); "full" is
the size the papers of those networks give, 20,035,018 parameters for VGG-19 with 10 classes.
"""

from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise

from torch import Tensor, nn

from firefly.errors import FireflyError

Widths = int | Sequence[int] | str
Activation = Callable[[], nn.Module]

VGG16 = (64, 64), (128, 128), (256, 256, 256), (512, 512, 512), (512, 512, 512)  # a max-pooling ends each stage
VGG19 = (64, 64), (128, 128), (256, 256, 256, 256), (512, 512, 512, 512), (512, 512, 512, 512)
MOBILENET_V1 = (32, 64, 128, 128, 256, 256, 512, 512, 512, 512, 512, 512, 1024, 1024)  # the stem, then 13 blocks
MOBILENET_V1_HALVING = (2, 4, 6, 12)  # the blocks of stride 2
BLOCKS = tuple((width,) * 12 for width in (16, 32, 64, 128))  # 12-12-12-12: the depth and the channels of AutoGrow


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


def blocks(
    classes: int = 10,
    widths: int | Sequence[Sequence[int]] | str = 16,
    channels: int = 1,
    activation: Activation = nn.ReLU,
) -> nn.Module:
    """Four blocks of 3 x 3 convolutions, the first of each with stride 2: the network that grows deeper (app. B.2).

    `widths` is one number for a network 1-1-1-1; or a list per block, its channels first and then the neurons of each
    of its residual layers; or "full" for 12-12-12-12.
    """
    stages: list[nn.Module] = []
    for width, *hidden in list_blocks(widths):
        layers = [*convolve(channels, width, activation, stride=2)]
        stages.append(nn.Sequential(*layers, *(ResidualLayer(width, size, activation) for size in hidden)))
        channels = width
    return crown(stages, channels, classes)


class ResidualLayer(nn.Module):
    """I + h as `firefly.deepen` makes it: a 3 x 3 convolution, batch norm, activation, and a 1 x 1 convolution back.

    The last one begins at zero, so that deep networks begin as shallow ones.
    """

    def __init__(self, channels: int, hidden: int, activation: Activation = nn.ReLU) -> None:
        super().__init__()
        self.make, self.norm, self.activation = convolve(channels, hidden, activation)
        self.read = nn.Conv2d(hidden, channels, 1, bias=False)
        nn.init.zeros_(self.read.weight)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = x + self.read(self.activation(self.norm(self.make(x))))
        return out


def list_blocks(widths: int | Sequence[Sequence[int]] | str) -> list[list[int]]:
    """Per block its channels and the neurons of its residual layers, whichever way they were given."""
    if isinstance(widths, int):
        found = [[widths]] * len(BLOCKS)
    elif isinstance(widths, str):
        found = [list(block) for block in BLOCKS] if widths == "full" else []
    else:
        found = [list(block) for block in widths if not isinstance(block, int)]
    fits = [block and all(isinstance(size, int) and size > 0 for size in block) for block in found]
    if len(fits) != len(BLOCKS) or not all(fits):
        ways = f'a positive number, a list of them for each of {len(BLOCKS)} blocks, or "full"'
        raise FireflyError(f"blocks: widths={widths!r} must be {ways}")
    return found


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
