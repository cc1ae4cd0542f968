"""Continual learning (Sec. 3 "Continual Learning", Table 2, Fig. 4; App. B.4): task after task, nothing forgotten.

    firefly reproduce continual                     two minutes on a CPU: five tasks of two digits each
    firefly reproduce continual --ways 20           CIFAR-100 in 20 tasks of 5 classes; a GPU
    firefly reproduce continual --ways 10 --full    10 tasks of 10 classes, with the paper's settings; hours
    firefly reproduce continual --ways 10 --budgets 25000 50000 100000 200000    accuracy against size, Fig. 4(a)
    firefly reproduce continual --ways 20 --rotate 0 5 10 15    each task comes early and late
    firefly reproduce continual --ways 20 --split superclass
    firefly report results/continual.jsonl          the tables and the figures of what was measured
    firefly reproduce continual --ways 20 --held-out --seeds 100    to choose settings: no test image, another split

Every method has the same recipe, epochs, tasks and order, and a head and norms of its own for each task. Those of equal
size are as large as Firefly's network is after the last task, so run `firefly` first. Each row is one method after one
task: the accuracy of every task seen so far. The same command goes on where it was stopped. Where the folder of what
was under way is lost, it begins that method anew, and the later rows count.
"""

from __future__ import annotations

import json
import time
from argparse import ArgumentParser, Namespace
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any

from firefly.continual import metrics
from firefly.errors import FireflyError
from firefly.experiments import options
from firefly.experiments.continual.classroom import Class
from firefly.experiments.continual.course import RIVALS, Course, list_parts
from firefly.experiments.continual.figure import plot
from firefly.experiments.continual.methods import METHODS, SIZED
from firefly.experiments.continual.table import keep_last, table
from firefly.experiments.rows import Row, append, hardware
from firefly.training.recipe import find_device

QUICK = Course(
    "digits",
    ways=5,
    widths=6,
    epochs=16,
    first_epochs=2,
    lr=0.1,
    start=1500,
    parameters=600,
    steps=30,
    candidates=8,
    unlock_epsilon=0.3,
    new_epsilon=0.3,
    pick="mask",
    mask_epochs=6,
    fisher=200,
)
SHORT = Course(  # chosen on held-out images (docs/continual-settings.md)
    first_epochs=5,
    start_epochs=30,
    aside=False,
    parameters=280_000,
    multiple=8,
    unlock_epsilon=4.0,
    strength=1e8,
)
SETTINGS: dict[str, dict[int | None, Course]] = {
    "quick": {None: QUICK, 10: replace(SHORT, ways=10), 20: SHORT},
    "full": {
        10: Course(ways=10, first_epochs=50, start_epochs=60, neurons=256, steps=50 * 63, strength=1e8),
        20: Course(first_epochs=50, start_epochs=60, neurons=256, steps=50 * 31, strength=1e8),
    },
}
USUAL = ["firefly", "individual", "ewc", "fine-tune"]


@dataclass(frozen=True)
class Continual:
    """The experiment; on CIFAR-100 if it is known in how many ways to part it."""

    ways: int | None = None

    @property
    def about(self) -> str:
        """What `--help` says."""
        return str(__doc__)

    def add_arguments(self, parser: ArgumentParser) -> None:
        size = parser.add_mutually_exclusive_group()
        size.add_argument("--quick", action="store_const", dest="size", const="quick", help="the shorter one (default)")
        size.add_argument("--full", action="store_const", dest="size", const="full", help="the paper's settings")
        parser.set_defaults(size="quick")
        parser.add_argument("--ways", type=int, choices=(10, 20), default=self.ways, help="tasks of CIFAR-100")
        parser.add_argument("--split", choices=("random", "superclass"), default="random", help="of classes into tasks")
        known = ", ".join(METHODS)
        order = "begin after so many tasks, which come last; several compare the same tasks early and late"
        parser.add_argument("--rotate", nargs="+", type=int, default=[0], metavar="K", help=order)
        budgets = "several sizes: what a growth of a later task may add, in parameters (with --full, neurons)"
        parser.add_argument("--budgets", nargs="+", type=int, metavar="N", help=budgets)
        parser.add_argument("--methods", nargs="+", default=USUAL, choices=METHODS, metavar="METHOD", help=known)
        parser.add_argument("--seeds", nargs="+", type=int, default=[0], help="each another split into tasks")
        parser.add_argument("--held-out", action="store_true", help="measure on training images set apart")
        parser.add_argument("--minutes", type=float, help="begin no task after so many; the same command goes on later")
        parser.add_argument("--data", type=Path, help="the folder of the data sets (FIREFLY_DATA, else data)")
        parser.add_argument("--out", type=Path, help="the results (results.jsonl in the folder of the runs)")
        parser.add_argument("--runs", type=Path, help="what is under way (runs/continual-WAYS)")
        parser.add_argument("--device", help="cuda or cpu (what there is)")
        keys = ", ".join(field.name for field in fields(Course))
        parser.add_argument("--set", nargs="+", default=[], metavar="KEY=VALUE", help=f"other settings: {keys}")

    def run(self, args: Namespace) -> int:
        courses, name = list_courses(args), "continual" if args.ways is None else f"continual-{args.ways}"
        folder = args.runs or Path("runs") / name
        path = args.out or folder / "results.jsonl"
        deadline = time.monotonic() + 60 * args.minutes if args.minutes is not None else float("inf")
        finished = all(
            measure(name, course, method, seed, args, folder, path, deadline)
            for course in courses
            for seed in args.seeds
            for method in args.methods
        )
        rows = [row for course in courses for row in read_own(path, course)]
        print(f"\n{table(rows)}\n\n{len(rows)} rows in {path}")
        if rows:
            print(f"figure: {plot(rows, folder / f'{name}.svg')}")
        if not finished:
            print("time is up: the same command goes on from here")
        return 0

    def table(self, rows: list[Row]) -> str:
        return table(rows)

    def plot(self, rows: list[Row], path: Path) -> Path:
        return plot(rows, path)


