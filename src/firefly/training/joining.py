"""A training on several ranks: each takes its part of every batch, and all take the same step.

With the same `batch` several ranks train as one process does: gradients and losses are means over the ranks. Batch
norms see the part of their rank, as they do under DistributedDataParallel; after each epoch their statistics become the
mean over the ranks, so that all ranks begin the next epoch with the same model, which is what a checkpoint holds.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from firefly.errors import FireflyError
from firefly.ranks.alike import list_shapes
from firefly.ranks.talk import agree, average, count_ranks, find_rank, gather, share
from firefly.training.resident import Resident, mix
from firefly.training.score import Score


def check_share(batch: int) -> None:
    """Refuse a batch that the ranks cannot share equally."""
    if batch % count_ranks():
        raise FireflyError(
            f"batch={batch} cannot be shared by {count_ranks()} ranks: it is the batch of all of them together, so "
            f"use a multiple of {count_ranks()}"
        )


def begin(models: Iterable[nn.Module], facts: dict[str, Any]) -> None:
    """All ranks begin with the weights of rank 0, as under DistributedDataParallel."""
    if count_ranks() == 1:
        return
    models = list(models)
    spread = next((name for name, p in models[0].named_parameters() if hasattr(p, "full_tensor")), None)
    if spread is not None:
        raise FireflyError(
            f"{spread} is sharded over the ranks, and this loop shares batches, not parameters: give it the model as "
            "it is, or train the sharded one in a loop of yours and grow it there (docs/several-gpus.md)"
        )
    agree({**list_shapes(models[0]), **facts})
    share([tensor.detach() for model in models for tensor in (*model.parameters(), *model.buffers())])


def take_part(table: Tensor) -> Tensor:
    """This rank's part of the batches of an epoch, (steps, rows, batch)."""
    if count_ranks() == 1:
        return table
    return table.chunk(count_ranks(), dim=2)[find_rank()].contiguous()


def take_share(data: Resident) -> Resident:
    """This rank's share of data to measure on; all of it if there is too little."""
    ranks = count_ranks()
    if ranks == 1 or len(data) < ranks:
        return data
    mine = slice(find_rank(), None, ranks)
    return replace(data, images=data.images[mine], labels=data.labels[mine])


def join_scores(score: Score, count: int) -> Score:
    """The score on all shares; `count`: how many images this rank measured."""
    if count_ranks() == 1:
        return score
    told = gather((round(score.accuracy * count), score.loss * count, count))
    right, total, everyone = (sum(numbers) for numbers in zip(*told))
    return Score(right / everyone, total / everyone)


def choose_seed(seed: int, epoch: int) -> int:
    """Of dropout in an epoch: other noise on every rank, and that of one process on the first."""
    return mix(mix(seed, epoch), find_rank()) if find_rank() else mix(seed, epoch)


class Gradients:
    """The gradients of a model, averaged after every backward."""

    def __init__(self, model: nn.Module) -> None:
        self.model = model
        self.used: list[str] | None = None  # the parameters that have one

    def average(self) -> None:
        if count_ranks() == 1:
            return
        found = {name: p.grad for name, p in self.model.named_parameters() if p.grad is not None}
        if self.used is None:
            agree({"the parameters that the loss depends on": list(found)})
            self.used = list(found)
        other = set(self.used) ^ found.keys()
        if other:
            raise FireflyError(
                f"{min(other)} has a gradient in some steps and none in others: on several ranks each step must reach "
                "the same parameters"
            )
        average(found.values())


@torch.no_grad()
def even_out(models: Iterable[nn.Module]) -> None:
    """After an epoch: norms get the mean of what the ranks have seen; every other buffer is that of rank 0."""
    if count_ranks() == 1:
        return
    modules = [module for model in models for module in model.modules()]
    seen: list[Tensor] = []
    others: list[Tensor] = []
    for module in modules:
        norm = getattr(module, "track_running_stats", False)
        for name, buffer in module._buffers.items():
            if buffer is not None:
                (seen if norm and name in ("running_mean", "running_var") else others).append(buffer)
    average(seen)
    share(others)
