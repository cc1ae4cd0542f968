"""The models every property of tracing and growing is tested on: small, seeded, written as users write them.

`ZOO[name]` is an `Entry`: how to make the model, what to feed it, its loss, and what a trace of it must say. A width is
named by the layer that makes it first in order of execution, and its size counts neurons: whole heads, whole groups.

    grows    widths that must be found growable, with their size
    pinned   widths that must be found pinned, with a word of the reason
    either   widths that may be pinned; one that is offered for growth must have this size

Widths listed nowhere are left to the tracer. The traps, at the end, are forwards that a width must not outgrow:
whatever a trace offers there has to survive being grown. The paper grows any f of a space of networks (Sec. 2.1).
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, TypeVar

import torch
import torch.nn.functional as F
from torch import Generator, Tensor, nn

Batch = tuple[tuple[Tensor, ...], Any]  # forward's arguments, target
Build = TypeVar("Build", bound=Callable[[], nn.Module])


@dataclass(frozen=True)
class Entry:
    """One model of the zoo and what is expected of it."""

    name: str
    make: Callable[[], nn.Module]
    example: Callable[[], tuple[Tensor, ...]]
    batches: Callable[[], list[Batch]]
    loss: Callable[[nn.Module, Batch], Tensor]
    grows: dict[str, int]
    pinned: dict[str, str] = field(default_factory=dict)
    either: dict[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class Task:
    """Where the batches come from, and the loss of an output against a target."""

    draw: Callable[[Generator, int], Batch]
    loss: Callable[[Any, Any], Tensor] = F.cross_entropy


ZOO: dict[str, Entry] = {}


def specimen(
    name: str,
    task: Task,
    grows: dict[str, int],
    pinned: dict[str, str] | None = None,
    either: dict[str, int] | None = None,
) -> Callable[[Build], Build]:
    """Put the decorated class or factory into the zoo."""

    def add(build: Build) -> Build:
        def make() -> nn.Module:
            torch.manual_seed(0)
            return build()

        def draw(seed: int, size: int) -> Batch:
            return task.draw(Generator().manual_seed(seed), size)

        def loss(model: nn.Module, batch: Batch) -> Tensor:
            inputs, target = batch
            return task.loss(model(*inputs), target)

        if name in ZOO:
            raise KeyError(f"the zoo already has a {name!r}")
        example, batches = (lambda: draw(99, 4)[0]), (lambda: [draw(seed, 16) for seed in range(4)])
        ZOO[name] = Entry(name, make, example, batches, loss, grows, pinned or {}, either or {})
        return build

    return add


# ---------------------------------------------------------------------------------------------------------- tasks


def fixed(*shape: int) -> Tensor:
    return torch.randn(*shape, generator=Generator().manual_seed(1234))


def noisy_classes(*shape: int, count: int = 4) -> Callable[[Generator, int], Batch]:
    """Noisy copies of one prototype per class; its mean over positions tells the class too."""
    prototypes = fixed(count, *shape) / 2 + fixed(count, shape[0], *[1] * (len(shape) - 1))

    def draw(generator: Generator, size: int) -> Batch:
        labels = torch.randint(count, (size,), generator=generator)
        return (prototypes[labels] + 0.7 * torch.randn(size, *shape, generator=generator),), labels

    return draw


def draw_pairs(generator: Generator, size: int) -> Batch:
    """Two vectors, which fall in the same class or not."""
    (left,), a = noisy_classes(8)(generator, size)
    (right,), b = noisy_classes(8)(generator, size)
    return (left, right), (a == b).long()


def draw_image_and_vector(generator: Generator, size: int) -> Batch:
    (image,), a = noisy_classes(3, 8, 8, count=2)(generator, size)
    (vector,), b = noisy_classes(8, count=2)(generator, size)
    return (image, vector), 2 * a + b


def draw_documents(generator: Generator, size: int) -> Batch:
    """Eight of 20 tokens; each votes for a class."""
    tokens = torch.randint(20, (size, 8), generator=generator)
    return (tokens,), fixed(20, 4)[tokens].sum(1).argmax(1)


def draw_text(generator: Generator, size: int) -> Batch:
    """The next token is three times the last one plus one, modulo 11, and wrong one time in ten."""
    text = torch.randint(11, (size, 9), generator=generator)
    for t in range(8):
        known = torch.rand(size, generator=generator) > 0.1
        text[:, t + 1] = torch.where(known, (3 * text[:, t] + 1) % 11, text[:, t + 1])
    return (text[:, :-1].clone(),), text[:, 1:].clone()


def image_to_image(paint: Callable[[Tensor], Tensor]) -> Callable[[Generator, int], Batch]:
    def draw(generator: Generator, size: int) -> Batch:
        (x,), _ = noisy_classes(3, 8, 8)(generator, size)
        return (x,), paint(x)

    return draw


def draw_copies(generator: Generator, size: int) -> Batch:
    (x,), _ = noisy_classes(8)(generator, size)
    return (x,), x


def draw_class_and_norm(generator: Generator, size: int) -> Batch:
    (x,), labels = noisy_classes(8)(generator, size)
    return (x,), (labels, x.norm(dim=1, keepdim=True))


def token_entropy(logits: Tensor, target: Tensor) -> Tensor:
    return F.cross_entropy(logits.flatten(0, 1), target.flatten())


VECTORS = Task(noisy_classes(8))
IMAGES = Task(noisy_classes(3, 8, 8))
SIGNALS = Task(noisy_classes(2, 16))
VOLUMES = Task(noisy_classes(1, 6, 6, 6))
PAIRS = Task(draw_pairs)
DOCUMENTS = Task(draw_documents)
TEXT = Task(draw_text, token_entropy)
COPIES = Task(draw_copies, F.mse_loss)
BLUR = Task(image_to_image(lambda x: F.avg_pool2d(x, 3, 1, 1)), F.mse_loss)
ENLARGE = Task(image_to_image(lambda x: F.interpolate(x, scale_factor=2.0)), F.mse_loss)


# ----------------------------------------------------------------------------------------------------- perceptrons


@specimen("mlp", VECTORS, grows={"0": 16, "2": 12}, pinned={"4": "output"})
def mlp() -> nn.Module:
    return nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 12), nn.ReLU(), nn.Linear(12, 4))


@specimen("mlp_dropout", VECTORS, grows={"fc1": 16, "fc2": 12}, pinned={"head": "output"})
class DropoutMLP(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc1 = nn.Linear(8, 16)
        self.fc2 = nn.Linear(16, 12, bias=False)
        self.head = nn.Linear(12, 4)
        self.drop = nn.Dropout(0.2)

    def forward(self, x: Tensor) -> Tensor:
        x = self.drop(torch.tanh(self.fc1(x)))
        x = F.dropout(F.gelu(self.fc2(x)), 0.1, self.training)
        return self.head(x)


@specimen("linear_chain", VECTORS, grows={"0": 16, "1": 12}, pinned={"2": "output"})
def linear_chain() -> nn.Module:
    return nn.Sequential(nn.Linear(8, 16), nn.Linear(16, 12), nn.Linear(12, 4))


@specimen("bare_parameters", VECTORS, grows={"w1": 16, "w2": 12}, pinned={"w3": "output"})
class BareParameters(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.w1, self.b1 = nn.Parameter(torch.randn(8, 16) / 3), nn.Parameter(torch.zeros(16))
        self.w2, self.b2 = nn.Parameter(torch.randn(16, 12) / 4), nn.Parameter(torch.zeros(1, 12))
        self.w3 = nn.Parameter(torch.randn(12, 4) / 3)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.relu(x @ self.w1 + self.b1)
        x = torch.relu(torch.matmul(x, self.w2) + self.b2)
        return x @ self.w3


@specimen("glu", VECTORS, grows={"mix": 12}, pinned={"head": "output"}, either={"fc": 16})
class GLU(nn.Module):
    """F.glu gates the first half of the rows with the second: a neuron is one row of each half."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(8, 32)
        self.mix = nn.Linear(16, 12)
        self.head = nn.Linear(12, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(torch.relu(self.mix(F.glu(self.fc(x), dim=-1))))


@specimen(
    "bilinear",
    VECTORS,
    grows={"mix": 12},
    pinned={"left": "bilinear", "right": "bilinear", "pair": "bilinear", "head": "output"},
)
class Bilinear(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.left, self.right = nn.Linear(8, 6), nn.Linear(8, 5)
        self.pair = nn.Bilinear(6, 5, 10)
        self.mix = nn.Linear(10, 12)
        self.head = nn.Linear(12, 4)

    def forward(self, x: Tensor) -> Tensor:
        x = self.pair(torch.tanh(self.left(x)), torch.tanh(self.right(x)))
        return self.head(torch.relu(self.mix(torch.relu(x))))


@specimen("weight_norm", VECTORS, grows={"fc2": 12}, either={"fc1": 16})
class WeightNorm(nn.Module):
    """Rows of a normed weight are free to grow; more columns of one (the head's) would change its norm."""

    def __init__(self) -> None:
        super().__init__()
        norm = nn.utils.parametrizations.weight_norm
        self.fc1 = norm(nn.Linear(8, 16))
        self.fc2 = nn.Linear(16, 12)
        self.fc3 = nn.Linear(12, 10)
        self.head = norm(nn.Linear(10, 4))

    def forward(self, x: Tensor) -> Tensor:
        x = torch.relu(self.fc2(torch.relu(self.fc1(x))))
        return self.head(torch.relu(self.fc3(x)))


@specimen("einsum", VECTORS, grows={"mix": 12}, pinned={"head": "output"}, either={"w": 16})
class Einsum(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.randn(16, 8) / 3)
        self.mix = nn.Linear(16, 12)
        self.head = nn.Linear(12, 4)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.relu(torch.einsum("bi,oi->bo", x, self.w))
        return self.head(torch.relu(self.mix(x)))


# -------------------------------------------------------------------------------------------- outputs, inputs, reuse


@specimen(
    "dict_output",
    Task(draw_class_and_norm, lambda out, y: F.cross_entropy(out["logits"], y[0]) + F.mse_loss(out["norm"], y[1])),
    grows={"body": 16, "side.0": 6},
    pinned={"logits": "output", "side.2": "output"},
)
class DictOutput(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Linear(8, 16)
        self.logits = nn.Linear(16, 4)
        self.side = nn.Sequential(nn.Linear(16, 6), nn.ReLU(), nn.Linear(6, 1))

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        x = torch.relu(self.body(x))
        return {"logits": self.logits(x), "norm": self.side(x)}


@specimen(
    "tuple_output",
    Task(noisy_classes(8), lambda out, y: F.cross_entropy(out[0], y) + 0.01 * out[1].square().mean()),
    grows={"fc1": 16},
    pinned={"fc2": "output", "head": "output"},
)
class TupleOutput(nn.Module):
    """The features are returned too, so their width belongs to the user."""

    def __init__(self) -> None:
        super().__init__()
        self.fc1, self.fc2, self.head = nn.Linear(8, 16), nn.Linear(16, 12), nn.Linear(12, 4)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        features = torch.relu(self.fc2(torch.relu(self.fc1(x))))
        return self.head(features), features


@specimen(
    "two_heads",
    Task(draw_class_and_norm, lambda out, y: F.cross_entropy(out[0], y[0]) + F.mse_loss(out[1], y[1])),
    grows={"body.0": 16, "body.2": 12, "value.0": 6},
    pinned={"policy": "output", "value.2": "output"},
)
class TwoHeads(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(8, 16), nn.ELU(), nn.Linear(16, 12), nn.ELU())
        self.policy = nn.Linear(12, 4)
        self.value = nn.Sequential(nn.Linear(12, 6), nn.ELU(), nn.Linear(6, 1))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        x = self.body(x)
        return self.policy(x), self.value(x)


@specimen("log_softmax", Task(noisy_classes(8), F.nll_loss), grows={"fc1": 16, "fc2": 12})
class LogSoftmax(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc1, self.fc2, self.head = nn.Linear(8, 16), nn.Linear(16, 12), nn.Linear(12, 4)

    def forward(self, x: Tensor) -> Tensor:
        x = F.leaky_relu(self.fc2(F.leaky_relu(self.fc1(x))))
        return F.log_softmax(self.head(x), dim=1)


@specimen(
    "two_towers",
    Task(draw_image_and_vector),
    grows={"look": 8, "read.0": 10, "read.2": 6, "join": 12},
    pinned={"head": "output"},
)
class TwoTowers(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.look = nn.Conv2d(3, 8, 3, padding=1)
        self.read = nn.Sequential(nn.Linear(8, 10), nn.ReLU(), nn.Linear(10, 6), nn.ReLU())
        self.join = nn.Linear(8 + 6, 12)
        self.head = nn.Linear(12, 4)

    def forward(self, image: Tensor, vector: Tensor) -> Tensor:
        seen = torch.relu(self.look(image)).mean((2, 3))
        both = torch.cat([seen, self.read(vector)], dim=1)
        return self.head(torch.relu(self.join(both)))


@specimen("siamese", PAIRS, grows={"encoder.0": 16, "encoder.2": 12, "head.0": 6}, pinned={"head.2": "output"})
class Siamese(nn.Module):
    """One encoder for two inputs: each of its layers runs twice."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 12), nn.Tanh())
        self.head = nn.Sequential(nn.Linear(12, 6), nn.ReLU(), nn.Linear(6, 2))

    def forward(self, left: Tensor, right: Tensor) -> Tensor:
        return self.head((self.encoder(left) - self.encoder(right)).abs())


@specimen("siamese_cat", PAIRS, grows={"encoder.0": 16, "mix": 6}, pinned={"head": "output"}, either={"encoder.2": 12})
class SiameseCat(nn.Module):
    """The reader sees one width in two places."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 12), nn.Tanh())
        self.mix = nn.Linear(24, 6)
        self.head = nn.Linear(6, 2)

    def forward(self, left: Tensor, right: Tensor) -> Tensor:
        both = torch.cat((self.encoder(left), self.encoder(right)), dim=-1)
        return self.head(torch.relu(self.mix(both)))


@specimen("module_twice", VECTORS, grows={"mix": 12}, pinned={"head": "output"})
class ModuleTwice(nn.Module):
    """The same square layer two times in a chain: its rows and its columns are the same neurons."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Linear(8, 10)
        self.again = nn.Linear(10, 10)
        self.mix = nn.Linear(10, 12)
        self.head = nn.Linear(12, 4)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.tanh(self.stem(x))
        for _ in range(2):
            x = torch.tanh(self.again(x))
        return self.head(torch.relu(self.mix(x)))


@specimen("tied_linears", VECTORS, grows={"mix": 12}, pinned={"head": "output"})
class TiedLinears(nn.Module):
    """Two layers that share one weight, each with its own bias."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Linear(8, 10)
        self.one = nn.Linear(10, 10)
        self.two = nn.Linear(10, 10)
        self.two.weight = self.one.weight
        self.mix = nn.Linear(10, 12)
        self.head = nn.Linear(12, 4)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.tanh(self.two(torch.tanh(self.one(torch.tanh(self.stem(x))))))
        return self.head(torch.relu(self.mix(x)))


@specimen("tied_autoencoder", COPIES, grows={"middle.0": 12})
class TiedAutoencoder(nn.Module):
    """The decoder is the encoder transposed: what makes its code also reads it."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.Linear(8, 6)
        self.middle = nn.Sequential(nn.Linear(6, 12), nn.ReLU(), nn.Linear(12, 6))
        self.bias = nn.Parameter(torch.zeros(8))

    def forward(self, x: Tensor) -> Tensor:
        code = torch.tanh(self.encoder(x))
        return F.linear(code + self.middle(code), self.encoder.weight.t(), self.bias)


@specimen("frozen", IMAGES, grows={"conv2": 12, "conv3": 10}, pinned={"conv1": "frozen", "head": "output"})
class Frozen(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, 8, 3, padding=1)
        self.conv2 = nn.Conv2d(8, 12, 3, padding=1)
        self.conv3 = nn.Conv2d(12, 10, 3, padding=1)
        self.head = nn.Linear(10, 4)
        self.conv1.requires_grad_(False)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.relu(self.conv2(torch.relu(self.conv1(x))))
        return self.head(torch.relu(self.conv3(x)).mean(dim=(2, 3)))


@specimen("unused_layer", VECTORS, grows={"fc": 16}, pinned={"head": "output"})
class UnusedLayer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc, self.spare, self.head = nn.Linear(8, 16), nn.Linear(12, 20), nn.Linear(16, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(torch.relu(self.fc(x)))


# -------------------------------------------------------------------------------------------------- convolutional nets


def conv_bn(inputs: int, outputs: int, kernel: int = 3, stride: int = 1, groups: int = 1) -> list[nn.Module]:
    conv = nn.Conv2d(inputs, outputs, kernel, stride, kernel // 2, groups=groups, bias=False)
    return [conv, nn.BatchNorm2d(outputs)]


@specimen("vgg", IMAGES, grows={"features.0": 8, "features.4": 12, "features.7": 10}, pinned={"head": "output"})
class VGG(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.features = nn.Sequential(
            *(nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(inplace=True), nn.MaxPool2d(2)),
            *(nn.Conv2d(8, 12, 3, padding=1), nn.BatchNorm2d(12), nn.ReLU(inplace=True)),
            *(nn.Conv2d(12, 10, 3, padding=1), nn.BatchNorm2d(10), nn.ReLU(inplace=True)),
        )
        self.pool = nn.AdaptiveAvgPool2d(1)
        self.head = nn.Linear(10, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(torch.flatten(self.pool(self.features(x)), 1))


@specimen("conv_flatten", IMAGES, grows={"conv": 6, "fc": 10}, pinned={"head": "output"})
class ConvFlatten(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 6, 3, stride=2, padding=1)
        self.flatten = nn.Flatten()
        self.fc = nn.Linear(6 * 4 * 4, 10)
        self.head = nn.Linear(10, 4)

    def forward(self, x: Tensor) -> Tensor:
        x = self.flatten(torch.relu(self.conv(x)))
        return self.head(torch.relu(self.fc(x)))


@specimen("flatten_norm", IMAGES, grows={"conv": 6, "fc": 10}, pinned={"head": "output"})
class FlattenNorm(nn.Module):
    """A batch norm after the flatten follows each channel with a block of 16 features."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 6, 3, stride=2, padding=1)
        self.norm = nn.BatchNorm1d(6 * 4 * 4)
        self.fc = nn.Linear(6 * 4 * 4, 10)
        self.head = nn.Linear(10, 4)

    def forward(self, x: Tensor) -> Tensor:
        x = self.conv(x)
        x = torch.relu(self.norm(x.view(x.size(0), -1)))
        return self.head(torch.relu(self.fc(x)))


class BasicBlock(nn.Module):
    def __init__(self, inputs: int, outputs: int, stride: int = 1) -> None:
        super().__init__()
        self.conv1, self.bn1 = conv_bn(inputs, outputs, stride=stride)
        self.conv2, self.bn2 = conv_bn(outputs, outputs)
        self.downsample = nn.Sequential(*conv_bn(inputs, outputs, 1, stride)) if inputs != outputs else None

    def forward(self, x: Tensor) -> Tensor:
        out = F.relu(self.bn1(self.conv1(x)))
        out = self.bn2(self.conv2(out))
        if self.downsample is not None:
            x = self.downsample(x)
        return F.relu(out + x)


@specimen(
    "resnet",
    IMAGES,
    grows={"stem.0": 8, "layer1.0.conv1": 8, "layer2.0.conv1": 12, "layer2.0.conv2": 12, "layer2.1.conv1": 12},
    pinned={"fc": "output"},
)
class ResNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(*conv_bn(3, 8), nn.ReLU())
        self.layer1 = nn.Sequential(BasicBlock(8, 8))
        self.layer2 = nn.Sequential(BasicBlock(8, 12, stride=2), BasicBlock(12, 12))
        self.pool = nn.AdaptiveAvgPool2d((1, 1))
        self.fc = nn.Linear(12, 4)

    def forward(self, x: Tensor) -> Tensor:
        x = self.layer2(self.layer1(self.stem(x)))
        return self.fc(self.pool(x).flatten(1))


class Bottleneck(nn.Module):
    def __init__(self, width: int, inner: int, groups: int = 1) -> None:
        super().__init__()
        self.conv1, self.bn1 = conv_bn(width, inner, 1)
        self.conv2, self.bn2 = conv_bn(inner, inner, groups=groups)
        self.conv3, self.bn3 = conv_bn(inner, width, 1)
        self.relu = nn.ReLU(inplace=True)

    def forward(self, x: Tensor) -> Tensor:
        out = self.relu(self.bn1(self.conv1(x)))
        out = self.relu(self.bn2(self.conv2(out)))
        out = self.bn3(self.conv3(out))
        out += x
        return self.relu(out)


class BottleneckNet(nn.Module):
    def __init__(self, inner: int, groups: int) -> None:
        super().__init__()
        self.stem = nn.Sequential(*conv_bn(3, 16), nn.ReLU(), nn.MaxPool2d(2))
        self.blocks = nn.Sequential(Bottleneck(16, inner, groups), Bottleneck(16, inner, groups))
        self.head = nn.Linear(16, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.blocks(self.stem(x)).mean((-2, -1)))


@specimen(
    "resnet_bottleneck",
    IMAGES,
    grows={"stem.0": 16, "blocks.0.conv1": 6, "blocks.0.conv2": 6, "blocks.1.conv1": 6, "blocks.1.conv2": 6},
    pinned={"head": "output"},
)
def resnet_bottleneck() -> nn.Module:
    return BottleneckNet(inner=6, groups=1)


@specimen(  # the grouped convolution ties both its sides: one width of 4 groups, 2 channels each
    "resnext", IMAGES, grows={"stem.0": 16, "blocks.0.conv1": 4, "blocks.1.conv1": 4}, pinned={"head": "output"}
)
def resnext() -> nn.Module:
    return BottleneckNet(inner=8, groups=4)


def separable(inputs: int, outputs: int, stride: int = 1) -> nn.Module:
    depthwise, pointwise = conv_bn(inputs, inputs, 3, stride, groups=inputs), conv_bn(inputs, outputs, 1)
    return nn.Sequential(*depthwise, nn.ReLU(), *pointwise, nn.ReLU())


@specimen(
    "mobilenet_v1",
    IMAGES,
    grows={"features.0.0": 8, "features.1.3": 12, "features.2.3": 16},
    pinned={"classifier": "output"},
)
class MobileNetV1(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        stem = nn.Sequential(*conv_bn(3, 8), nn.ReLU())
        self.features = nn.Sequential(stem, separable(8, 12), separable(12, 16, stride=2))
        self.classifier = nn.Linear(16, 4)

    def forward(self, x: Tensor) -> Tensor:
        x = F.avg_pool2d(self.features(x), 4)
        return self.classifier(x.view(x.size(0), -1))


class InvertedResidual(nn.Module):
    def __init__(self, inputs: int, outputs: int, stride: int, expand: int) -> None:
        super().__init__()
        hidden = inputs * expand
        self.residual = stride == 1 and inputs == outputs
        self.conv = nn.Sequential(
            *(*conv_bn(inputs, hidden, 1), nn.ReLU6(inplace=True)),
            *(*conv_bn(hidden, hidden, 3, stride, groups=hidden), nn.ReLU6(inplace=True)),
            *conv_bn(hidden, outputs, 1),
        )

    def forward(self, x: Tensor) -> Tensor:
        return x + self.conv(x) if self.residual else self.conv(x)


@specimen(
    "mobilenet_v2",
    IMAGES,
    grows={
        "features.0.0": 8,  # the stem and the first block's output
        "features.1.conv.0": 16,
        "features.2.conv.0": 16,
        "features.2.conv.6": 12,
        "features.3.conv.0": 24,
        "features.4.0": 20,
    },
    pinned={"classifier.1": "output"},
)
class MobileNetV2(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.features = nn.Sequential(
            nn.Sequential(*conv_bn(3, 8), nn.ReLU6(inplace=True)),
            InvertedResidual(8, 8, stride=1, expand=2),
            InvertedResidual(8, 12, stride=2, expand=2),
            InvertedResidual(12, 12, stride=1, expand=2),
            nn.Sequential(*conv_bn(12, 20, 1), nn.ReLU6(inplace=True)),
        )
        self.classifier = nn.Sequential(nn.Dropout(0.1), nn.Linear(20, 4))

    def forward(self, x: Tensor) -> Tensor:
        x = F.adaptive_avg_pool2d(self.features(x), (1, 1))
        return self.classifier(torch.flatten(x, 1))


class DenseLayer(nn.Module):
    def __init__(self, inputs: int, growth: int) -> None:
        super().__init__()
        self.norm = nn.BatchNorm2d(inputs)
        self.conv = nn.Conv2d(inputs, growth, 3, padding=1, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([x, self.conv(F.relu(self.norm(x)))], 1)


@specimen(
    "densenet",
    IMAGES,
    grows={"stem": 8, "dense1.0.conv": 4, "dense1.1.conv": 4, "squeeze.2": 8, "dense2.0.conv": 4, "dense2.1.conv": 4},
    pinned={"head": "output"},
)
class DenseNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 8, 3, padding=1, bias=False)
        self.dense1 = nn.Sequential(DenseLayer(8, 4), DenseLayer(12, 4))
        self.squeeze = nn.Sequential(nn.BatchNorm2d(16), nn.ReLU(), nn.Conv2d(16, 8, 1, bias=False), nn.AvgPool2d(2))
        self.dense2 = nn.Sequential(DenseLayer(8, 4), DenseLayer(12, 4))
        self.norm = nn.BatchNorm2d(16)
        self.head = nn.Linear(16, 4)

    def forward(self, x: Tensor) -> Tensor:
        x = self.dense2(self.squeeze(self.dense1(self.stem(x))))
        x = F.adaptive_avg_pool2d(F.relu(self.norm(x)), 1)
        return self.head(x.flatten(1))


@specimen(
    "inception",
    IMAGES,
    grows={"stem": 8, "one": 4, "three.0": 6, "three.2": 8, "five.0": 4, "five.2": 6, "pool.1": 4, "conv": 12},
    pinned={"head": "output"},
)
class Inception(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 8, 3, padding=1)
        self.one = nn.Conv2d(8, 4, 1)
        self.three = nn.Sequential(nn.Conv2d(8, 6, 1), nn.ReLU(), nn.Conv2d(6, 8, 3, padding=1))
        self.five = nn.Sequential(nn.Conv2d(8, 4, 1), nn.ReLU(), nn.Conv2d(4, 6, 5, padding=2))
        self.pool = nn.Sequential(nn.MaxPool2d(3, stride=1, padding=1), nn.Conv2d(8, 4, 1))
        self.conv = nn.Conv2d(22, 12, 3, padding=1)
        self.head = nn.Linear(12, 4)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.stem(x))
        x = F.relu(torch.cat([branch(x) for branch in (self.one, self.three, self.five, self.pool)], dim=1))
        return self.head(F.relu(self.conv(x)).mean((2, 3)))


class SqueezeExcite(nn.Module):
    def __init__(self, width: int, inner: int) -> None:
        super().__init__()
        self.fc1, self.fc2 = nn.Linear(width, inner), nn.Linear(inner, width)

    def forward(self, x: Tensor) -> Tensor:
        scale = F.adaptive_avg_pool2d(x, 1).flatten(1)
        scale = torch.sigmoid(self.fc2(F.relu(self.fc1(scale))))
        return x * scale[:, :, None, None]


@specimen("squeeze_excite", IMAGES, grows={"stem": 8, "conv1": 12, "se.fc1": 4}, pinned={"head": "output"})
class SqueezeExciteNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 8, 3, padding=1)
        self.conv1, self.bn1 = conv_bn(8, 12)
        self.conv2, self.bn2 = conv_bn(12, 8)
        self.se = SqueezeExcite(8, 4)
        self.head = nn.Linear(8, 4)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.stem(x))
        x = F.relu(x + self.se(self.bn2(self.conv2(F.relu(self.bn1(self.conv1(x)))))))
        return self.head(x.mean(dim=[2, 3]))


@specimen("unet", BLUR, grows={"down": 6, "middle": 12, "up": 8, "fuse": 10}, pinned={"paint": "output"})
class UNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.down = nn.Conv2d(3, 6, 3, padding=1)
        self.middle = nn.Conv2d(6, 12, 3, padding=1)
        self.up = nn.ConvTranspose2d(12, 8, 2, stride=2)
        self.fuse = nn.Conv2d(8 + 6, 10, 3, padding=1)
        self.paint = nn.Conv2d(10, 3, 1)

    def forward(self, x: Tensor) -> Tensor:
        skip = F.relu(self.down(x))
        x = F.relu(self.middle(F.max_pool2d(skip, 2)))
        x = torch.cat([self.up(x), skip], dim=1)
        return self.paint(F.relu(self.fuse(x)))


@specimen("interpolate", ENLARGE, grows={"0": 8, "3": 12}, pinned={"5": "output"})
def interpolate() -> nn.Module:
    return nn.Sequential(
        *(nn.Conv2d(3, 8, 3, padding=1), nn.SiLU()),
        *(nn.Upsample(scale_factor=2, mode="bilinear", align_corners=False), nn.Conv2d(8, 12, 3, padding=1)),
        *(nn.Hardswish(), nn.Conv2d(12, 3, 3, padding=1)),
    )


@specimen("pixel_shuffle", ENLARGE, grows={"stem": 8}, pinned={"paint": "output"}, either={"expand": 6})
class PixelShuffle(nn.Module):
    """Four channels of `expand` become one channel of four times the pixels."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 8, 3, padding=1)
        self.expand = nn.Conv2d(8, 24, 3, padding=1)
        self.shuffle = nn.PixelShuffle(2)
        self.paint = nn.Conv2d(6, 3, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        x = self.shuffle(self.expand(F.relu(self.stem(x))))
        return self.paint(F.relu(x))


@specimen("channel_shuffle", IMAGES, grows={"stem": 4, "conv1": 3}, pinned={"head": "output"})
class ShuffleNet(nn.Module):
    """Two groups for ever: a neuron is a channel of each group, or of each group and each half of the shuffled."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 8, 3, padding=1)
        self.conv1, self.bn1 = conv_bn(8, 12, 1, groups=2)
        self.conv2, self.bn2 = conv_bn(12, 12, 3, groups=12)
        self.conv3, self.bn3 = conv_bn(12, 8, 1, groups=2)
        self.head = nn.Linear(8, 4)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.stem(x))
        y = F.relu(self.bn1(self.conv1(x)))
        b, c, h, w = y.shape
        y = y.view(b, 2, c // 2, h, w).transpose(1, 2).reshape(b, c, h, w)
        y = self.bn3(self.conv3(self.bn2(self.conv2(y))))
        return self.head(F.relu(x + y).mean((2, 3)))


@specimen(
    "c2f",
    IMAGES,
    grows={"stem": 8, "twist1": 5, "cv2": 12},
    pinned={"head": "output"},
    either={"cv1": 6},
)
class C2f(nn.Module):
    """YOLO's block. chunk() halves whatever comes, so a neuron of cv1 is one row of each half."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 8, 3, padding=1)
        self.cv1 = nn.Conv2d(8, 12, 1)
        self.twist1, self.twist2 = nn.Conv2d(6, 5, 3, padding=1), nn.Conv2d(5, 6, 3, padding=1)
        self.cv2 = nn.Conv2d(18, 12, 1)
        self.head = nn.Linear(12, 4)

    def forward(self, x: Tensor) -> Tensor:
        parts = list(F.silu(self.cv1(F.silu(self.stem(x)))).chunk(2, 1))
        parts.append(parts[-1] + F.silu(self.twist2(F.silu(self.twist1(parts[-1])))))
        x = F.silu(self.cv2(torch.cat(parts, 1)))
        return self.head(F.adaptive_max_pool2d(x, 1).flatten(1))


@specimen("softmax_gate", IMAGES, grows={"stem": 8}, pinned={"value": "softmax", "head": "output"})
class SoftmaxGate(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 8, 3, padding=1)
        self.value, self.gate = nn.Conv2d(8, 12, 1), nn.Conv2d(8, 12, 1)
        self.head = nn.Linear(12, 4)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.stem(x))
        x = self.value(x) * torch.softmax(self.gate(x), dim=1)
        return self.head(x.mean((2, 3)))


@specimen("channel_mean", IMAGES, grows={"conv": 12}, pinned={"stem": "mean", "head": "output"})
class ChannelMean(nn.Module):
    """Spatial attention from the mean over channels."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 8, 3, padding=1)
        self.where = nn.Conv2d(1, 1, 3, padding=1)
        self.conv = nn.Conv2d(8, 12, 3, padding=1)
        self.head = nn.Linear(12, 4)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.stem(x))
        x = x * torch.sigmoid(self.where(x.mean(dim=1, keepdim=True)))
        return self.head(F.relu(self.conv(x)).mean((2, 3)))


@specimen("scaled_residual", IMAGES, grows={"stem": 8, "conv1": 12}, pinned={"head": "output"})
class ScaledResidual(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 8, 3, padding=1)
        self.conv1, self.bn1 = conv_bn(8, 12)
        self.conv2, self.bn2 = conv_bn(12, 8)
        self.gamma = nn.Parameter(torch.full((8, 1, 1), 0.5))
        self.head = nn.Linear(8, 4)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.stem(x))
        x = x + self.gamma * self.bn2(self.conv2(F.relu(self.bn1(self.conv1(x)))))
        return self.head(x.mean((2, 3)))


@specimen("group_norm", IMAGES, grows={"0": 4, "3": 12}, pinned={"7": "output"})
def group_norm() -> nn.Module:
    return nn.Sequential(
        *(nn.Conv2d(3, 16, 3, padding=1), nn.GroupNorm(4, 16), nn.ReLU()),
        *(nn.Conv2d(16, 12, 3, padding=1), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(12, 4)),
    )


@specimen("instance_norm", IMAGES, grows={"0": 8, "3": 12, "6": 10}, pinned={"11": "output"})
def instance_norm() -> nn.Module:
    return nn.Sequential(
        *(nn.Conv2d(3, 8, 3, padding=1), nn.InstanceNorm2d(8), nn.ReLU()),
        *(nn.Conv2d(8, 12, 3, padding=1), nn.InstanceNorm2d(12, affine=True), nn.ReLU()),
        *(nn.Conv2d(12, 10, 3, padding=1), nn.InstanceNorm2d(10, affine=True, track_running_stats=True), nn.ReLU()),
        *(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(10, 4)),
    )


@specimen("prelu", IMAGES, grows={"0": 8, "2": 12}, pinned={"6": "output"})
def prelu() -> nn.Module:
    return nn.Sequential(
        *(nn.Conv2d(3, 8, 3, padding=1), nn.PReLU(8), nn.Conv2d(8, 12, 3, padding=1), nn.PReLU()),
        *(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(12, 4)),
    )


@specimen("conv1d", SIGNALS, grows={"0": 8, "4": 12}, pinned={"9": "output"})
def conv1d() -> nn.Module:
    return nn.Sequential(
        *(nn.Conv1d(2, 8, 3, padding=1), nn.BatchNorm1d(8), nn.ReLU(), nn.MaxPool1d(2)),
        *(nn.Conv1d(8, 12, 3, dilation=2, padding=2), nn.BatchNorm1d(12), nn.ReLU()),
        *(nn.AdaptiveAvgPool1d(1), nn.Flatten(), nn.Linear(12, 4)),
    )


@specimen("conv3d", VOLUMES, grows={"0": 6, "4": 8}, pinned={"9": "output"})
def conv3d() -> nn.Module:
    return nn.Sequential(
        *(nn.Conv3d(1, 6, 3, padding=1), nn.BatchNorm3d(6), nn.ReLU(), nn.MaxPool3d(2)),
        *(nn.Conv3d(6, 8, 3, padding=1), nn.BatchNorm3d(8), nn.ReLU()),
        *(nn.AdaptiveAvgPool3d(1), nn.Flatten(), nn.Linear(8, 4)),
    )


@specimen("shape_if", IMAGES, grows={"conv1": 8, "conv2": 12}, pinned={"head": "output"})
class ShapeIf(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, 8, 3, padding=1)
        self.conv2 = nn.Conv2d(8, 12, 3, padding=1)
        self.head = nn.Linear(12, 4)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.conv1(x))
        if x.shape[-1] > 4:
            x = F.max_pool2d(x, 2)
        x = F.relu(self.conv2(x))
        if x.shape[-1] > 4:
            x = F.max_pool2d(x, 2)
        return self.head(x.mean((2, 3)))


class ConvNeXtBlock(nn.Module):
    def __init__(self, width: int, hidden: int) -> None:
        super().__init__()
        self.dwconv = nn.Conv2d(width, width, 7, padding=3, groups=width)
        self.norm = nn.LayerNorm(width)
        self.pwconv1, self.pwconv2 = nn.Linear(width, hidden), nn.Linear(hidden, width)
        self.gamma = nn.Parameter(torch.full((width,), 0.1))

    def forward(self, x: Tensor) -> Tensor:
        out = self.norm(self.dwconv(x).permute(0, 2, 3, 1))
        out = self.gamma * self.pwconv2(F.gelu(self.pwconv1(out)))
        return x + out.permute(0, 3, 1, 2)


@specimen(
    "convnext",
    IMAGES,
    grows={"blocks.0.pwconv1": 16, "blocks.1.pwconv1": 16},
    pinned={"stem": "layer norm", "head": "output"},
)
class ConvNeXt(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 8, 2, stride=2)
        self.blocks = nn.Sequential(ConvNeXtBlock(8, 16), ConvNeXtBlock(8, 16))
        self.norm = nn.LayerNorm(8, eps=1e-6)
        self.head = nn.Linear(8, 4)

    def forward(self, x: Tensor) -> Tensor:
        x = self.blocks(self.stem(x))
        return self.head(self.norm(x.mean([-2, -1])))


# ------------------------------------------------------------------------------------------------------ transformers


class FusedAttention(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.num_heads, self.head_dim = heads, width // heads
        self.qkv = nn.Linear(width, 3 * width)
        self.proj = nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        B, N, _ = x.shape
        qkv = self.qkv(x).reshape(B, N, 3, self.num_heads, self.head_dim).permute(2, 0, 3, 1, 4)
        q, k, v = qkv.unbind(0)
        x = F.scaled_dot_product_attention(q, k, v)
        return self.proj(x.transpose(1, 2).flatten(2))


class ViTBlock(nn.Module):
    def __init__(self, attn: nn.Module, width: int, hidden: int) -> None:
        super().__init__()
        self.norm1, self.attn, self.norm2 = nn.LayerNorm(width), attn, nn.LayerNorm(width)
        self.mlp = nn.Sequential(nn.Linear(width, hidden), nn.GELU(), nn.Linear(hidden, width))

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attn(self.norm1(x))
        return x + self.mlp(self.norm2(x))


class ViT(nn.Module):
    """Patches, a class token and positions; the blocks are given."""

    def __init__(self, width: int, *blocks: nn.Module) -> None:
        super().__init__()
        self.patch = nn.Conv2d(3, width, 4, stride=4)
        self.cls = nn.Parameter(torch.randn(1, 1, width) / 10)
        self.pos = nn.Parameter(torch.randn(1, 5, width) / 10)
        self.blocks = nn.Sequential(*blocks)
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, 4)

    def forward(self, x: Tensor) -> Tensor:
        x = self.patch(x).flatten(2).transpose(1, 2)
        x = torch.cat([self.cls.expand(x.shape[0], -1, -1), x], dim=1) + self.pos
        return self.head(self.norm(self.blocks(x))[:, 0])


@specimen(
    "vit",
    IMAGES,
    grows={"blocks.0.attn.qkv": 4, "blocks.0.mlp.0": 24, "blocks.1.attn.qkv": 2, "blocks.1.mlp.0": 24},
    pinned={"patch": "layer norm", "head": "output"},
)
def vit() -> nn.Module:
    return ViT(16, ViTBlock(FusedAttention(16, 4), 16, 24), ViTBlock(FusedAttention(16, 2), 16, 24))


class TorchAttention(nn.MultiheadAttention):
    def forward(self, x: Tensor) -> Tensor:  # type: ignore[override]
        return super().forward(x, x, x, need_weights=False)[0]


@specimen("vit_own_multihead", IMAGES, grows={"blocks.0.mlp.0": 24}, pinned={"patch": "layer norm", "head": "output"})
def vit_own_multihead() -> nn.Module:
    """A subclass may do anything in its forward, so that its heads stay."""
    return ViT(16, ViTBlock(TorchAttention(16, 4, batch_first=True), 16, 24))


class MultiheadBlock(nn.Module):
    """nn.MultiheadAttention as it comes: from itself, then from fewer features of the image."""

    def __init__(self) -> None:
        super().__init__()
        self.norm1, self.norm2, self.few = nn.LayerNorm(16), nn.LayerNorm(16), nn.Linear(16, 6)
        self.itself = nn.MultiheadAttention(16, 4, batch_first=True)
        self.other = nn.MultiheadAttention(16, 2, add_bias_kv=True, add_zero_attn=True, kdim=6, vdim=6, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        y = self.norm1(x)
        x = x + self.itself(y, y, y, need_weights=False)[0]
        y, few = self.norm2(x).transpose(0, 1), torch.tanh(self.few(x)).transpose(0, 1)
        mask = torch.ones(len(y), len(y), dtype=torch.bool, device=x.device).triu(3)
        return x + self.other(y, few, few, attn_mask=mask)[0].transpose(0, 1)


@specimen(
    "vit_multihead",
    IMAGES,
    grows={"blocks.0.itself": 4, "blocks.0.few": 6, "blocks.0.other": 2},
    pinned={"patch": "layer norm", "head": "output"},
)
def vit_multihead() -> nn.Module:
    return ViT(16, MultiheadBlock())


@specimen(
    "vit_encoder_layer",
    IMAGES,
    grows={"blocks.0.self_attn": 2, "blocks.0.linear1": 20, "blocks.1.self_attn": 4, "blocks.1.linear1": 24},
    pinned={"patch": "layer norm", "head": "output"},
)
def vit_encoder_layer() -> nn.Module:
    post = nn.TransformerEncoderLayer(16, 4, 24, dropout=0.0, batch_first=True)
    pre = nn.TransformerEncoderLayer(16, 2, 20, dropout=0.1, activation="gelu", batch_first=True, norm_first=True)
    return ViT(16, pre, post)


class CausalAttention(nn.Module):
    mask: Tensor

    def __init__(self, width: int, n_head: int, length: int) -> None:
        super().__init__()
        self.n_head = n_head
        self.q, self.k, self.v = nn.Linear(width, width), nn.Linear(width, width), nn.Linear(width, width)
        self.proj = nn.Linear(width, width)
        self.register_buffer("mask", torch.tril(torch.ones(length, length)).bool())

    def forward(self, x: Tensor) -> Tensor:
        B, T, _ = x.shape
        q = self.q(x).view(B, T, self.n_head, -1).transpose(1, 2)
        k = self.k(x).view(B, T, self.n_head, -1).transpose(1, 2)
        v = self.v(x).view(B, T, self.n_head, -1).transpose(1, 2)
        scores = torch.matmul(q, k.transpose(-2, -1)) / math.sqrt(q.size(-1))
        scores = scores.masked_fill(~self.mask[:T, :T], float("-inf"))
        y = torch.matmul(F.softmax(scores, dim=-1), v)
        return self.proj(y.transpose(1, 2).contiguous().view(B, T, -1))


class GPTBlock(nn.Module):
    def __init__(self, width: int, n_head: int, hidden: int, length: int) -> None:
        super().__init__()
        self.ln1, self.ln2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attn = CausalAttention(width, n_head, length)
        self.fc, self.proj = nn.Linear(width, hidden), nn.Linear(hidden, width)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attn(self.ln1(x))
        return x + self.proj(F.gelu(self.fc(self.ln2(x)), approximate="tanh"))


@specimen(
    "gpt",
    TEXT,
    grows={"blocks.0.attn.q": 4, "blocks.0.fc": 32, "blocks.1.attn.q": 4, "blocks.1.fc": 32},
    pinned={"wte": "layer norm"},
)
class GPT(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.wte, self.wpe = nn.Embedding(11, 16), nn.Embedding(10, 16)
        self.blocks = nn.ModuleList(GPTBlock(16, n_head=4, hidden=32, length=10) for _ in range(2))
        self.norm = nn.LayerNorm(16)
        self.lm_head = nn.Linear(16, 11, bias=False)
        self.lm_head.weight = self.wte.weight

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.wte(tokens) + self.wpe(torch.arange(tokens.size(1), device=tokens.device))
        for block in self.blocks:
            x = block(x)
        return self.lm_head(self.norm(x))


class RMSNorm(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x: Tensor) -> Tensor:
        return self.weight * x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-5)


def interleave(x: Tensor, times: int) -> Tensor:
    return x.repeat_interleave(times, dim=1)


def expand(x: Tensor, times: int) -> Tensor:
    B, _, T, D = x.shape
    return x[:, :, None].expand(-1, -1, times, -1, -1).reshape(B, -1, T, D)


class GroupedAttention(nn.Module):
    """Two query heads per key-value head; a neuron, if any, is one key-value head with its queries."""

    cos: Tensor
    sin: Tensor

    def __init__(self, width: int, repeat: Callable[[Tensor, int], Tensor]) -> None:
        super().__init__()
        self.n_head, self.n_kv_head, self.head_dim, self.repeat = 4, 2, width // 4, repeat
        self.q = nn.Linear(width, self.n_head * self.head_dim, bias=False)
        self.k = nn.Linear(width, self.n_kv_head * self.head_dim, bias=False)
        self.v = nn.Linear(width, self.n_kv_head * self.head_dim, bias=False)
        self.o = nn.Linear(self.n_head * self.head_dim, width, bias=False)
        angle = torch.arange(10)[:, None] / 10 ** torch.linspace(0, 1, self.head_dim // 2)
        self.register_buffer("cos", angle.cos())  # (positions, head_dim / 2)
        self.register_buffer("sin", angle.sin())

    def rotate(self, x: Tensor) -> Tensor:
        cos, sin = self.cos[: x.size(2)], self.sin[: x.size(2)]
        left, right = x.chunk(2, dim=-1)
        return torch.cat([left * cos - right * sin, right * cos + left * sin], dim=-1)

    def forward(self, x: Tensor) -> Tensor:
        B, T, _ = x.shape
        q = self.rotate(self.q(x).view(B, T, self.n_head, self.head_dim).transpose(1, 2))
        k = self.rotate(self.k(x).view(B, T, self.n_kv_head, self.head_dim).transpose(1, 2))
        v = self.v(x).view(B, T, self.n_kv_head, self.head_dim).transpose(1, 2)
        k, v = self.repeat(k, 2), self.repeat(v, 2)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.o(y.transpose(1, 2).reshape(B, T, -1))


class LlamaBlock(nn.Module):
    def __init__(self, width: int, hidden: int, repeat: Callable[[Tensor, int], Tensor]) -> None:
        super().__init__()
        self.attn, self.norm1, self.norm2 = GroupedAttention(width, repeat), RMSNorm(width), RMSNorm(width)
        self.gate, self.up = nn.Linear(width, hidden, bias=False), nn.Linear(width, hidden, bias=False)
        self.down = nn.Linear(hidden, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attn(self.norm1(x))
        y = self.norm2(x)
        return x + self.down(F.silu(self.gate(y)) * self.up(y))


class Llama(nn.Module):
    def __init__(self, repeat: Callable[[Tensor, int], Tensor]) -> None:
        super().__init__()
        self.embed = nn.Embedding(11, 16)
        self.blocks = nn.ModuleList([LlamaBlock(16, 24, repeat)])
        self.norm = RMSNorm(16)
        self.head = nn.Linear(16, 11, bias=False)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embed(tokens)
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


@specimen(
    "llama",
    TEXT,
    grows={"blocks.0.gate": 24},
    pinned={"embed": "RMS norm", "head": "output"},
    either={"blocks.0.attn.q": 2},
)
def llama() -> nn.Module:
    return Llama(interleave)


@specimen(
    "llama_expand",
    TEXT,
    grows={"blocks.0.gate": 24},
    pinned={"embed": "RMS norm", "head": "output"},
    either={"blocks.0.attn.q": 2},
)
def llama_expand() -> nn.Module:
    return Llama(expand)


# -------------------------------------------------------------------------------------------------- tokens, recurrence


@specimen("embedding_mean", DOCUMENTS, grows={"embed": 12, "fc": 10}, pinned={"head": "output"})
class EmbeddingMean(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(20, 12)
        self.fc, self.head = nn.Linear(12, 10), nn.Linear(10, 4)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.head(torch.relu(self.fc(self.embed(tokens).mean(dim=1))))


@specimen("embedding_linear", TEXT, grows={"0": 12}, pinned={"1": "output"})
def embedding_linear() -> nn.Module:
    return nn.Sequential(nn.Embedding(11, 12), nn.Linear(12, 11))


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(20, 8)
        self.head = nn.Sequential(nn.Linear(10, 12), nn.ReLU(), nn.Linear(12, 4))


@specimen("lstm", DOCUMENTS, grows={"head.0": 12}, pinned={"lstm": "lstm", "head.2": "output"})
class LSTM(Recurrent):
    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTM(8, 10, batch_first=True)

    def forward(self, tokens: Tensor) -> Tensor:
        states, _ = self.lstm(self.embed(tokens))
        return self.head(states[:, -1])


@specimen("gru", DOCUMENTS, grows={"head.0": 12}, pinned={"gru": "gru", "head.2": "output"})
class GRU(Recurrent):
    def __init__(self) -> None:
        super().__init__()
        self.gru = nn.GRU(8, 10, batch_first=True)

    def forward(self, tokens: Tensor) -> Tensor:
        _, last = self.gru(self.embed(tokens))
        return self.head(last[-1])


# ------------------------------------------------------------------------------------------------------------- traps


@specimen("literal_view", IMAGES, grows={"fc": 10}, pinned={"head": "output"})
class LiteralView(nn.Module):
    """The number of features is written into forward: more channels would be taken for more images."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 6, 3, stride=2, padding=1)
        self.fc, self.head = nn.Linear(96, 10), nn.Linear(10, 4)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.relu(self.conv(x)).view(-1, 96)
        return self.head(torch.relu(self.fc(x)))


@specimen("computed_view", IMAGES, grows={"fc": 10}, pinned={"head": "output"}, either={"conv": 6})
class ComputedView(nn.Module):
    """The same number, read off the tensor: a graph alone cannot tell it from a literal."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 6, 3, stride=2, padding=1)
        self.fc, self.head = nn.Linear(96, 10), nn.Linear(10, 4)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.relu(self.conv(x))
        x = x.view(x.size(0), x.size(1) * x.size(2) * x.size(3))
        return self.head(torch.relu(self.fc(x)))


class FixedAttention(FusedAttention):
    """The size of a head is the stream's width over the number of heads: more heads would be thinner heads."""

    def forward(self, x: Tensor) -> Tensor:
        B, N, C = x.shape
        q, k, v = self.qkv(x).reshape(B, N, 3, self.num_heads, C // self.num_heads).permute(2, 0, 3, 1, 4)
        return self.proj(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(B, N, C))


@specimen("fixed_heads", IMAGES, grows={"blocks.0.mlp.0": 24}, pinned={"patch": "layer norm", "head": "output"})
def fixed_heads() -> nn.Module:
    return ViT(16, ViTBlock(FixedAttention(16, 4), 16, 24))


@specimen("literal_slice", VECTORS, grows={"mix": 10}, pinned={"head": "output"})
class LiteralSlice(nn.Module):
    """The first 6 of 16 neurons gate, the other 10 are gated: what index 6 means depends on the width."""

    def __init__(self) -> None:
        super().__init__()
        self.fc, self.mix, self.head = nn.Linear(8, 16), nn.Linear(10, 10), nn.Linear(10, 4)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.tanh(self.fc(x))
        x = x[:, 6:] * x[:, :6].mean(1, keepdim=True)
        return self.head(torch.relu(self.mix(x)))


@specimen("buffer_scale", VECTORS, grows={"mix": 12}, pinned={"head": "output"}, either={"fc": 16})
class BufferScale(nn.Module):
    """A buffer with a value per neuron that no layer owns."""

    scale: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.fc, self.mix, self.head = nn.Linear(8, 16), nn.Linear(16, 12), nn.Linear(12, 4)
        self.register_buffer("scale", torch.linspace(0.5, 1.5, 16))

    def forward(self, x: Tensor) -> Tensor:
        x = torch.relu(self.fc(x)) * self.scale
        return self.head(torch.relu(self.mix(x)))


@specimen("constant_shift", VECTORS, grows={"mix": 12}, pinned={"head": "output"})
class ConstantShift(nn.Module):
    """A tensor of the width's size made inside forward cannot grow."""

    def __init__(self) -> None:
        super().__init__()
        self.fc, self.mix, self.head = nn.Linear(8, 16), nn.Linear(16, 12), nn.Linear(12, 4)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.relu(self.fc(x) + torch.linspace(-1, 1, 16, device=x.device, dtype=x.dtype))
        return self.head(torch.relu(self.mix(x)))


@specimen("cosine", VECTORS, grows={"fc1": 16})
class Cosine(nn.Module):
    """Features of length one against class vectors of length one: every neuron moves all the others."""

    def __init__(self) -> None:
        super().__init__()
        self.fc1, self.fc2 = nn.Linear(8, 16), nn.Linear(16, 10)
        self.classes = nn.Parameter(torch.randn(4, 10))

    def forward(self, x: Tensor) -> Tensor:
        x = F.normalize(self.fc2(torch.relu(self.fc1(x))), dim=-1)
        return 5 * x @ F.normalize(self.classes, dim=-1).t()
