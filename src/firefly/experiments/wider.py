"""Growing wider (Sec. 3 "Growing Wider Networks", Fig. 3; App. B.2, Fig. 5): Firefly against every other way to grow.

    firefly reproduce wider-vgg19                      minutes on a CPU: few images, few rounds, to see it work
    firefly reproduce wider-vgg19 --middle             what the published table is measured with; a GPU
    firefly reproduce wider-vgg19 --paper              the paper's schedule: 160 epochs a round, +30 % neurons
    firefly reproduce wider-vgg19 --middle --held-out  the same on 5,000 training images set apart: to choose settings

A thin network, the same for all methods of a seed, is trained, grown to the next size, trained, and so on. In the
middle setting all methods are given the same number of parameters at every step, so that they can be compared at equal
size; at the sizes of the table the network is trained on for longer. `scratch` has the widths that Firefly found and
random weights, `full` the widths of the original; both are trained for as many epochs as the grown network had in all.

Everything is written as it is done (`--out`, `--runs`), and the same command goes on where it was stopped.
"""

from __future__ import annotations

import json
import time
from argparse import ArgumentParser, Namespace
from dataclasses import asdict, dataclass, fields, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch

from firefly.errors import FireflyError
from firefly.experiments import curves
from firefly.experiments.growers import METHODS
from firefly.experiments.lineage import START, Line, Row, Setting, World, prepare_start, train_whole
from firefly.training.fit import find_device
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

    @property
    def about(self) -> str:
        """What `--help` says."""
        return str(__doc__).replace("wider-vgg19", self.name)

    def add_arguments(self, parser: ArgumentParser) -> None:
        size = parser.add_mutually_exclusive_group()
        size.add_argument(
            "--quick", action="store_const", dest="size", const="quick", help="minutes on a CPU (default)"
        )
        size.add_argument("--middle", action="store_const", dest="size", const="middle", help="a GPU, minutes per line")
        size.add_argument("--paper", "--full", action="store_const", dest="size", const="paper", help="hours per line")
        known = [*METHODS, *WHOLE]
        parser.add_argument("--methods", nargs="+", default=["firefly", "uniform"], choices=known, metavar="METHOD")
        parser.add_argument("--deepen", action="store_true", help="also firefly-deeper: wider and deeper at once")
        parser.add_argument("--seeds", nargs="+", type=int, default=[0])
        sizes = "train the networks of these sizes on for longer, as shares of the full one; 0 for none"
        parser.add_argument("--report", nargs="+", type=float, help=f"{sizes} ({self.report})")
        parser.add_argument("--held-out", action="store_true", help="measure on 5,000 training images set apart")
        parser.add_argument("--minutes", type=float, help="begin no step after so many; the same command goes on later")
        parser.add_argument("--data", type=Path, help="the folder of the data sets (FIREFLY_DATA, else data)")
        parser.add_argument("--out", type=Path, help=f"the results (runs/{self.name}/results.jsonl)")
        parser.add_argument("--runs", type=Path, help=f"trainings under way (runs/{self.name})")
        parser.add_argument("--device", help="cuda or cpu (what there is)")
        parser.add_argument(
            "--set", nargs="+", default=[], metavar="KEY=VALUE", help=f"other settings: {', '.join(list_keys())}"
        )
        parser.set_defaults(size="quick")

    def run(self, args: Namespace) -> int:
        setting = change(self.settings[args.size], args.set)
        setting = replace(setting, held_out=5000 if args.held_out and not setting.held_out else setting.held_out)
        folder = args.runs or Path("runs") / self.name
        world = self.make_world(args, setting, folder)
        methods = dict.fromkeys([*args.methods, *["firefly-deeper"] * args.deepen])
        finished = all(measure(world, setting, method, seed) for seed in args.seeds for method in methods)
        rows = [r for r in read_rows(world.results) if r["config"] == plain(setting) or r["method"] == "full"]
        print(f"\n{curves.table(rows)}\n\n{len(rows)} networks in {world.results}")
        if rows and find_spec("matplotlib") is not None:
            print(f"figure: {curves.plot(rows, folder / f'{self.name}.png')}")
        if not finished:
            print("time is up: the same command goes on from here")
        return 0

    def make_world(self, args: Namespace, setting: Setting, folder: Path) -> World:
        device = find_device(args.device)
        train = data.load(self.dataset, args.data, "train")
        train, test = data.hold_out(train, setting.held_out) if setting.held_out else (train, None)
        test = data.load(self.dataset, args.data, "test") if test is None else test
        if setting.images is not None:
            train, test = (part.take(torch.arange(min(setting.images, len(part)))) for part in (train, test))
        make = getattr(models, self.model)
        return World(
            self.name,
            lambda widths: make(classes=train.classes, widths=widths),
            self.start,
            train.to(device),
            test.to(device),
            device,
            folder,
            args.out or folder / "results.jsonl",
            tuple(args.report or [self.report]),
            time.monotonic() + 60 * args.minutes if args.minutes else float("inf"),
            lambda text: print(text, flush=True),
        )

    def table(self, rows: list[Row]) -> str:
        return curves.table(rows)

    def plot(self, rows: list[Row], path: Path) -> Path:
        return curves.plot(rows, path)


