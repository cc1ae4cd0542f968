"""Convolutional nets that shuffle, cut or norm their channels."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from zoo.entry import IMAGES, SIGNALS, VOLUMES, specimen
from zoo.plain_convolutional import conv_bn


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
