"""What the processes of a job (ranks, as torch calls them) tell each other, so that all of them grow the same.

Each rank looks at its own batches. Whatever a growth computes from them is *averaged*, so that every rank has the
number that one process with all the batches would have; what is decided is *decided* by rank 0. With one process, or
without `torch.distributed`, nothing here does anything. A rank that ends, or differs, is an error on all the others.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from datetime import timedelta
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

from firefly.errors import FireflyError, first_line

PATIENCE = timedelta(minutes=10)  # that a rank may be late for a growth

Value = TypeVar("Value")

_alone: ContextVar[bool] = ContextVar("alone", default=False)


def count_ranks() -> int:
    """How many processes work together; 1 without `torch.distributed`."""
    if _alone.get() or not (dist.is_available() and dist.is_initialized()):
        return 1
    return dist.get_world_size()


def find_rank() -> int:
    return dist.get_rank() if count_ranks() > 1 else 0


@contextmanager
def alone() -> Iterator[None]:
    """Inside, this process grows and trains for itself, whatever the others do."""
    token = _alone.set(True)
    try:
        yield
    finally:
        _alone.reset(token)


@torch.no_grad()
def average(tensors: Iterable[Tensor]) -> None:
    """Each tensor becomes its mean over the ranks, in place; one message for all of a type."""
    ranks = count_ranks()
    if ranks == 1:
        return
    for same in _sort(tensors):
        flat = torch.cat([tensor.detach().reshape(-1) for tensor in same])
        with explained():
            dist.all_reduce(flat)
        _spread(flat / ranks, same)


@torch.no_grad()
def share(tensors: Iterable[Tensor]) -> None:
    """Each tensor becomes what rank 0 has, in place."""
    if count_ranks() == 1:
        return
    for same in _sort(tensors):
        flat = torch.cat([tensor.detach().reshape(-1) for tensor in same])
        with explained():
            dist.broadcast(flat.view(torch.uint8), 0)  # not every backend knows every type: NCCL no int16, gloo no bool
        _spread(flat, same)


def _sort(tensors: Iterable[Tensor]) -> list[list[Tensor]]:
    """Those that can travel together."""
    found: dict[Any, list[Tensor]] = {}
    for tensor in tensors:
        if tensor.numel():
            found.setdefault((tensor.device, tensor.dtype), []).append(tensor)
    return list(found.values())


def _spread(flat: Tensor, tensors: list[Tensor]) -> None:
    for tensor, part in zip(tensors, flat.split([tensor.numel() for tensor in tensors])):
        tensor.detach().copy_(part.view(tensor.shape))


def average_number(value: Any) -> Any:
    """The mean of a number over the ranks that have one; None if none has."""
    if count_ranks() == 1:
        return value
    told = [one for one in gather(None if value is None else float(value)) if one is not None]
    return sum(told) / len(told) if told else None


def gather(value: Value) -> list[Value]:
    """What each rank has, in their order; the value must be small."""
    ranks = count_ranks()
    if ranks == 1:
        return [value]
    found: list[Any] = [None] * ranks
    with explained():
        dist.all_gather_object(found, value)
    return found


def decide(value: Value) -> Value:
    """What rank 0 has; the value must be small."""
    if count_ranks() == 1:
        return value
    box = [value]
    with explained():
        dist.broadcast_object_list(box, 0)
    return box[0]


@contextmanager
def together() -> Iterator[None]:
    """What is wrong on one rank is told on all: nobody waits for one that gave up, or never came."""
    if count_ranks() == 1:
        yield
        return
    wrong: Exception | None = None
    try:
        yield
    except Exception as error:  # the others must hear of it first
        wrong = error
    _meet()
    told = gather(None if wrong is None else first_line(wrong))
    if wrong is not None:
        raise wrong
    found = [(rank, text) for rank, text in enumerate(told) if text is not None]
    if found:
        raise FireflyError(f"rank {found[0][0]} gave up: {found[0][1]}")


def _meet() -> None:
    world: Any = dist.group.WORLD
    if "cpu:gloo" in dist.get_backend_config():  # which can say who is missing
        try:
            world.monitored_barrier(PATIENCE)
        except RuntimeError as error:
            raise FireflyError(
                f"not all of the {count_ranks()} ranks came to this growth ({first_line(error)}): call it on every "
                "rank in the same epoch, or inside `with firefly.alone():` on one"
            ) from error


def agree(facts: Mapping[str, Any]) -> None:
    """Refuse, on every rank, what is not the same on all; plain data, each under the name that users know."""
    if count_ranks() == 1:
        return
    told = {name: json.dumps(value, default=str) for name, value in facts.items()}
    digest = hashlib.sha256(json.dumps(told).encode()).hexdigest()
    if len(set(gather(digest))) == 1:
        return
    everyone = gather(told)
    for name in dict.fromkeys(name for facts in everyone for name in facts):
        for rank, other in enumerate(everyone):
            if other.get(name) != everyone[0].get(name):
                one, two = (str(facts.get(name, "none")) for facts in (everyone[0], other))
                raise FireflyError(
                    f"the ranks differ in {name}: rank 0 has {one:.200}, rank {rank} has {two:.200}; give all the same"
                )


@contextmanager
def explained() -> Iterator[None]:
    """A rank that ends takes the connection with it: say so."""
    try:
        yield
    except RuntimeError as error:
        raise FireflyError(
            f"the other ranks cannot be reached ({first_line(error)}): one of them has ended or waits elsewhere, and "
            "its own message says why; `torchrun --max-restarts` begins again from the last checkpoint"
        ) from error
