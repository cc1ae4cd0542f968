"""Several ranks for a test: processes that begin as copies of one which has imported torch, and talk through gloo."""

from __future__ import annotations

import datetime
import multiprocessing
import pickle
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

FORKS = multiprocessing.get_context("forkserver")
SHARED = [
    "pytest",
    "torch._dynamo",
    "torch.distributed.tensor",
    "torch.distributed.fsdp",
    "torch.export._trace",
    "firefly",
]
FORKS.set_forkserver_preload(SHARED)
GONE = ("", "the process has ended")


def run_ranks(count: int, work: Callable[..., Any], *given: Any, patience: float = 60) -> list[Any]:
    """What `work(rank, *given)` returned on each rank; of an exception, its class and text; GONE if the rank died."""
    with tempfile.TemporaryDirectory() as folder:
        store = str(Path(folder) / "store")
        pipes = [FORKS.Pipe(duplex=False) for _ in range(count)]
        ranks = [
            FORKS.Process(target=_serve, args=(rank, count, store, pipe[1], work, given, patience))
            for rank, pipe in enumerate(pipes)
        ]
        for process, pipe in zip(ranks, pipes):
            process.start()
            pipe[1].close()
        found = [_receive(pipe[0]) for pipe in pipes]
        for process in ranks:
            process.join()
    return found


def _receive(pipe: Any) -> Any:
    try:
        return pickle.loads(pipe.recv_bytes())
    except EOFError:
        return GONE


def _serve(rank: int, count: int, store: str, pipe: Any, work: Any, given: Any, patience: float) -> None:
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    wait = datetime.timedelta(seconds=patience)
    dist.init_process_group(store=dist.FileStore(store, count), rank=rank, world_size=count, timeout=wait)
    try:
        pipe.send_bytes(pickle.dumps(work(rank, *given)))  # tensors as they are, not as shared memory
    except Exception as error:
        pipe.send_bytes(pickle.dumps((type(error).__name__, str(error))))
    finally:
        dist.destroy_process_group()
