"""Jobs beside each other in processes of their own, for the benchmarks that train many networks on one GPU.

On a GPU start CUDA's multi-process service before (`nvidia-cuda-mps-control -d`); seconds mean little then.
"""

import multiprocessing
import os
import threading
import time
import traceback
from collections.abc import Callable
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from typing import Any, TypeVar

Job = TypeVar("Job")


def run_jobs(
    todo: list[Job],
    work: Callable[[Job], Any],
    finish: Callable[[Job, Any], None],
    processes: int = 1,
    minutes: float = float("inf"),
    is_ready: Callable[[Job], bool] = lambda job: True,
) -> tuple[int, int]:
    """Do what can be done, in order, and begin nothing after so many minutes; how many are left, and how many failed.

    One that fails is told and does not take the others with it; one whose process dies takes those beside it.
    """
    todo, begun, failed, broken = list(todo), time.monotonic(), 0, False
    running: dict[Future[Any], Job] = {}
    with ProcessPoolExecutor(processes, multiprocessing.get_context("spawn"), follow_parent) as pool:
        while todo or running:
            late = time.monotonic() - begun > 60 * minutes
            ready = filter(is_ready, () if late else list(todo))
            while len(running) < processes and not broken and (job := next(ready, None)) is not None:
                try:
                    running[pool.submit(work, job)] = job
                    todo.remove(job)
                except BrokenProcessPool:
                    broken = True
            if not running:
                break
            for done in wait(running, return_when=FIRST_COMPLETED).done:
                job = running.pop(done)
                try:
                    finish(job, done.result())
                except Exception as error:
                    traceback.print_exception(error)
                    print(f"failed: {job}: {type(error).__name__}: {error}", flush=True)
                    failed, broken = failed + 1, broken or isinstance(error, BrokenProcessPool)
    if not broken:
        return len(todo), failed
    left, more = run_jobs(todo, work, finish, processes, minutes - (time.monotonic() - begun) / 60, is_ready)
    return left, failed + more


def follow_parent() -> None:
    """End this process with the one that began it: killed, that one could not stop it, and would find it at work."""
    parent = multiprocessing.parent_process()
    assert parent is not None
    threading.Thread(target=lambda: (parent.join(), os._exit(1)), daemon=True).start()
