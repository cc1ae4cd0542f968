"""Growing wider (Sec. 3 "Growing Wider Networks", Fig. 3; App. B.2, Fig. 5): Firefly against every other way to grow.

    firefly reproduce wider-vgg19                      minutes on a CPU: few images, few rounds, to see it work
    firefly reproduce wider-vgg19 --middle             what the published table is measured with; a GPU
    firefly reproduce wider-vgg19 --full               the paper's schedule: 160 epochs a round, +30 % neurons
    firefly reproduce wider-vgg19 --middle --held-out  the same on 5,000 training images set apart: to choose settings

A thin network, the same for all methods of a seed, is trained, grown to the next size, trained, and so on. In the
middle setting all methods are given the same number of parameters at every step, so that they can be compared at equal
size; at the sizes of the table the network is trained on for longer. `scratch` has the widths that Firefly found and
random weights, `full` the widths of the original; both are trained for as many epochs as the grown network had in all.

Everything is written as it is done (`--out`, `--runs`), and the same command goes on where it was stopped.
"""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from torch import nn

from firefly.experiments import curves, options
from firefly.experiments.growers import METHODS
from firefly.experiments.lineage import Line, run_line, train_whole
from firefly.experiments.notes import is_late
from firefly.experiments.options import complete, plain, read_experiment, read_own
from firefly.experiments.rows import Row, find_widths
from firefly.experiments.setting import START, Setting, World
from firefly.vision import data, models

WHOLE = ("scratch", "full")  # networks that never grow


@dataclass(frozen=True)
class Wider:
    """One of the two experiments."""

    name: str
    model: str
    dataset: str
    start: int
    settings: dict[str, Setting]
    report: float = 0.04
    joins: bool = True  # several ranks work on it together

    @property
    def about(self) -> str:
        """What `--help` says."""
        return str(__doc__).replace("wider-vgg19", self.name)

    def add_arguments(self, parser: ArgumentParser) -> None:
        known, folder = [*METHODS, *WHOLE], f"runs/{self.name}"
        options.add_options(parser, folder, known, ["firefly", "uniform"], QUICK, str(self.report))
        parser.add_argument("--deepen", action="store_true", help="also firefly-deeper: wider and deeper at once")

    def run(self, args: Namespace) -> int:
        setting = options.choose(self.settings, args)
        world = self.make_world(args, setting)
        methods = dict.fromkeys([*args.methods, *["firefly-deeper"] * args.deepen])
        finished = all(measure(world, setting, method, seed) for seed in args.seeds for method in methods)
        options.conclude(
            find_rows(world, setting),
            self.table,
            world.place.results,
            world.place.folder / f"{self.name}.png",
            finished,
        )
        return 0

    def make_world(self, args: Namespace, setting: Setting) -> World:
        def load(split: str) -> data.Images:
            return data.load(self.dataset, args.data, split)

        def make(images: data.Images, widths: Any) -> nn.Module:
            net: nn.Module = getattr(models, self.model)(classes=images.classes, widths=widths)
            return net

        return options.make_world(self.name, args, setting, load, make, self.start, [self.report])

    def table(self, rows: list[Row]) -> str:
        return curves.table(complete(rows, Setting))

    def plot(self, rows: list[Row], path: Path) -> Path:
        return curves.plot(complete(rows, Setting), path)


def measure(world: World, setting: Setting, method: str, seed: int) -> bool:
    """One line, or what of it is missing; False if time ran out."""
    done = read_own(world, setting)
    line = Line(method, seed, setting, world, METHODS.get(method))
    return measure_whole(line, done) if method in WHOLE else run_line(line, done)


def measure_whole(line: Line, done: list[Row]) -> bool:
    """`full` once, `scratch` at every size that the table reports."""
    for step in line.reported if line.method == "scratch" else line.reported[:1]:
        if is_done(line, done, step):
            continue
        if is_late(line.world.place.deadline):
            return False
        train_whole(line, "full" if line.method == "full" else find_widths(done, line.seed, step), step)
    return True


def is_done(line: Line, done: list[Row], step: int) -> bool:
    if line.method == "full":
        epochs = line.plan_epochs(step)
        rows = [row for row in find_full(line.world, line.setting) if row["epochs"] == epochs]
    else:
        rows = [row for row in done if row["method"] == line.method and row["step"] == step]
    return any(row["seed"] == line.seed for row in rows)


def find_rows(world: World, setting: Setting) -> list[Row]:
    """What the table of a setting shows."""
    grown = [row for row in read_own(world, setting) if row["method"] != "full"]
    return grown + find_full(world, setting)


def find_full(world: World, setting: Setting) -> list[Row]:
    """The full network does not depend on rounds and growths: one of the same recipe serves all settings."""
    rows = [row for row in read_experiment(world) if row["method"] == "full"]
    return [row for row in rows if recipe(row["config"]) == recipe(plain(setting))]


def recipe(config: Row) -> list[Any]:
    lr = config.get("long_lr") or config["lr"]
    return [lr, *(config[key] for key in START if key not in ("epochs", "lr"))]


LADDER = (0.0028, 0.0044, 0.0069, 0.0108, 0.0167, 0.0259, 0.04, 0.062)
QUICK = Setting(sizes=(0.0028, 0.0044), epochs=2, long=0, batch=64, steps=12, candidates=8, child=1, images=1000)
MIDDLE = Setting(sizes=LADDER, epochs=10, long=200, long_lr=0.2, batch=256, steps=98, evaluate_on=4, multiple=8)
PAPER = Setting(sizes=LADDER, epochs=160, long=0, weight_decay=1e-4, budget="neurons", child=17)
VGG19 = Wider(
    "wider-vgg19", "vgg19", "cifar10", 16, {"quick": QUICK, "middle": MIDDLE, "paper": replace(PAPER, more=0.3)}
)
STAIRS = (0.01, 0.0148, 0.022, 0.0325, 0.048, 0.071, 0.105)  # MobileNet begins at 0.7 % of its full size
MOBILENET = Wider(
    "wider-mobilenet",
    "mobilenet_v1",
    "cifar100",
    32,
    {
        "quick": replace(QUICK, sizes=STAIRS[:2]),
        "middle": replace(MIDDLE, sizes=STAIRS, long=100),
        "paper": replace(PAPER, sizes=STAIRS, more=0.35),
    },
    report=0.105,
)
