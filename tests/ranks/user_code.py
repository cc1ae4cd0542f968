"""What a user of `firefly grow` writes: a model, its batches, and a loss that may kill its process, once."""

from __future__ import annotations

import os
import signal
from typing import Any

import rank_nets as nets
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

make_model = nets.make_mlp
CALLS: list[int] = []


def make_loaders() -> tuple[DataLoader[Any], DataLoader[Any]]:
    """In batches of 12 samples over all ranks."""
    random = torch.Generator().manual_seed(0)
    inputs = torch.randn(84, 6, generator=random, dtype=torch.float64)
    data = TensorDataset(inputs, inputs[:, :3].argmax(1))
    return DataLoader(data, 12 // int(os.environ.get("RANKS", 1)), shuffle=True), DataLoader(data, 84)


def loss(model: nn.Module, batch: Any) -> Tensor:
    CALLS.append(1)
    now = os.environ.get("RANK", ""), os.environ.get("TORCHELASTIC_RESTART_COUNT")
    if len(CALLS) == 40 and now == (os.environ.get("DIES"), "0"):
        os.kill(os.getpid(), signal.SIGKILL)
    return nets.loss(model, tuple(batch))
