"""Convolutional nets with branches: DenseNet, Inception, U-Net and the like."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from zoo.entry import BLUR, ENLARGE, IMAGES, specimen
from zoo.plain_convolutional import conv_bn


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
