"""`firefly show RUN`: what a network has become, layer by layer, and how it came to that."""

from __future__ import annotations

import json
import math
from argparse import ArgumentParser, Namespace
from collections.abc import Sequence
from pathlib import Path
from textwrap import fill

from firefly.commands.journal import measure
from firefly.commands.runs import Run, open_run
from firefly.report.svg import shorten
from firefly.report.widths import name_growths, track_widths

ABOUT = """A run is a folder that firefly grow wrote, or fit(checkpoint=...), or firefly.save. The model's code is not
needed.

  firefly show runs/mine
  firefly show runs/mine --json > architecture.json

The second line writes what firefly.rebuild(model, architecture) reads.
"""


def add_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("run", type=Path, metavar="RUN", help="the folder of a run")
    parser.add_argument("--json", action="store_true", help="the architecture as JSON, as firefly.rebuild takes it")


def run(args: Namespace) -> None:
    found = open_run(args.run)
    if args.json:
        other = ("optimizer", "grower", "file", "sha256", "strides")
        print(json.dumps({key: value for key, value in found.content.items() if key not in other}, indent=1))
        return
    parts = [tell_head(found), tell_widths(found), tell_tensors(found), tell_growths(found), tell_training(found)]
    print("\n\n".join(part for part in parts if part))


def tell_head(run: Run) -> str:
    """Name, class and size, and how far it is."""
    flops = "" if run.flops is None else f", {shorten(run.flops)} FLOPs for one example"
    lines = [f"{run.folder}: {run.content['class']}, {run.parameters:,} parameters{flops}"]
    if run.recipe:
        lines.append(f"after epoch {len(run.history)} of {run.recipe.get('epochs')}")
    if run.recipe.get("command") == "grow":
        lines.append(f"grown from {run.recipe['model']} on {run.recipe.get('data')}")
        said = {key: run.recipe.get(key) for key in ("loss", "budget", "every", "method", "optimizer", "seed")}
        lines.append(fill(", ".join(f"{key} {value}" for key, value in said.items()), 80))
    return "\n".join(lines)


def tell_widths(run: Run) -> str:
    """The neurons of every width at the start and after each growth."""
    if not run.growths:
        return "no growth so far"
    rows = [(name, *map(str, sizes)) for name, sizes in track_widths(run.growths).items()]
    known = all("epoch" in growth for growth in run.growths)
    when = [str(growth["epoch"] if known else k) for k, growth in enumerate(run.growths, start=1)]
    return align([(f"neurons after {'epoch' if known else 'growth'}", "0", *when), *rows])


def tell_tensors(run: Run) -> str:
    """Every parameter and buffer: its shape and how many numbers it has."""
    rows = [
        (name, " x ".join(map(str, shape)) or "one number", f"{math.prod(shape):,}")
        for name, shape in run.content["shapes"].items()
        if name not in run.content["ties"]
    ]
    ties = [f"{name} is {other}" for name, other in run.content["ties"].items()]
    return "\n".join([align([("tensor", "shape", "numbers"), *rows]), *ties])


def tell_growths(run: Run) -> str:
    """A line for each growth: what came, what it was predicted to bring, and what it brought."""
    rows = []
    for when, growth in zip(name_growths(run.growths)[1:], run.growths):
        kinds = dict.fromkeys(kind for added in growth["added"].values() for kind in added)
        totals = {kind: sum(added.get(kind, 0) for added in growth["added"].values()) for kind in kinds}
        came = ", ".join(f"+{count} {kind}" for kind, count in totals.items() if count) or "nothing"
        sizes = f"{growth['parameters'][0]:,} -> {growth['parameters'][1]:,}"
        losses = f"{growth['loss_before']:.4f} -> {growth['loss_after']:.4f}"
        predicted = f"{growth['loss_before'] - growth['predicted']:.4f}"
        rows.append((when.removeprefix("after "), came, sizes, losses, predicted))
    return align([("growth", "neurons", "parameters", "loss", "predicted"), *rows]) if rows else ""


def tell_training(run: Run) -> str:
    """What it reached before each growth, and at the end."""
    kept = [row for row in run.history.epochs if row.grown or row is run.history[-1]]
    said = ", ".join(f"{row.epoch}: {measure(row).split()[-1]}" for row in kept)
    what = " ".join(measure(run.history[-1]).split()[:-1]) if kept else ""
    return fill(f"{what} after epoch {said}", 80) if kept else ""


def align(rows: Sequence[Sequence[str]]) -> str:
    """A table: the first column to the left, the others to the right."""
    wide = [max(len(row[k]) for row in rows) for k in range(len(rows[0]))]
    lines = (
        "  ".join(cell.rjust(n) if k else cell.ljust(n) for k, (cell, n) in enumerate(zip(row, wide))) for row in rows
    )
    return "\n".join(line.rstrip() for line in lines)
