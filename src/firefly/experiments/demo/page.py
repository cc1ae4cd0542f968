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
from firefly.report.svg import shorten

if TYPE_CHECKING:
    from firefly.experiments.demo import Demo, Record

Row = dict[str, Any]
GROWN, FIXED = "grown by Firefly", "same width in every layer"
SIZES = {"parameters": "parameters", "flops": "FLOPs"}


def make_table(record: Record) -> str:
    """Every finished network, by size."""
    lines = [f"{'parameters':>10}  {'FLOPs':>7}  {'test accuracy':>15}  channels"]
    for point in sorted(record.points, key=lambda point: point["parameters"]):
        score = f"{point['test_accuracy']:.1%} ± {point['error']:.1%}"
        name = f"{'grown, ' if point['series'] == GROWN else ''}{point['label']}"
        sizes = f"{point['parameters']:>10,}  {shorten(point['flops']):>7}"
        lines.append(f"{sizes}  {score:>15}  {', '.join(map(str, point['widths']))}  ({name})")
    return "\n".join(lines)


def write_report(folder: Path, record: Record, setting: Demo, seed: int, seconds: float) -> Path:
    settings = {
        **tell_setting(setting),
        "seed": seed,
        "time": f"{seconds:.0f} s on one core, torch {torch.__version__}",
    }
    content = {"settings": asdict(setting), "seed": seed, "seconds": seconds, **asdict(record)}
    (folder / "history.json").write_text(json.dumps(content, indent=1), encoding="utf-8")
    return report.write(
        folder,
        record.growths,
        points=record.points,
        metric="test_accuracy",
        epochs=list_epochs(record, setting),
        epoch_metric="held_out_accuracy",
        settings=settings,
        text=tell(record, setting),
        title="A network that grew: handwritten digits",
    )


def list_epochs(record: Record, setting: Demo) -> list[Row]:
    """The training of the network that grew and of those of fixed width, in the colours of the other charts."""
    shown = {GROWN: (GROWN, "grown"), **{f"{width} channels": (FIXED, f"{width} channels") for width in setting.fixed}}
    rows = [row for row in record.epochs if row["network"] in shown]
    return [row | dict(zip(("series", "label"), shown[row["network"]])) for row in rows]


# ---- what came out ---------------------------------------------------------------------------------------------------


def tell(record: Record, setting: Demo) -> str:
    """The text of the page, from what was measured."""
    grown = [point for point in record.points if point["series"] == GROWN]
    fixed = [point for point in record.points if point["series"] == FIXED]
    error = max(point["error"] for point in record.points)
    leads = {size: [find_lead(point, fixed, size) for point in grown[1:]] for size in SIZES}
    return TEXT.format(
        start=setting.start,
        images=setting.images,
        growths=setting.growths,
        budget=setting.budget,
        epochs=setting.epochs,
        last=f"{grown[-1]['test_accuracy']:.1%} of 2,000 test images with {grown[-1]['parameters']:,} parameters",
        flops=shorten(grown[-1]["flops"]),
        compared=" ".join(compare(leads[size], size) for size in SIZES),
        verdict=conclude(leads, max(point["error"] for point in grown[1:])),
        error=error,
        spent=sum(sum(growth["seconds"].values()) for growth in record.growths),
    )


def find_lead(point: Row, fixed: list[Row], size: str) -> float | None:
    """How many points a network lies above the line through the fixed ones, at its own size; None where that ends."""
    known = sorted((other[size], other["test_accuracy"]) for other in fixed)
    if not known[0][0] <= point[size] <= known[-1][0]:
        return None
    line = numpy.interp(math.log(point[size]), [math.log(one) for one, _ in known], [right for _, right in known])
    return 100 * (point["test_accuracy"] - float(line))


def compare(leads: list[float | None], size: str) -> str:
    """The leads of all grown sizes, in a sentence."""
    found = [lead for lead in leads if lead is not None]
    if not found:
        return f"No fixed network here has as many {SIZES[size]} as the grown ones."
    sides = ["above" if lead > 0 else "below" for lead in found]
    said = [f"{abs(lead):.1f}" for lead in found]
    if len({*sides}) > 1:
        said = [f"{lead} {side}" for lead, side in zip(said, sides)]
    listed = f"{', '.join(said[:-1])} and {said[-1]}" if said[1:] else said[0]
    where = f"points {sides[0]}" if len({*sides}) == 1 else "points off"
    left = len(leads) - len(found)
    beyond = f"; for {left} of them no fixed network here has as many" if left else ""
    return f"At equal {SIZES[size]} its grown sizes lie {listed} {where} the blue line{beyond}."


def conclude(leads: dict[str, list[float | None]], error: float) -> str:
    """Better, worse or about as good: the mean lead against the largest standard error of the grown networks."""
    words = []
    for size, found in leads.items():
        known = [lead for lead in found if lead is not None]
        mean = sum(known) / len(known) if known else 0.0
        judged = "better" if mean > 100 * error else "worse" if mean < -100 * error else "about as good"
        words.append(f"{judged if known else 'not comparable'} at equal {SIZES[size]}")
    return f"In this run the grown networks were, on average, {' and '.join(words)}."


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


TEXT = """{verdict} Orange is the network that grew, at each of its sizes; blue are ordinary networks with the same \
number of channels in every convolution. Fully grown it reads {last}, and one image takes it {flops} FLOPs. {compared}

It began with {start} channels in each of its three convolutions, learnt from {images:,} small images of handwritten \
digits, and grew {growths} times on the way, each time by at most {budget:.0%} more parameters, put where Firefly \
predicted the largest decrease of the loss for them. Every network learnt for {epochs} epochs in all, from the same \
images, with the same optimiser; a copy of each grown size was set aside and learnt on to the end.

The budget counted parameters, and a parameter saved is not always a FLOP saved. The head reads every channel of the \
last convolution at 49 places, so such a channel costs many parameters; one of the first two costs few parameters and \
many FLOPs, for it is worked out at every place. Growth by parameters therefore prefers those. A budget may count \
FLOPs instead, or both: firefly.Parameters(...) & firefly.Flops(...).

Read it with care: this is one run with one seed, and the standard error of an accuracy is up to {error:.1%}. \
Differences of less than a point can be chance; firefly demo --seed 1 gives another run. The growths took {spent:.0f} \
seconds. The test images were used for these figures only; the settings were chosen on held-out training images. \
Growth does not pay everywhere: with a head that reads averages over those places instead, fixed widths did better \
than growth in our trials."""
