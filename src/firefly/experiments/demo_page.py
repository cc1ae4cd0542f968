"""What the demo tells: its table and its page, from what was measured."""

from __future__ import annotations

import json
import math
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy
import torch

from firefly import report

if TYPE_CHECKING:
    from firefly.experiments.demo import Demo, Record

Row = dict[str, Any]
GROWN, FIXED = "grown by Firefly", "same width in every layer"


def make_table(record: Record) -> str:
    """Every finished network, by size."""
    lines = [f"{'parameters':>10}  {'test accuracy':>15}  channels"]
    for point in sorted(record.points, key=lambda point: point["parameters"]):
        score = f"{point['test_accuracy']:.1%} ± {point['error']:.1%}"
        name = f"{'grown, ' if point['series'] == GROWN else ''}{point['label']}"
        lines.append(f"{point['parameters']:>10,}  {score:>15}  {', '.join(map(str, point['widths']))}  ({name})")
    return "\n".join(lines)


def write_report(folder: Path, record: Record, setting: Demo, seed: int, seconds: float) -> Path:
    settings = {
        **tell_setting(setting),
        "seed": seed,
        "time": f"{seconds:.0f} s on one core, torch {torch.__version__}",
    }
    content = {"settings": asdict(setting), "seed": seed, "seconds": seconds, **asdict(record)}
    (folder / "history.json").write_text(json.dumps(content, indent=1), encoding="utf-8")
    shown = {GROWN, *(f"{width} channels" for width in setting.fixed)}
    return report.write(
        folder,
        record.growths,
        points=record.points,
        metric="test_accuracy",
        epochs=[row for row in record.epochs if row["series"] in shown],
        epoch_metric="held_out_accuracy",
        settings=settings,
        text=tell(record, setting),
        title="A network that grew: handwritten digits",
    )


def tell(record: Record, setting: Demo) -> str:
    """The text of the page, from what was measured."""
    grown = [point for point in record.points if point["series"] == GROWN][1:]
    fixed = [point for point in record.points if point["series"] == FIXED]
    found = [f"{p['test_accuracy']:.1%} with {p['parameters']:,} parameters, {compare(p, fixed)}" for p in grown]
    spent = sum(sum(growth["seconds"].values()) for growth in record.growths)
    return TEXT.format(
        start=setting.start,
        images=setting.images,
        growths=setting.growths,
        budget=setting.budget,
        epochs=setting.epochs,
        found="; ".join(found),
        error=max(point["error"] for point in record.points),
        spent=spent,
    )


def compare(point: Row, fixed: list[Row]) -> str:
    """How far a network lies above or below the line through the fixed ones, at its own number of parameters."""
    sizes = [math.log(other["parameters"]) for other in fixed]
    line = numpy.interp(math.log(point["parameters"]), sizes, [other["test_accuracy"] for other in fixed])
    points = 100 * (point["test_accuracy"] - float(line))
    where = "above" if points > 0 else "below"
    return "on the blue line" if abs(points) < 0.05 else f"{abs(points):.1f} points {where} the blue line"


def tell_setting(setting: Demo) -> Row:
    learn = (
        f"{setting.epochs} epochs of batches of {setting.batch}, moved by up to a pixel; SGD, Nesterov momentum 0.9, "
    )
    learn += f"weight decay {setting.decay}, learning rate {setting.lr} falling along a cosine"
    pace = f"{setting.growths} times, after every {setting.between} epochs; then the learning rate starts anew"
    images = f"{setting.images:,} to learn from, {setting.held_out:,} held out, 2,000 for the test; 14 x 14 pixels"
    return {
        "network": "three 3 x 3 convolutions with batch norm and ReLU, 2 x 2 pooling after the first, linear head",
        "images": images,
        "training": learn,
        "growth": pace,
        "neighborhood": f"Split(), New({setting.new}); step one of {setting.steps} steps",
        "budget": f"Parameters(fraction={setting.budget})",
    }


TEXT = """A network with {start} channels in each of its three convolutions learnt to read {images:,} small images of \
handwritten digits. It grew {growths} times on the way, each time by at most {budget:.0%} more parameters, put where \
Firefly predicted the largest decrease of the loss for them. Orange is that network at each of its sizes, blue are \
ordinary networks with the same number of channels in every convolution. Every network learnt for {epochs} epochs in \
all, from the same images, with the same optimiser; a copy of each grown size was set aside and learnt on to the end.

Of the 2,000 test images the grown network reads {found}.

Read it with care: this is one run with one seed, and the standard error of an accuracy is up to {error:.1%}. \
Differences of less than a point can be chance; firefly demo --seed 1 gives another run. The growths took {spent:.0f} \
seconds. The test images were used for these figures only; the settings were chosen on held-out training images.

Growth pays where layers differ in what a channel costs and brings. Here the head reads every channel of the last \
convolution at 49 places, so those channels are dear, and growth leaves them few. It does not pay everywhere: with a \
head that reads averages over those places instead, fixed widths did better than growth in our trials."""