def measure(world: World, setting: Setting, method: str, seed: int) -> bool:
    """One line, or what of it is missing; False if time ran out."""
    done = [row for row in read_rows(world.results) if row["config"] == plain(setting)]
    line = Line(method, seed, setting, world, METHODS.get(method))
    if method in WHOLE:
        return measure_whole(line, done)
    if time.monotonic() > world.deadline:
        return False
    prepare_start(line, done)
    return line.run(done)


def measure_whole(line: Line, done: list[Row]) -> bool:
    """`full` once, `scratch` at every size that the table reports."""
    how = line.setting
    steps = [how.sizes.index(size) + 1 for size in line.world.report if size in how.sizes]
    for step in steps if line.method == "scratch" else steps[:1]:
        epochs = how.epochs * (step + 1) + how.long
        if is_done(line, done, step, epochs):
            continue
        if time.monotonic() > line.world.deadline:
            return False
        train_whole(line, find_widths(line, done, step), epochs, step, str(step))
    return True


def is_done(line: Line, done: list[Row], step: int, epochs: int) -> bool:
    """The full network does not depend on rounds and growths: one of the same recipe and epochs serves all settings."""
    if line.method == "full":
        recipe = [getattr(line.setting, key) for key in START if key != "epochs"]
        rows = [row for row in read_rows(line.world.results) if row["method"] == "full" and row["epochs"] == epochs]
        rows = [row for row in rows if [row["config"][key] for key in START if key != "epochs"] == recipe]
    else:
        rows = [row for row in done if row["method"] == line.method and row["step"] == step]
    return any(row["seed"] == line.seed for row in rows)


def find_widths(line: Line, done: list[Row], step: int) -> Any:
    if line.method == "full":
        return "full"
    for row in done:
        if (row["method"], row["seed"], row["step"]) == ("firefly", line.seed, step):
            return row["widths"]
    raise FireflyError(f"scratch takes the widths that firefly found: run --methods firefly --seeds {line.seed} first")


def read_rows(path: Path) -> list[Row]:
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def plain(setting: Setting) -> Row:
    """The setting as JSON gives it back."""
    found: Row = json.loads(json.dumps(asdict(setting)))
    return found


# ---- settings --------------------------------------------------------------------------------------------------------


def list_keys() -> list[str]:
    return [field.name for field in fields(Setting)]


def change(setting: Setting, words: list[str]) -> Setting:
    """The setting with `key=value` changes; values are JSON, or words."""
    changes: dict[str, Any] = {}
    for word in words:
        key, equals, value = word.partition("=")
        if not equals or key not in list_keys():
            raise FireflyError(f"--set {word}: give KEY=VALUE with one of {', '.join(list_keys())}")
        try:
            found = json.loads(value)
        except ValueError:
            found = value
        changes[key] = tuple(found) if isinstance(found, list) else found
    return replace(setting, **changes)


LADDER = (0.0028, 0.0044, 0.0069, 0.0108, 0.0167, 0.0259, 0.04, 0.062)
QUICK = Setting(sizes=(0.0028, 0.0044), epochs=2, long=0, batch=64, steps=12, candidates=8, child=1, images=1000)
MIDDLE = Setting(sizes=LADDER, multiple=8)
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
        "middle": replace(MIDDLE, sizes=STAIRS),
        "paper": replace(PAPER, sizes=STAIRS, more=0.35),
    },
    report=0.105,
)
