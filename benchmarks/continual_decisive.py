"""Task after task on CIFAR-100: what is still to be measured, many methods beside each other on one GPU, in pieces.

    python benchmarks/continual_decisive.py held-out --out results/continual-20-held-out.jsonl --jobs 9 --minutes 9
    python benchmarks/continual_decisive.py test --seeds 0 1 2 --out results/continual-20.jsonl --jobs 9 --minutes 9
    python benchmarks/continual_decisive.py test --quick --minutes 1                             (digits, on a CPU)

The same command goes on where it was stopped, also where it was killed; when time is up every training is kept as it
is. The first lines of a phase come first; who is as large as Firefly's network waits until that of its split has learnt
all tasks. Settings are chosen by `held-out`, on training images of a split that is not reported, and given to the other
phases with `--set`. `--runs` holds the lines that are not finished, and no more. Start CUDA's multi-process service
before (`nvidia-cuda-mps-control -d`), and believe no seconds.
"""

from __future__ import annotations

import argparse
import math
import os
import shutil
import signal
import time
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from pool import run_jobs

from firefly.experiments import continual, options
from firefly.experiments.continual import SETTINGS, find_folder, find_size, measure, read_own
from firefly.experiments.continual.course import Course
from firefly.experiments.continual.methods import METHODS, SIZED
from firefly.experiments.continual.table import table

# Each line: a method and changes of the setting; the first nine begin at once, so what decides comes first. With nine
# jobs on one H200 Firefly took 15 to 40 s for a task in batches of 64, the more the later.
CHOICES = ("", "batch=32", "batch=32 lr=0.05", "price=0.05")  # for two splits: --seeds 100 101
STRENGTHS = ("ewc strength=1e5", "ewc strength=1e6", "ewc strength=1e7", "ewc")
PHASES = {
    "held-out": (
        *(f"firefly {one}".strip() for one in CHOICES),
        *("firefly-unlock", "firefly-random", "uniform", "individual own=64", *STRENGTHS),
        *("equal", "last", "cpg", "frozen", "firefly-new", "firefly-all", "joint"),
    ),
    "test": ("firefly", "firefly-random", "uniform", "equal", "last", "ewc", "fine-tune", "individual", "cpg"),
    "rest": ("joint", "firefly-unlock", "firefly-new", "frozen", "firefly-all", "firefly-none", "firefly-deaf"),
}
HELD_OUT = 10  # tasks, on which settings are chosen
TOY = ["widths=2", "epochs=2", "first_epochs=1", "steps=2", "images=300", "candidates=2"]
TOY += ["start=60", "parameters=60", "fisher=4", "mask_epochs=1", "batch=32"]


@dataclass(frozen=True)
class Job:
    words: str
    seed: int
    how: argparse.Namespace = field(compare=False)

    @property
    def method(self) -> str:
        return self.words.split()[0]

    @property
    def course(self) -> Course:
        how = self.how
        known = SETTINGS["quick"][None if how.quick else how.ways]
        held_out = how.phase == "held-out"
        tasks = min(HELD_OUT, known.ways) if held_out else None
        known = replace(known, held_out=held_out, split=how.split, tasks=tasks)
        base = options.change(known, [*(TOY if how.quick else ()), *how.set])
        return options.change(base, self.words.split()[1:])


def list_jobs(how: argparse.Namespace) -> list[Job]:
    seeds = how.seeds or ([100] if how.phase == "held-out" else [0, 1, 2])
    return [Job(words, seed, how) for words in how.lines or PHASES[how.phase] for seed in seeds]


def is_measured(job: Job) -> bool:
    rows = read_own(job.how.out, job.course)
    return any((row["method"], row["seed"], row["final"]) == (job.method, job.seed, True) for row in rows)


def is_ready(job: Job) -> bool:
    """Whether it is known how large it may be."""
    if job.method not in SIZED:
        return True
    try:
        return find_size(job.how.out, job.course, job.seed, job.method) > 0
    except continual.FireflyError:
        return False


def run_job(job: Job) -> str:
    """Measure one line, until all its tasks are learnt or time is up: then as Ctrl-C does."""
    how, name = job.how, "continual" if job.how.quick else f"continual-{job.how.ways}"
    interrupted = signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored in the background of a shell
    alarmed = signal.signal(signal.SIGALRM, lambda *_: os.kill(os.getpid(), signal.SIGINT))
    try:
        signal.setitimer(signal.ITIMER_REAL, max(0.01, how.end - time.time()))
        measure(name, job.course, job.method, job.seed, how, how.runs, how.out, math.inf)
        shutil.rmtree(find_own_folder(job), ignore_errors=True)  # its rows are what is left
        return "done"
    except KeyboardInterrupt:
        return "stopped"
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGINT, interrupted)
        signal.signal(signal.SIGALRM, alarmed)


def find_own_folder(job: Job) -> Path:
    """Where its trainings are kept."""
    size = find_size(job.how.out, job.course, job.seed, job.method) if job.method in SIZED else 0
    return find_folder(job.how.runs, job.course, job.method, job.seed, size)


def read_arguments(words: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("phase", choices=PHASES)
    parser.add_argument("--lines", nargs="+", help="of the phase, only these, as 'ewc strength=1e4'")
    parser.add_argument("--ways", type=int, choices=(10, 20), default=20)
    parser.add_argument("--split", choices=("random", "superclass"), default="random")
    parser.add_argument("--seeds", nargs="+", type=int, help="splits (100 for held-out, else 0 1 2)")
    parser.add_argument("--set", nargs="+", default=[], metavar="KEY=VALUE", help="settings of all lines")
    parser.add_argument("--jobs", type=int, default=1, help="beside each other")
    parser.add_argument("--minutes", type=float, default=1e6, help="stop after so many")
    parser.add_argument("--out", type=Path, help="the rows (results.jsonl in the folder of the runs)")
    parser.add_argument("--runs", type=Path, default=Path("runs/continual-decisive"), help="what is under way")
    parser.add_argument("--data", type=Path, help="the folder of CIFAR-100 (FIREFLY_DATA, else data)")
    parser.add_argument("--device", help="cuda or cpu (what there is)")
    parser.add_argument("--quick", action="store_true", help="on digits, seconds a line on a CPU")
    how = parser.parse_args(words)
    how.out = how.out or how.runs / "results.jsonl"
    how.end = time.time() + 60 * how.minutes
    for job in list_jobs(how):  # refuses wrong words now
        if job.method not in METHODS:
            parser.error(f"{job.words}: a line begins with one of {', '.join(METHODS)}")
        assert job.course
    return how


def main(words: list[str] | None = None) -> int:
    how = read_arguments(words)
    jobs = [job for job in list_jobs(how) if not is_measured(job)]

    def finish(job: Job, said: Any) -> None:
        print(f"{said}: {job.words}, split {job.seed}", flush=True)

    _, failed = run_jobs(jobs, run_job, finish, how.jobs, how.minutes, is_ready)
    print(table(options.read_rows(how.out)))
    left = [job for job in jobs if not is_measured(job)]
    print(f"{len(left)} lines are left: the same command goes on" if left else "all is measured", flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    raise SystemExit(main())
