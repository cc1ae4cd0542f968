"""Growing deeper (Sec. 3 "Growing Deeper Networks"; App. B.2, Table 3): Firefly against NASH and AutoGrow.

    firefly reproduce deeper                                    minutes on a CPU: few images, few growths
    firefly reproduce deeper --dataset fashion-mnist --middle   what the published table is measured with; a GPU
    firefly reproduce deeper --dataset svhn --full              the paper's schedule: 11 growths of 40 epochs, then 200
    firefly reproduce deeper --middle --held-out                on 5,000 training images set apart: to choose settings

Four blocks of 3 x 3 convolutions, the first of each with stride 2, begin as 1-1-1-1 with 16 channels and 11 dormant
layers in each block. Firefly and NASH grow the same start network to the same sizes; at those of the table it is
trained on for longer. AutoGrow has 16-32-64-128 channels and finds its depth by itself. `scratch` has the structure and
the widths that Firefly found and random weights, `fixed` is 12-12-12-12; both are trained for as many epochs as
Firefly's network had in all. Everything is written as it is done, and the same command goes on where it was stopped.
"""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from dataclasses import dataclass, replace
from pathlib import Path

from torch.nn import functional

from firefly.experiments import curves, options
from firefly.experiments.curves import summarise
from firefly.experiments.deeper.growers import METHODS
from firefly.experiments.deeper.line import Deep, DeepLine, run_autogrow
from firefly.experiments.lineage import run_line, train_whole
from firefly.experiments.notes import is_late
from firefly.experiments.options import complete, read_own
from firefly.experiments.rows import Row, count_seconds, find_widths
from firefly.experiments.setting import World
from firefly.report.palette import LABELS, name_method
from firefly.vision import data
from firefly.vision.models import blocks

SIDE = 32  # of the images; smaller ones are padded with black
DATASETS = ("mnist", "fashion-mnist", "svhn")
AUGMENT: dict[str, bool | str] = {"mnist": "crop", "fashion-mnist": True, "svhn": "crop"}  # digits are never mirrored
OTHERS = ("autogrow", "scratch", "fixed")
PUBLISHED = {  # Table 3 of the paper: structure, parameters in millions, accuracy in per cent
    "mnist": {"AutoGrow": ("13-12-12-12", 2.3, 99.57), "NASH": ("12-12-12-12", 2.0, 99.50)}
    | {"Firefly": ("12-12-12-12", 1.9, 99.59)},
    "fashion-mnist": {"AutoGrow": ("13-13-13-13", 2.3, 94.47), "NASH": ("12-12-12-12", 2.2, 94.34)}
    | {"Firefly": ("12-12-12-12", 2.1, 94.48)},
    "svhn": {"AutoGrow": ("12-12-12-11", 2.2, 97.08), "NASH": ("12-12-12-12", 2.0, 96.90)}
    | {"Firefly": ("12-12-12-12", 1.9, 97.08)},
}


@dataclass(frozen=True)
class Deeper:
    """The experiment on one data set, or on the one that `--dataset` names."""

    dataset: str | None = None
    joins: bool = True  # several ranks work on it together

    @property
    def about(self) -> str:
        """What `--help` says."""
        return str(__doc__)

    def add_arguments(self, parser: ArgumentParser) -> None:
        known, sizes = [*METHODS, *OTHERS], "the last size"
        options.add_options(parser, "runs/deeper-DATASET", known, ["firefly", "scratch"], SETTINGS["quick"], sizes)
        first = self.dataset or DATASETS[0]
        parser.add_argument("--dataset", default=first, choices=DATASETS, help=f"({first})")

    def run(self, args: Namespace) -> int:
        setting = options.choose(SETTINGS, args)
        world = make_world(args, setting)
        finished = all(measure(world, setting, method, seed) for seed in args.seeds for method in args.methods)
        picture = world.place.folder / f"{world.experiment}.png"
        options.conclude(read_own(world, setting), table, world.place.results, picture, finished)
        return 0

    def table(self, rows: list[Row]) -> str:
        return table(rows)

    def plot(self, rows: list[Row], path: Path) -> Path:
        """Accuracy against parameters, growth by growth."""
        return curves.plot(complete(rows, Deep), path)


def make_world(args: Namespace, setting: Deep) -> World:
    return options.make_world(
        f"deeper-{args.dataset}",
        args,
        setting,
        lambda split: load(args.dataset, args.data, split),
        lambda images, widths: blocks(images.classes, widths, images.images.shape[1]),
        16,
        setting.sizes[-1:],
        AUGMENT[args.dataset],
    )


