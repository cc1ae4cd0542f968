"""What the experiments have in common on the command line: sizes, methods, seeds, folders, and `--set KEY=VALUE`."""

from __future__ import annotations

import json
import time
from argparse import ArgumentParser, Namespace
from collections.abc import Callable, Sequence
from dataclasses import asdict, fields, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import nn

from firefly.errors import FireflyError
from firefly.experiments import curves, rows
from firefly.experiments.rows import Row, settings
from firefly.experiments.setting import BUDGETS, Place, Setting, World
from firefly.ranks.talk import decide, find_rank
from firefly.training.recipe import find_device
from firefly.vision.data import Images, hold_out

Some = TypeVar("Some", bound=Setting)


def add_options(
    parser: ArgumentParser, folder: str, methods: Sequence[str], usual: list[str], setting: Setting, sizes: str
) -> None:
    """All options but those of one experiment; `sizes` says which ones the table reports by default."""
    size = parser.add_mutually_exclusive_group()
    size.add_argument("--quick", action="store_const", dest="size", const="quick", help="minutes on a CPU (default)")
    size.add_argument("--middle", action="store_const", dest="size", const="middle", help="a GPU, minutes per line")
    size.add_argument("--full", action="store_const", dest="size", const="paper", help="hours per line")
    parser.set_defaults(size="quick")
    parser.add_argument(
        "--methods", nargs="+", default=usual, choices=methods, metavar="METHOD", help=f"some of {', '.join(methods)}"
    )
    parser.add_argument("--seeds", nargs="+", type=int, default=[0])
    longer = "train the networks of these sizes on for longer, as shares of the full one; 0 for none"
    parser.add_argument("--report", nargs="+", type=float, help=f"{longer} ({sizes})")
    parser.add_argument("--held-out", action="store_true", help="measure on 5,000 training images set apart")
    parser.add_argument("--minutes", type=float, help="begin no step after so many; the same command goes on later")
    parser.add_argument("--data", type=Path, help="the folder of the data sets (FIREFLY_DATA, else data)")
    parser.add_argument("--out", type=Path, help=f"the results ({folder}/results.jsonl)")
    parser.add_argument("--runs", type=Path, help=f"trainings under way ({folder})")
    parser.add_argument("--shared", action="store_true", help="other runs use the machine: do not count the seconds")
    parser.add_argument("--device", help="cuda or cpu (what there is)")
    keys = ", ".join(field.name for field in fields(setting))
    parser.add_argument("--set", nargs="+", default=[], metavar="KEY=VALUE", help=f"other settings: {keys}")


def choose(settings: dict[str, Some], args: Namespace) -> Some:
    """The setting that the options ask for."""
    check_seeds(args.seeds)
    setting = change(settings[args.size], args.set)
    return replace(setting, held_out=5000) if args.held_out and not setting.held_out else setting


def check_seeds(seeds: Sequence[int]) -> None:
    if any(seed < 0 for seed in seeds):
        raise FireflyError(f"--seeds {' '.join(map(str, seeds))}: give whole numbers from 0 up")


def change(setting: Some, words: list[str]) -> Some:
    """The setting with `key=value` changes; values are JSON, or words."""
    keys = [field.name for field in fields(setting)]
    changes: dict[str, Any] = {}
    for word in words:
        key, equals, value = word.partition("=")
        if not equals or key not in keys:
            raise FireflyError(f"--set {word}: give KEY=VALUE with one of {', '.join(keys)}")
        if isinstance(getattr(setting, key), tuple) and not value.startswith("["):
            value = f"[{value}]"  # 4,8,16
        try:
            found = json.loads(value)
        except ValueError:
            found = value
        found = value if isinstance(getattr(setting, key), str) and type(found) is int else found  # a text of digits
        changes[key] = tuple(found) if isinstance(found, list) else found
        if not fits(getattr(setting, key), changes[key]):
            raise FireflyError(f"--set {word}: {key} is something like {json.dumps(getattr(setting, key))}")
        if key == "budget" and found not in BUDGETS:
            raise FireflyError(f"--set {word}: a budget is one of {', '.join(BUDGETS)}")
    return replace(setting, **changes)


def fits(old: Any, new: Any) -> bool:
    """Whether a value is of the kind of the one before; a number that may be missing is None."""
    if old is None or new is None:
        return old is new or isinstance(old if new is None else new, (int, float))
    return type(new) is type(old) or (isinstance(old, float) and type(new) is int)


def make_world(
    name: str,
    args: Namespace,
    setting: Setting,
    load: Callable[[str], Images],
    make: Callable[[Images, Any], nn.Module],
    start: int,
    report: Sequence[float],
    augment: bool | str = True,
) -> World:
    """Data, device and folders as the options say: load(split) gives images, make(images, widths) a network."""
    device, folder = find_device(args.device), args.runs or Path("runs") / name
    train = load("train")
    train, test = hold_out(train, setting.held_out) if setting.held_out else (train, load("test"))
    if setting.images is not None:
        train, test = (part.take(torch.arange(min(setting.images, len(part)))) for part in (train, test))
    if len(train) < 2 * setting.batch:
        raise FireflyError(
            f"{len(train)} training images make no batch of {2 * setting.batch}, twice those of training, as a growth "
            "reads: take more images, or smaller batches (--set images=... batch=...)"
        )
    place = Place(
        device,
        folder,
        args.out or folder / "results.jsonl",
        time.monotonic() + 60 * args.minutes if args.minutes else float("inf"),
        lambda text: print(text, flush=True),
        args.shared,
    )
    data = train.to(device), test.to(device)
    return World(name, lambda widths: make(train, widths), start, *data, place, tuple(args.report or report), augment)


def read_rows(path: Path) -> list[Row]:
    return decide(rows.read_rows(path, under_way=True) if path.exists() and not find_rank() else [])


def read_experiment(world: World) -> list[Row]:
    """The rows of an experiment; those of others may be in the same file."""
    return [row for row in read_rows(world.place.results) if row.get("experiment") == world.experiment]


def read_own(world: World, setting: Setting) -> list[Row]:
    """The rows of this experiment and setting."""
    own, known = plain(setting), complete(read_experiment(world), type(setting))
    return [row for row in known if settings(row) == settings(row | {"config": own})]


def complete(rows: list[Row], kind: type[Setting]) -> list[Row]:
    """A row from before a setting was known has its default; those of benchmarks have no settings."""
    usual = plain(kind(sizes=()))
    return [row | {"config": usual | row["config"]} if "config" in row else row for row in rows]


def plain(setting: Setting) -> Row:
    """The setting as JSON gives it back."""
    found: Row = json.loads(json.dumps(asdict(setting)))
    return found


def conclude(rows: list[Row], table: Callable[[list[Row]], str], results: Path, picture: Path, finished: bool) -> None:
    """Print the table, draw the figure, and say what is left; of several ranks, the first."""
    if find_rank():
        return
    print(f"\n{table(rows)}\n\n{len(rows)} networks in {results}")
    if rows and find_spec("matplotlib") is not None:
        print(f"figure: {curves.plot(rows, picture)}")
    if not finished:
        print("time is up: the same command goes on from here")
