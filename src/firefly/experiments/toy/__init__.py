"""Fig. 2 of the paper (Sec. 3 "Toy RBF network", App. B.1): grow a small network one neuron at a time, and compare.

    firefly reproduce toy          a minute: a few truths, short training
    firefly reproduce toy --full   20 truths, 1 to 12 neurons, 10,000 iterations between growths; resumes

The truths are RBF networks of 15 neurons with w, θ ~ N(0, 3), 3 taken as the standard deviation. The loss is the plain
mean squared error, not divided by the variance of the truth, which every row gives beside it. What the paper leaves
open is set in `Toy`, chosen on truths 1000 to 1039, of which none is reported: three rates of Adam, three spreads
of the start, about thirty settings of Firefly's step one and thirteen of RandSearch.
"""

from __future__ import annotations

import time
from argparse import ArgumentParser, Namespace
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from functools import cache, partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch

import firefly
from firefly.baselines import random_search, splitting
from firefly.errors import FireflyError
from firefly.experiments.rbf import RBF, Data, draw_network, draw_truth, mean_square, train
from firefly.experiments.rows import Row, append
from firefly.experiments.rows import read_rows as read
from firefly.experiments.toy.figure import plot, table
from firefly.progress import Line


@dataclass(frozen=True)
class Toy:
    """What a run is; every row of the results carries it."""

    neurons: int = 12
    iterations: int = 10_000  # between two growths
    lr: float = 0.1  # of Adam, falling along a cosine to zero between two growths
    start: float = 1.0  # standard deviation of w and θ of the first neuron, and of Scratch
    steps: int = 100  # of step one; RandSearch tunes as long
    step_lr: float = 0.1  # of step one
    split: float = 0.01  # ε of a split
    new: float = 0.1  # ε of a new neuron
    scale: float = 0.1  # standard deviation of a new neuron's first θ: "N(0, 0.1)" in the paper
    tries: int = 3  # of RandSearch


FULL = Toy()
QUICK = Toy(neurons=8, iterations=1000)
TRUTHS = {"quick": 3, "full": 20}
GROUP = 4  # truths that are worked on, and written, together


def add_arguments(parser: ArgumentParser) -> None:
    size = parser.add_mutually_exclusive_group()
    size.add_argument("--quick", action="store_true", help="a minute on two cores (default)")
    size.add_argument("--full", action="store_true", help="as in the paper: 15 to 25 minutes on one core; resumes")
    parser.add_argument("--truths", type=int, help="how many random functions to learn (3; 20 with --full)")
    parser.add_argument("--out", type=Path, help="the results (runs/toy/toy.jsonl; results/toy.jsonl with --full)")


def run(args: Namespace) -> int:
    """Measure what the results file does not hold yet, print the table and draw the figure beside a quick run."""
    setting, size = (FULL, "full") if args.full else (QUICK, "quick")
    path = args.out or Path("results/toy.jsonl" if args.full else "runs/toy/toy.jsonl")
    seeds = range(TRUTHS[size] if args.truths is None else args.truths)
    if not seeds:
        raise FireflyError(f"--truths {args.truths}: give at least 1")
    done = {name(row) for row in read_rows(path, setting)}
    every = {(method, step) for method in [*GROWN, "scratch"] for step in range(setting.neurons)}
    left = [seed for seed in seeds if any((seed, *one) not in done for one in every)]  # all of it, or what a kill left
    line = Line()
    for first in range(0, len(left), GROUP):
        group = left[first : first + GROUP]
        rows = measure(group, setting, partial(_say, line, f"truths {group[0]}-{group[-1]}"))
        append(path, *(row for row in rows if name(row) not in done))
    rows = [row for row in read_rows(path, setting) if row["seed"] in seeds]
    print(table(rows))
    print(f"\n{len(rows)} networks in {path}")
    if find_spec("matplotlib") is not None and not args.full:
        print(f"figure: {plot(rows, path.with_suffix('.png'))}")
    return 0


def read_rows(path: Path, setting: Toy) -> list[Row]:
    """The rows of a results file, all of them of this setting."""
    rows = read(path, under_way=True) if path.exists() else []
    if any(row.get("config") != asdict(setting) for row in rows):
        raise FireflyError(f"{path} holds rows of another setting: move it away, or give another file with --out")
    return rows


def name(row: Row) -> tuple[int, str, int]:
    """The truth, the method and the step."""
    return row["seed"], row["method"], row["step"]


def _say(line: Line, what: str, text: str) -> None:
    line(f"{what}: {text}", last=text == "done")


# ---- the methods -----------------------------------------------------------------------------------------------------


@cache
def _trace_one() -> firefly.Anatomy:
    return firefly.trace(RBF(1), torch.zeros(2, 1, dtype=torch.float64))


def _shared(net: RBF, data: Data, seed: int) -> dict[str, Any]:
    anatomy = _trace_one().resized({"hidden": net.neurons})
    return {"example": data[0], "budget": firefly.Neurons(1), "anatomy": anatomy, "evaluate_on": 1, "seed": seed}


