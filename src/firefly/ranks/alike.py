"""Before a growth: the ranks have the same model, the same optimiser, the same options, and as many batches."""

from __future__ import annotations

import re
from collections.abc import Mapping
from contextlib import ExitStack
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from firefly.ranks.talk import agree, count_ranks, share


def check_alike(model: nn.Module, optimizer: torch.optim.Optimizer | None, options: Mapping[str, Any]) -> None:
    """Refuse, on every rank and in words, a growth that would not be the same everywhere, or would never end."""
    if count_ranks() == 1:
        return
    named, facts = dict(model.named_parameters()), list_shapes(model)
    for name, total in zip(named, sum_bits(named.values())):
        facts[f"the values of {name} (their sum; a wrapper must be made anew after a growth: firefly.rewrap)"] = total
    facts["train or eval mode"] = model.training
    facts["the optimizer"] = None if optimizer is None else type(optimizer).__name__
    agree(facts | {name: re.sub(" at 0x[0-9a-f]+", "", str(value)) for name, value in options.items()})


def list_shapes(model: nn.Module) -> dict[str, Any]:
    """What models of the same architecture have in common."""
    facts: dict[str, Any] = {"the model's class": type(model).__name__}
    for name, p in model.named_parameters():
        facts[f"the shape of {name}"] = [list(p.shape), str(p.dtype), p.requires_grad]
    return facts | {f"the shape of {name}": list(buffer.shape) for name, buffer in model.named_buffers()}


@torch.no_grad()
def sum_bits(tensors: Any) -> list[int]:
    """The sum of each tensor's bits, as whole numbers of its size: the same to the last bit, or another number."""
    kinds = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
    found = []
    for tensor in tensors:
        flat = torch.view_as_real(tensor) if tensor.is_complex() else tensor
        whole = flat.detach().contiguous().view(kinds[flat.element_size()])
        found.append(whole.sum(dtype=torch.int64))
    return torch.stack([one.cpu() for one in found]).tolist() if found else []


@torch.no_grad()
def share_buffers(model: nn.Module, wrapped: nn.Module, undo: ExitStack) -> None:
    """Take rank 0's buffers, as DistributedDataParallel does before every forward, unless it was told not to."""
    if count_ranks() > 1 and (not isinstance(wrapped, DistributedDataParallel) or wrapped.broadcast_buffers):
        for buffer in model.buffers():
            undo.callback(buffer.detach().copy_, buffer.clone())
        share(list[Tensor](model.buffers()))
