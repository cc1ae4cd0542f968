"""Widths that are cut into parts by numbers of the module: splits, slices, shuffles, standardised weights."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from zoo.entry import IMAGES, VECTORS, specimen


@specimen(
    "split_by_sizes",
    IMAGES,
    grows={"stem": 8, "fc1": 6},
    pinned={"head": "output"},
)
class SplitBySizes(nn.Module):
    """A gate for all, some that stay, some that are convolved; sizes in a tuple, and one in an attribute of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 8, 3, padding=1)
        self.fc1, self.sizes = nn.Conv2d(8, 24, 1), (12, 6, 6)
        self.conv = nn.Conv2d(6, 6, 3, padding=1, groups=6)
        self.fc2 = nn.Conv2d(12, 8, 1)
        self.focal, self.dim = nn.Conv2d(8, 11, 1), 8
        self.head = nn.Linear(8, 4)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        gate, stay, move = torch.split(self.fc1(x), self.sizes, dim=1)
        x = x + self.fc2(F.gelu(gate) * torch.cat([stay, self.conv(move)], dim=1))
        value, gates = torch.split(self.focal(x), (self.dim, 3), dim=1)
        x = x + value * gates.mean(1, keepdim=True)
        return self.head(x.mean((2, 3)))


class Ghost(nn.Module):
    """Half of the channels are made cheaply from the other half; as many as were asked for are kept."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.outputs, half = outputs, outputs // 2
        self.primary = nn.Sequential(nn.Conv2d(inputs, half, 1, bias=False), nn.BatchNorm2d(half), nn.ReLU())
        self.cheap = nn.Sequential(nn.Conv2d(half, half, 3, padding=1, groups=half, bias=False), nn.BatchNorm2d(half))

    def forward(self, x: Tensor) -> Tensor:
        few = self.primary(x)
        return torch.cat([few, self.cheap(few)], dim=1)[:, : self.outputs]


class Longer(nn.Module):
    """More channels come out than go in; the shortcut is added to the first of them."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.inputs, self.conv = inputs, nn.Conv2d(inputs, outputs, 1)

    def forward(self, x: Tensor) -> Tensor:
        y = self.conv(x)
        return torch.cat([y[:, : self.inputs] + x, y[:, self.inputs :]], dim=1)


@specimen(
    "slices",
    IMAGES,
    grows={"stem": 6, "ghost1.primary.0": 5, "ghost2.primary.0": 3, "longer.conv": 4},
    pinned={"head": "output"},
)
class Slices(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 6, 3, padding=1)
        self.ghost1, self.ghost2 = Ghost(6, 10), Ghost(10, 6)
        self.longer, self.head = Longer(6, 10), nn.Linear(10, 4)

    def forward(self, x: Tensor) -> Tensor:
        x = self.longer(self.ghost2(self.ghost1(F.relu(self.stem(x)))))
        return self.head(F.relu(x).mean((2, 3)))


@specimen(
    "shuffled_halves",
    IMAGES,
    grows={"stem": 6, "inner": 5},
    pinned={"head": "output"},
)
class ShuffledHalves(nn.Module):
    """One half passes, the other is convolved, then both are shuffled: what was a channel is a pair of neighbours."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 12, 3, padding=1)
        self.inner, self.outer = nn.Conv2d(6, 5, 3, padding=1), nn.Conv2d(5, 6, 1)
        self.last, self.head = nn.Conv2d(12, 8, 1), nn.Linear(8, 4)

    def forward(self, x: Tensor) -> Tensor:
        left, right = F.relu(self.stem(x)).chunk(2, dim=1)
        x = torch.cat([left, F.relu(self.outer(F.relu(self.inner(right))))], dim=1)
        b, c, h, w = x.shape
        x = x.view(b, 2, c // 2, h, w).transpose(1, 2).contiguous().flatten(1, 2)
        return self.head(F.relu(self.last(x)).mean((2, 3)))


class StandardConv(nn.Conv2d):
    """Every filter has mean 0 and variance 1 over what it reads, so that it cannot read more; rows are free."""

    def __init__(self, inputs: int, outputs: int, by_batch_norm: bool) -> None:
        super().__init__(inputs, outputs, 3, padding=1)
        self.gain, self.by_batch_norm = nn.Parameter(torch.full((outputs, 1, 1, 1), 0.5)), by_batch_norm

    def forward(self, x: Tensor) -> Tensor:
        if self.by_batch_norm:
            rows = self.weight.reshape(1, self.out_channels, -1)
            weight = F.batch_norm(rows, None, None, weight=self.gain.view(-1), training=True, momentum=0.0)
            weight = weight.reshape_as(self.weight)
        else:
            variance, mean = torch.var_mean(self.weight, dim=[1, 2, 3], keepdim=True)
            weight = self.gain * (self.weight - mean) * torch.rsqrt(variance + 1e-5)
        return F.conv2d(x, weight, self.bias, self.stride, self.padding)


@specimen(
    "standardised",
    IMAGES,
    grows={"mix": 6, "two": 8},
    pinned={"stem": "batch norm", "one": "reduces", "head": "output"},
)
class Standardised(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem, self.mix = nn.Conv2d(3, 5, 1), nn.Conv2d(8, 6, 1)
        self.one, self.two = StandardConv(5, 7, True), StandardConv(7, 8, False)
        self.last, self.head = nn.Conv2d(6, 6, 3, padding=1), nn.Linear(6, 4)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.two(F.relu(self.one(F.relu(self.stem(x))))))
        return self.head(F.relu(self.last(F.relu(self.mix(x)))).mean((2, 3)))


@specimen("spectral_norm", VECTORS, grows={"fc2": 12}, pinned={"fc1": "spectral norm", "fc3": "spectral norm"})
class SpectralNorm(nn.Module):
    """The largest singular value of a weight divides all of it, so that neither side may grow."""

    def __init__(self) -> None:
        super().__init__()
        norm = nn.utils.parametrizations.spectral_norm
        self.fc1, self.fc2 = norm(nn.Linear(8, 16), n_power_iterations=9), nn.Linear(16, 12)
        self.fc3, self.head = nn.Linear(12, 10), norm(nn.Linear(10, 4), n_power_iterations=9)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.relu(self.fc2(torch.relu(self.fc1(x))))
        return self.head(torch.relu(self.fc3(x)))
