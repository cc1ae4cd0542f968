"""Perceptrons: linear layers, bare parameters, gates, einsum."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from zoo.entry import VECTORS, specimen


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


@specimen("einsum", VECTORS, grows={"w": 16, "v": 10, "mix": 12}, pinned={"head": "output"})
class Einsum(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.w, self.v = nn.Parameter(torch.randn(16, 8) / 3), nn.Parameter(torch.randn(16, 10) / 4)
        self.mix = nn.Linear(10, 12)
        self.head = nn.Linear(12, 4)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.relu(torch.einsum("bi,oi->bo", x, self.w))
        x = torch.relu(torch.einsum("...i, io -> ...o", x[:, None], self.v)).squeeze(1)
        return self.head(torch.relu(self.mix(x)))