def load(name: str, root: Path | None, split: str) -> data.Images:
    """The images with a black frame, so that four halvings come out even: 32, 16, 8, 4, 2."""
    images = data.load(name, root, split)
    frame = (SIDE - images.images.shape[-1]) // 2
    return replace(images, images=functional.pad(images.images, (frame, frame, frame, frame)))


def measure(world: World, setting: Deep, method: str, seed: int) -> bool:
    """One line, or what of it is missing; False if time ran out."""
    done = read_own(world, setting)
    line = DeepLine(method, seed, setting, world, METHODS.get(method))
    return measure_other(line, done) if method in OTHERS else run_line(line, done)


def measure_other(line: DeepLine, done: list[Row]) -> bool:
    """`scratch` at every size that the table reports; `fixed` and `autogrow` once."""
    steps = {"scratch": line.reported, "fixed": [len(line.setting.sizes)], "autogrow": [0]}
    for step in steps[line.method]:
        if any((row["method"], row["seed"], row["step"]) == (line.method, line.seed, step) for row in done):
            continue
        if is_late(line.world.place.deadline):
            return False
        if line.method == "autogrow":
            run_autogrow(line)
        else:
            train_whole(line, "full" if line.method == "fixed" else find_widths(done, line.seed, step), step)
    return True


# ---- the table -------------------------------------------------------------------------------------------------------


def table(rows: list[Row]) -> str:
    """A line per network that was trained to the end, or, where none was, after the last growth; the paper's below."""
    if not rows:
        return "nothing measured yet"
    lines = [f"{'':32}{'structure':>14}{'parameters':>12}{'MFLOPs':>8}{'epochs':>8}{'accuracy, %':>18}{'seconds':>9}"]
    for (method, _), found in group(rows).items():
        mean, error, seeds = summarise(map(curves.percent, found))
        accuracy = f"{mean:.2f} ± {error:.2f} ({seeds})" if seeds > 1 else f"{mean:.2f}"
        means = [summarise(row[key] for row in found)[0] for key in ("parameters", "flops", "epochs")]
        seconds, *_ = summarise(count_seconds(row, rows) for row in found)
        structure = found[0]["structure"] + (" …" if len({row["structure"] for row in found}) > 1 else "")
        lines.append(
            f"{name_method(method):32}{structure:>14}{means[0]:12,.0f}{means[1] / 1e6:8.1f}{means[2]:8.0f}"
            f"{accuracy:>18}{seconds:9.0f}"
        )
    for name, (structure, millions, published) in PUBLISHED.get(rows[0]["dataset"], {}).items():
        lines.append(f"{f'{name}, as published':32}{structure:>14}{f'{millions} M':>12}{'':16}{published:18.2f}")
    return "\n".join(lines)


def group(rows: list[Row]) -> dict[tuple[str, int], list[Row]]:
    """Rows of the table by method and step."""
    ends = [row for row in rows if row["final"]]
    grown = {row["method"] for row in ends}
    last = {row["method"]: row["step"] for row in rows if row["method"] not in grown}
    ends += [row for row in rows if last.get(row["method"]) == row["step"]]
    found: dict[tuple[str, int], list[Row]] = {}
    order = {method: number for number, method in enumerate(LABELS)}
    for row in sorted(ends, key=lambda row: (order.get(row["method"], len(order)), row["step"], row["seed"])):
        found.setdefault((row["method"], row["step"]), []).append(row)
    return found


# ---- settings --------------------------------------------------------------------------------------------------------


LADDER = (0.012, 0.03, 0.06, 0.1, 0.15, 0.21, 0.29, 0.38, 0.48, 0.6, 0.755)  # 30 k to 1.89 M parameters
SETTINGS = {
    "quick": Deep(
        sizes=(0.006, 0.01, 0.016),
        epochs=2,
        long=4,
        steps=20,
        candidates=8,
        child=1,
        images=2000,
        dormant=3,
        hidden=4,
        patience=3,
        search=8,
    ),
    "middle": Deep(
        sizes=LADDER[:8],
        epochs=6,
        long=60,
        batch=256,
        steps=110,
        evaluate_on=4,
        candidates=24,
        multiple=8,
        layers=3,
        offer=4,
    ),
    "paper": Deep(
        sizes=LADDER,
        epochs=40,
        long=200,
        steps=234,
        candidates=20,
        child=17,
        budget="neurons",
        more=0.25,
        interval=3,
        patience=100,
        search=600,
    ),
}

DEEPER = Deeper()
MNIST, FASHION_MNIST, SVHN = map(Deeper, DATASETS)
