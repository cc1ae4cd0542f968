"""Does growth pay as a finder? Which widths should a network of a given size have, and what do other ways to them cost?

    python benchmarks/find_pays.py vgg19-4 resnet20 --seeds 0 1 --jobs 3 --out results/find-pays.jsonl     (a GPU)
    python benchmarks/find_pays.py gpt-text --try find-on --try "scaled lr=0.001" --try "taylor lr=0.001"
    python benchmarks/find_pays.py resnet-fashion --seeds 0 1 2 --out results/find-pays.jsonl      (hours of a CPU)
    python benchmarks/find_pays.py digits --quick                                          (seconds of a CPU)

All networks of a task have the same size and the same last training. `uniform` has equal widths, `scaled` those of the
full network times a factor, and `longer` trains one of the two longer, by what a finding costs; `find-on` and
`find-anew` are `firefly.find`; `random` searches widths for the cost of a finding; `slimming`, `taylor` and `magnitude`
train the full network, prune it and train on, and the full network's training counts. A `--try` is a method and changes
of its `Try`: limit=parameters, flops or both; the FLOPs are those of the network with equal widths (like=uniform) or of
the full one scaled alike (like=scaled) with the parameters.

Everything is measured on data set apart from training, on the test set only with `--test`. One JSON line a network
goes to `--out` as soon as it is trained; what is there is not done again. Three `--jobs` are enough for one GPU; start
CUDA's multi-process service before (`nvidia-cuda-mps-control -d`), and believe no seconds then.
"""

import argparse
import math
import os
from dataclasses import asdict, dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any

import torch
from find_bench import Bench, Cost, Try, find_limits
from find_methods import METHODS, NEEDS
from find_tasks import TASKS, Task, judge, load_task
from pool import run_jobs

import firefly
from firefly.anatomy.widths import Anatomy
from firefly.experiments.rows import Row, append, count, hardware, read_rows
from firefly.training.optimizer import tell_groups

Known = set[tuple[str, str, int]]  # task, words and seed of the rows that are there


@dataclass(frozen=True)
class Job:
    task: str
    words: str
    seed: int
    how: argparse.Namespace = field(compare=False)

    @property
    def quick(self) -> bool:
        return bool(self.how.quick)

    def read(self) -> Try:
        found = read_try(self.words)
        quick = replace(found, epochs=found.epochs or 1, growths=found.growths or 2, steps=2)
        return quick if self.quick else found


def read_try(words: str) -> Try:
    """A method and KEY=VALUE changes."""
    method, *changes = words.split()
    if method not in METHODS:
        raise SystemExit(f"{method!r} is no method; known: {', '.join(METHODS)}")
    found = Try(method)
    for change in changes:
        key, _, value = change.partition("=")
        if not hasattr(found, key):
            raise SystemExit(f"{change!r}: known are {', '.join(asdict(found))}")
        found = replace(found, **{key: type(getattr(found, key))(value)})
    return found


@cache
def trace_full(name: str) -> Anatomy:
    task = TASKS[name]
    return firefly.trace(task.make(), task.example)


def make_bench(job: Job) -> tuple[Bench, Any]:
    """What a method gets, and what its network is measured on."""
    task, words = TASKS[job.task], job.read()
    train, held = load_task(job.task, job.how.test)
    if job.quick:
        train, held = cut(train, 640), cut(held, 320)
    usual = task.recipe
    recipe = replace(
        usual,
        epochs=words.epochs or usual.epochs,
        batch=words.batch or usual.batch,
        lr=words.lr or usual.lr,
        seed=job.seed,
        device=job.how.device,
    )
    full = trace_full(job.task)
    return Bench(task, words, job.seed, train, recipe, full, find_limits(task, full, words.like), job.how.runs), held


def cut(data: Any, most: int) -> Any:
    return (
        (data[0][:most], data[1][:most]) if isinstance(data, tuple) else data.take(torch.arange(min(most, len(data))))
    )


