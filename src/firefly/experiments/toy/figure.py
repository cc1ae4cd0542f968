"""The table and the two panels of Fig. 2: the loss of every method over the truths, neuron by neuron (App. B.1)."""

from __future__ import annotations

import statistics
from collections.abc import Iterable
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from firefly.errors import FireflyError
from firefly.experiments.rows import Row
from firefly.report.palette import find_colour

PANELS = {
    "(a) methods": {
        "firefly": "Firefly",
        "firefly-split": "Firefly (split)",
        "splitting": "Splitting",
        "random-search": "RandSearch (split+new)",
        "random-search-split": "RandSearch (split)",
        "scratch": "Scratch",
    },
    "(b) Firefly with m' new candidates": {
        "firefly-split": "m' = 0",
        "firefly-1-new": "m' = 1",
        "firefly-2-new": "m' = 2",
        "firefly": "m' = 5",
        "firefly-10-new": "m' = 10",
    },
}


@dataclass(frozen=True)
class Curve:
    """The loss of one method over the truths, at each number of neurons."""

    neurons: list[int]
    mean: list[float]
    error: list[float]  # standard error of the mean
    median: list[float]


def summarise(rows: Iterable[Row], method: str) -> Curve:
    losses: dict[int, list[float]] = {}
    for row in rows:
        if row["method"] == method:
            losses.setdefault(row["step"] + 1, []).append(row["loss"])
    found = sorted(losses.items())
    return Curve(
        [neurons for neurons, _ in found],
        [statistics.fmean(values) for _, values in found],
        [statistics.stdev(values) / len(values) ** 0.5 if len(values) > 1 else 0.0 for _, values in found],
        [statistics.median(values) for _, values in found],
    )


def table(rows: list[Row]) -> str:
    """Mean ± standard error and median of the loss, over the truths, for some numbers of neurons."""
    labels = {**PANELS["(b) Firefly with m' new candidates"], **PANELS["(a) methods"]}
    most = max((row["step"] + 1 for row in rows), default=0)
    columns = [neurons for neurons in (2, 4, 6, 8, 10, 12) if neurons <= most]
    lines = ["loss (mean squared error): mean ± standard error (median)", f"{'neurons':24}"]
    lines[1] += "".join(f"{neurons:>30}" for neurons in columns)
    for method in sorted(labels, key=list(labels).index):
        curve = summarise(rows, method)
        if curve.neurons:
            at = [curve.neurons.index(neurons) for neurons in columns]
            cells = [f"{curve.mean[i]:.2g} ± {curve.error[i]:.1g} ({curve.median[i]:.2g})" for i in at]
            lines.append(f"{labels[method]:24}" + "".join(f"{cell:>30}" for cell in cells))
    return "\n".join(lines)


def plot(rows: list[Row], path: Path | str) -> Path:
    """The two panels of Fig. 2 as PNG and SVG: mean with standard error, and the median as a dotted line."""
    if find_spec("matplotlib") is None:
        raise FireflyError("figures need matplotlib: pip install 'firefly-descent[report]'")
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    figure = Figure(figsize=(11, 4.2), layout="constrained")
    for axes, (title, labels) in zip(figure.subplots(1, 2, sharey=True), PANELS.items()):
        for number, (method, label) in enumerate(labels.items()):
            curve, color = summarise(rows, method), find_colour(method)
            where = [neurons + 0.05 * (number - (len(labels) - 1) / 2) for neurons in curve.neurons]  # side by side
            bars = {"yerr": curve.error, "marker": "o", "markersize": 3.5, "capsize": 2, "linewidth": 1.5}
            axes.errorbar(where, curve.mean, **bars, color=color, label=label)
            axes.plot(where, curve.median, color=color, linestyle=":", linewidth=1)
        axes.set(title=title, xlabel="neurons", yscale="log")
        axes.grid(alpha=0.3)
        axes.legend(fontsize="small", loc="lower left")
    truths = len({row["seed"] for row in rows})
    figure.axes[0].set_ylabel(f"training loss (MSE), {truths} truths\nmean ± standard error; dotted: median")
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    with rc_context({"svg.hashsalt": "toy"}):  # the same rows give the same files
        figure.savefig(path.with_suffix(".png"), dpi=150)
        figure.savefig(path.with_suffix(".svg"), metadata={"Date": None})
    return path.with_suffix(".png")
