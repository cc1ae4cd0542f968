"""Several inputs or outputs, layers that run twice, tied, frozen and unused ones."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from zoo.entry import (
    COPIES,
    IMAGES,
    PAIRS,
    VECTORS,
    Task,
    draw_class_and_norm,
    draw_image_and_vector,
    noisy_classes,
    specimen,
)


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
