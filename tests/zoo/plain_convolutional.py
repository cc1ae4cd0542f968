"""Convolutional nets in a row: VGG, residual nets, MobileNets."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from zoo.entry import IMAGES, specimen


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