def _neighborhood(setting: Toy, new: int) -> list[Any]:
    kinds: list[Any] = [firefly.Split(setting.split)]
    return [*kinds, firefly.New(new, setting.new, scale=setting.scale)] if new else kinds


def grow_firefly(net: RBF, data: Data, seed: int, setting: Toy, new: int) -> firefly.Growth:
    how: dict[str, Any] = {"neighborhood": _neighborhood(setting, new), "steps": setting.steps, "lr": setting.step_lr}
    return firefly.grow(net, mean_square, [data], **how, **_shared(net, data, seed))


def grow_splitting(net: RBF, data: Data, seed: int, setting: Toy) -> firefly.Growth:
    how: dict[str, Any] = {"neighborhood": [firefly.Split()], "method": splitting()}
    return firefly.grow(net, mean_square, [data], **how, **_shared(net, data, seed))


def grow_randomly(net: RBF, data: Data, seed: int, setting: Toy, new: int) -> firefly.Growth:
    def tune(child: Any) -> None:
        train([child], [data], setting.steps, setting.lr)

    how: dict[str, Any] = {"neighborhood": _neighborhood(setting, new), "tries": setting.tries}
    return random_search(net, mean_square, [data], tune=tune, **how, **_shared(net, data, seed))


GROWN: dict[str, Callable[[RBF, Data, int, Toy], firefly.Growth]] = {
    "firefly": partial(grow_firefly, new=5),
    "firefly-split": partial(grow_firefly, new=0),
    "splitting": grow_splitting,
    "random-search": partial(grow_randomly, new=5),
    "random-search-split": partial(grow_randomly, new=0),
    "firefly-1-new": partial(grow_firefly, new=1),
    "firefly-2-new": partial(grow_firefly, new=2),
    "firefly-10-new": partial(grow_firefly, new=10),
}


# ---- measuring -------------------------------------------------------------------------------------------------------


@dataclass
class Lineage:
    """One network on its way: who grows it, on which truth, and what that took so far."""

    method: str
    seed: int
    net: RBF
    data: Data
    kinds: list[str] = field(default_factory=list)
    growth_seconds: float = 0.0
    train_seconds: float = 0.0

    def grow(self, step: int, setting: Toy) -> None:
        start = time.perf_counter()
        growth = GROWN[self.method](self.net, self.data, 100 * self.seed + step, setting)
        self.growth_seconds += time.perf_counter() - start
        added = growth.added.get("hidden", {})
        self.kinds.append(next((kind for kind, count in added.items() if count), "none"))

    def row(self, step: int, iterations: int, setting: Toy) -> Row:
        loss = mean_square(self.net, self.data).item()
        return {
            "experiment": "toy",
            "method": self.method,
            "dataset": "rbf",
            "seed": self.seed,
            "step": step,
            "final": step + 1 == setting.neurons,
            "neurons": self.net.neurons,
            "parameters": 3 * self.net.neurons,
            "loss": loss,
            "variance": self.data[1].var(correction=0).item(),
            "grown": list(self.kinds),
            "iterations": iterations,
            "train_seconds": round(self.train_seconds, 3),
            "growth_seconds": round(self.growth_seconds, 3),
            "device": "cpu",
            "config": asdict(setting),
        }


def measure(seeds: Sequence[int], setting: Toy, say: Callable[[str], None] = lambda text: None) -> list[Row]:
    """Every method on these truths, all networks of the same age trained side by side."""
    truths = {seed: draw_truth(seed) for seed in seeds}
    grown = [
        Lineage(method, seed, draw_network(1, setting.start, _first(seed, 1)), truths[seed])
        for method in GROWN
        for seed in seeds
    ]
    rows = []
    for step in range(setting.neurons):
        say(f"{step + 1} of {setting.neurons} neurons")
        for lineage in grown if step else ():
            lineage.grow(step, setting)
        fresh = [
            Lineage("scratch", seed, draw_network(step + 1, setting.start, _first(seed, step + 1)), truths[seed])
            for seed in seeds
        ]
        total = (step + 1) * setting.iterations
        _train_all(grown, setting.iterations, setting.lr)
        _train_all(fresh, total, setting.lr)
        rows += [lineage.row(step, total, setting) for lineage in grown + fresh]
    say("done")
    return rows


def _first(seed: int, neurons: int) -> int:
    return 2_000_000 + 100 * seed + neurons


def _train_all(lineages: list[Lineage], iterations: int, lr: float) -> None:
    start = time.perf_counter()
    train([one.net for one in lineages], [one.data for one in lineages], iterations, lr)
    for one in lineages:
        one.train_seconds += (time.perf_counter() - start) / len(lineages)


if __name__ == "__main__":
    parser = ArgumentParser(description=__doc__)
    add_arguments(parser)
    raise SystemExit(run(parser.parse_args()))
