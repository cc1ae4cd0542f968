"""The commands under torchrun: each process joins the others, has a GPU of its own, and only the first one speaks."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout

import torch
import torch.distributed as dist


def find_launched() -> int:
    """The rank that torchrun gave this process; 0 without it."""
    return int(os.environ.get("RANK", 0)) if is_launched() else 0


def is_launched() -> bool:
    return dist.is_available() and dist.is_torchelastic_launched() and os.environ.get("WORLD_SIZE", "1") != "1"


@contextmanager
def joined() -> Iterator[None]:
    """Inside, the processes that torchrun has started work as one; what others than the first print is dropped."""
    if not is_launched() or dist.is_initialized():
        yield
        return
    begin()
    if find_launched():
        with open(os.devnull, "w") as nowhere, redirect_stdout(nowhere):
            yield
    else:
        yield
    dist.destroy_process_group()


def begin() -> None:
    """Join, with NCCL for tensors on GPUs and gloo for others.

    The store of torchrun keeps what an attempt wrote in it, and a restart would read the addresses of dead processes
    there (https://github.com/pytorch/pytorch/issues/135712): on one machine each attempt gets a part of its own.
    """
    gpus = torch.cuda.device_count()
    if gpus:
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]) % gpus)
    store, rank, ranks = next(dist.rendezvous("env://"))
    if os.environ.get("LOCAL_WORLD_SIZE") == os.environ.get("WORLD_SIZE"):
        store = dist.PrefixStore(f"attempt {os.environ.get('TORCHELASTIC_RESTART_COUNT', 0)}", store)
    dist.init_process_group("cpu:gloo,cuda:nccl" if gpus else "gloo", store=store, rank=rank, world_size=ranks)
