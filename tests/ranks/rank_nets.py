"""Small networks and batches for several ranks, in float64: what then differs differs by more than rounding."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

Batch = list[tuple[Tensor, Tensor]]  # parts, each normalised for itself


def make_mlp() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 3)).double()


def make_normed() -> nn.Module:
    torch.manual_seed(0)
    body = [nn.Linear(6, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Dropout(0.2), nn.Linear(8, 8), nn.BatchNorm1d(8)]
    return nn.Sequential(*body, nn.ReLU(), nn.Linear(8, 3)).double()


MAKERS = {"mlp": make_mlp, "normed": make_normed}


def make_parts(count: int, ranks: int, size: int = 6) -> list[Batch]:
    """`count` batches, each of a part for every rank."""
    random = torch.Generator().manual_seed(1)
    return [
        [
            (
                torch.randn(size, 6, generator=random, dtype=torch.float64),
                torch.randint(3, (size,), generator=random),
            )
            for _ in range(ranks)
        ]
        for _ in range(count)
    ]


def loss(model: nn.Module, batch: Any) -> Tensor:
    """Of a batch, or the mean over the parts of one."""
    if isinstance(batch, list):
        return torch.stack([loss(model, part) for part in batch]).mean()
    return F.cross_entropy(model(batch[0]), batch[1])
