"""`benchmarks/pool.py`: who is killed leaves nobody at work."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))

from pool import run_jobs

FOLDER = Path(__file__).parents[2] / "benchmarks"
PARENT = """
import os, sys, time
from pathlib import Path
from pool import run_jobs

def work(path):
    path.write_text(str(os.getpid()))
    time.sleep(60)

if __name__ == "__main__":
    run_jobs([Path(sys.argv[1])], work, print)
"""


def test_jobs_end_with_a_parent_that_is_killed(tmp_path: Path) -> None:
    (tmp_path / "parent.py").write_text(PARENT)
    told = tmp_path / "worker"
    environment = os.environ | {"PYTHONPATH": str(FOLDER)}
    parent = subprocess.Popen([sys.executable, str(tmp_path / "parent.py"), str(told)], env=environment)
    wait(lambda: told.exists() and told.read_text() != "")
    worker = int(told.read_text())
    try:
        parent.kill()
        parent.wait()
        wait(lambda: not is_alive(worker))
    finally:
        if is_alive(worker):
            os.kill(worker, signal.SIGKILL)


def die_of_two(job: int) -> int:
    if job == 2:
        os._exit(1)  # as one that takes too much memory
    return job


def test_the_others_are_done_where_a_process_dies() -> None:
    done: list[int] = []
    assert run_jobs([1, 2, 3, 4], die_of_two, lambda job, found: done.append(found)) == (0, 1)
    assert done == [1, 3, 4]


def wait(until: Callable[[], bool]) -> None:
    end = time.monotonic() + 30
    while not until():
        assert time.monotonic() < end
        time.sleep(0.05)


def is_alive(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    return Path(f"/proc/{process}/stat").read_text().split(") ")[1][0] != "Z"