def choose(args: Namespace) -> Course:
    """The setting that the options ask for."""
    if args.ways not in SETTINGS[args.size]:
        raise FireflyError("--full is for CIFAR-100: give --ways 10 or --ways 20")
    if args.split == "superclass" and args.ways != 20:
        raise FireflyError("--split superclass is for --ways 20: CIFAR-100 has 20 superclasses")
    known: Any = replace(SETTINGS[args.size][args.ways], split=args.split, held_out=args.held_out)
    course: Course = options.change(known, args.set)
    return course


def list_courses(args: Namespace) -> list[Course]:
    """The setting, in every order and size that the options ask for."""
    course = choose(args)
    key = "neurons" if course.neurons else "parameters"
    sizes: list[Any] = [{key: one} for one in args.budgets or [getattr(course, key)]]
    if any(value < 1 for size in sizes for value in size.values()):
        raise FireflyError(f"--budgets {' '.join(map(str, args.budgets))}: give whole numbers from 1 up")
    options.check_seeds(args.seeds)
    return [replace(course, rotate=turn % course.ways, **size) for turn in args.rotate for size in sizes]


def measure(
    name: str, course: Course, method: str, seed: int, args: Namespace, folder: Path, path: Path, deadline: float
) -> bool:
    """The rows of one method and split that the file does not hold yet; False if time ran out."""
    rows = read_own(path, course)
    done = [row for row in rows if (row["method"], row["seed"]) == (method, seed)]
    known = {row["step"]: row["accuracies"] for row in done}
    if any(row["final"] for row in done):
        return True
    if time.monotonic() > deadline:
        return False
    parts, device = list_parts(course, seed, args.data), find_device(args.device)
    size = find_size(path, course, seed, method) if method in SIZED else 0
    own = (row for row in rows if (row["method"], row["seed"]) == ("individual", seed))
    goals = {row["step"]: row["held_out"] for row in own if "held_out" in row}
    room = Class(course, parts, device, find_folder(folder, course, method, seed, size), seed, size, goals)
    scores: list[dict[str, float]] = []
    start = time.perf_counter()
    for seen, parameters, more in METHODS[method](room):
        scores.append(seen)
        step = len(seen) - 1
        if known.get(step) != seen:  # it is new, or the folder of the run that measured it is lost
            told = {"experiment": name, "method": method, "dataset": course.dataset, "seed": seed, "step": step}
            told |= {"final": len(seen) == len(parts), "ways": course.ways, "parameters": parameters}
            told |= {"test_accuracy": metrics.mean_seen(scores)[-1], "forgotten": metrics.count_forgotten(scores)}
            told |= {"accuracies": seen, "classes": [part.labels for part in parts[: step + 1]], **more}
            seconds = {"train_seconds": round(time.perf_counter() - start, 2), "device": hardware(device)}
            append(path, {**told, **seconds, "config": plain(course)})
            shown = f"{told['test_accuracy']:.2%} over {step + 1} tasks, forgotten {told['forgotten']:.2%}"
            print(f"{method}, split {seed}: {shown}, {parameters:,} parameters", flush=True)
        start = time.perf_counter()
        if time.monotonic() > deadline and len(seen) < len(parts):
            return False
    return True


def find_size(path: Path, course: Course, seed: int, method: str) -> int:
    for row in read_own(path, course, RIVALS):
        if (row["method"], row["seed"], row["final"]) == ("firefly", seed, True):
            return int(row["parameters"])
    raise FireflyError(f"{method} is as large as Firefly's network: run --methods firefly --seeds {seed} first")


def find_folder(folder: Path, course: Course, method: str, seed: int, size: int) -> Path:
    """Of the trainings of one method; another setting has another."""
    from firefly.checkpoint.archive import hash_json

    told = {key: value for key, value in plain(course).items() if value or key not in ("rotate", "start_epochs")}
    return folder / f"{method}-{seed}-{hash_json({**told, 'size': size})[:8]}"


def plain(course: Course) -> Row:
    """The setting as JSON gives it back."""
    found: Row = json.loads(json.dumps(asdict(course)))
    return found


def read_own(path: Path, course: Course, but: tuple[str, ...] = ()) -> list[Row]:
    """The rows of this setting, whatever these keys are."""
    own, usual = plain(course), plain(Course())
    free = {key: own[key] for key in but}
    return keep_last([row for row in options.read_rows(path) if {**usual, **row["config"], **free} == own])


CONTINUAL, CONTINUAL_10, CONTINUAL_20 = Continual(), Continual(10), Continual(20)