def run_job(job: Job) -> Row:
    """One network: found, trained and judged."""
    torch.set_num_threads(1 if job.how.jobs > 1 else max(1, (os.cpu_count() or 2) // 2))
    bench, held = make_bench(job)
    cost = Cost()
    model = METHODS[bench.words.method](bench, cost)
    anatomy = firefly.trace(model, bench.task.example.to(next(model.parameters()).device))
    where = "test" if job.how.test else "held"
    found = {f"{where}_{key}": value for key, value in judge(bench.task, model, held).items()}
    return {
        "benchmark": "find_pays",
        "task": job.task,
        "method": bench.words.method,
        "tried": job.words,
        "seed": job.seed,
        **found,
        "parameters": count(model),
        "flops": anatomy.flops(),
        "limits": dict(bench.limits),
        "widths": {width.name: width.size for width in anatomy.growable()},
        "train_flops": cost.flops,
        "finding_flops": cost.finding,
        "epochs": cost.epochs,
        "seconds": round(cost.seconds, 2),
        "growth_seconds": round(cost.growing, 2),
        "shared": job.how.shared or job.how.jobs > 1,
        "device": hardware(torch.device(job.how.device)),
        "config": {**asdict(bench.words), **bench.recipe.to_dict(), "optimizer": tell(bench), "quick": job.quick},
    }


def tell(bench: Bench) -> list[dict[str, Any]]:
    """The optimiser of the last training."""
    made = bench.task.optimizer([torch.nn.Parameter(torch.zeros(1))], bench.recipe.lr)
    return [{"kind": type(made).__name__} | group for group in tell_groups(made)]


def show(row: Row) -> None:
    where = "test" if "test_loss" in row else "held"
    good = f"{row[f'{where}_accuracy']:7.2%} " if f"{where}_accuracy" in row else ""
    print(
        f"{row['task']:9} {good}loss {row[f'{where}_loss']:.4f}  {row['parameters']:>10,} parameters "
        f"{row['flops'] / 1e6:8.2f} MFLOPs  {row['train_flops'] / 1e12:9.3f} TFLOPs in all, finding "
        f"{row['finding_flops'] / max(row['train_flops'], 1):4.0%}  {row['seconds']:6.1f} s (growth "
        f"{row['growth_seconds']:4.1f})  seed {row['seed']}  {row['tried']}",
        flush=True,
    )


def list_known(how: argparse.Namespace) -> Known:
    rows = read_rows(how.out, under_way=True) if how.out and how.out.exists() else []
    where = "test_loss" if how.test else "held_loss"
    mine = [row for row in rows if where in row and row["config"]["quick"] == how.quick]
    return {(row["task"], row["tried"], row["seed"]) for row in mine}


def list_jobs(how: argparse.Namespace, known: Known) -> list[Job]:
    """What is not in the results yet; full networks first, since others wait for them."""
    jobs: list[Job] = []
    for seed in how.seeds:
        first, then = [], []
        for task in how.tasks:
            tries = how.tries or list_usual(TASKS[task], how.epochs)
            missing = [Job(task, words, seed, how) for words in tries if (task, words, seed) not in known]
            waiting = [job for job in missing if not is_ready(job)]
            needs = [Job(task, str(find_need(job.words)), seed, how) for job in waiting]
            first += [job for job in missing if job.read().method in NEEDS.values()] + needs
            then += [job for job in missing if job.read().method not in NEEDS.values()]
        jobs += [*dict.fromkeys(first), *then]
    return jobs


def list_usual(task: Task, epochs: int) -> list[str]:
    """Limited in parameters and FLOPs; where equal widths are a choice also in parameters alone, as they are."""
    slim = [] if task.name.startswith("gpt") else ["slimming"]
    full = ["full", *["full-l1"] * len(slim)]
    ways = ["find-on", "find-anew", "longer", "random", *slim, "taylor"]
    tries = [*full, "scaled", *ways]
    if task.alike:
        tries = [*full, "scaled", "find-on", "find-anew", "taylor"]
        tries += [f"{way} limit=parameters" for way in ("uniform", *ways)]
    return [f"{words} epochs={epochs}" if epochs else words for words in tries]


def find_need(words: str) -> str | None:
    """The full network that a try prunes, as a try of its own: with the same epochs and batches, at the usual rate."""
    method, *changes = words.split()
    kept = [word for word in changes if word.split("=")[0] in ("epochs", "batch", "l1")]
    return " ".join([NEEDS[method], *kept]) if method in NEEDS else None


def is_ready(job: Job) -> bool:
    """Whether the full network that it prunes is there."""
    return job.read().method not in NEEDS or Path(f"{make_bench(job)[0].kept}.json").exists()


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tasks", nargs="+", choices=TASKS)
    parser.add_argument("--try", dest="tries", action="append", metavar="METHOD KEY=VALUE ...")
    parser.add_argument("--epochs", type=int, default=0, help="of the usual tries, if not as the task has them")
    parser.add_argument("--seeds", nargs="+", type=int, default=[0])
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--jobs", type=int, default=1, help="processes beside each other")
    parser.add_argument("--shared", action="store_true", help="others are at work on this machine: believe no seconds")
    parser.add_argument("--minutes", type=float, default=math.inf, help="begin no network after that time")
    parser.add_argument("--quick", action="store_true", help="few images, one epoch: to see that all works")
    parser.add_argument("--test", action="store_true", help="measure on the test set")
    parser.add_argument("--out", type=Path, help="a file to append JSON lines to")
    parser.add_argument("--runs", type=Path, default=Path("runs/find"), help="the full networks, which several prune")
    return parser.parse_args()


def main() -> int:
    how = parse()
    known = list_known(how)

    def finish(job: Job, row: Row) -> None:
        show(row)
        if how.out and (job.task, job.words, job.seed) not in known:
            append(how.out, row)

    left, failed = run_jobs(list_jobs(how, known), run_job, finish, how.jobs, how.minutes, is_ready)
    if left or failed:
        print(f"{left} left, {failed} failed: the same command goes on")
    return 1 if failed else 0


if __name__ == "__main__":
    raise SystemExit(main())
