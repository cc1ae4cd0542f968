"""One page about runs, one or several side by side: accuracy against size, training, and how each network grew.

A run is plain data: {"name": ..., "growths": [Growth.to_dict() with "epoch", ...], "epochs": [{"epoch", "loss",
"parameters", "flops", "test_accuracy", "grown", ...}, ...], "settings": {...}}. `firefly report RUN...` reads it from
the folder of a run.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from firefly.errors import FireflyError
from firefly.progress import format_time
from firefly.report import draw_growths, draw_sizes, draw_training, page
from firefly.report.charts import spell
from firefly.report.palette import number_series
from firefly.report.svg import shorten

Row = Mapping[str, Any]
METRICS = ("test_accuracy", "test_loss", "loss")


def write_runs(path: str | Path, runs: Sequence[Row]) -> Path:
    """Write the page of these runs, all inside one file, and return its path."""
    path = Path(path)
    metric = choose_metric(runs)
    numbers = number_series(str(run["name"]) for run in runs)
    points: list[Row] = [point for run in runs for point in list_points(run, metric, len(runs) > 1)]
    epochs: list[Row] = [row | {"series": run["name"]} for run in runs for row in run["epochs"]]
    pictures = [*draw_sizes(points, numbers, metric), *draw_training(epochs, [], numbers, metric)]
    several = len(runs) > 1
    sections = [
        page.Section(
            f"How {run['name']} grew" if several else "How it grew",
            draw_growths(run["growths"], run["epochs"], numbers[str(run["name"])]),
            run["growths"],
            folded=several,
        )
        for run in runs
        if run["growths"]
    ]
    names = [str(run["name"]) for run in runs] if several else ["value"]
    settings = page.show_settings(*(run["settings"] for run in runs), names=names)
    title = f"{len(runs)} networks that grew" if several else f"{runs[0]['name']}: a network that grew"
    tables = [("The runs" if several else "The network", show_runs(runs, metric))]
    content = page.render(title, tell(runs, metric), pictures, tables, sections, settings)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content, encoding="utf-8")
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or error
        raise FireflyError(f"cannot write {str(path)!r:.80}: {why}; give another file with --html") from error
    return path


def choose_metric(runs: Sequence[Row]) -> str:
    """The best that all epochs of all runs have, as a number that can be drawn."""
    rows = [row for run in runs for row in run["epochs"]]
    for metric in METRICS:
        if all(row.get(metric) is not None and math.isfinite(row[metric]) for row in rows):
            return metric
    raise FireflyError("the runs have no number in common that can be drawn: an accuracy, or a loss that is finite")


def list_points(run: Row, metric: str, several: bool) -> list[dict[str, Any]]:
    """A network of each size: as it was before it grew, and at the end."""
    rows = run["epochs"]
    kept = [row for row in rows if row.get("grown") or row is rows[-1]]
    known = all(row.get("flops") for row in kept)
    points: list[dict[str, Any]] = []
    apart = 1 + len(kept) // 6  # labels that would cover each other
    for number, row in enumerate(reversed(kept)):
        flops = {"flops": row["flops"]} if known else {}
        point = {"series": run["name"], "parameters": row["parameters"], metric: row[metric], **flops}
        named = not several and number % apart == 0
        points.insert(0, point | ({"label": f"epoch {row['epoch']}"} if named else {}))
    return points


def tell(runs: Sequence[Row], metric: str) -> str:
    """What came out, in words."""
    said = []
    for run in runs[:6]:
        first, last, grown = run["epochs"][0], run["epochs"][-1], len(run["growths"])
        size = f"from {first['parameters']:,} to {last['parameters']:,} parameters"
        times = f"{grown} time{'s' * (grown != 1)}"
        result = f"{metric.replace('_', ' ')} {page.form(last[metric], metric)} after epoch {last['epoch']}"
        said.append(f"{run['name']} grew {times}, {size}: {result}.")
    care = "A point is a network as it was just before it grew, or at the end: smaller ones have learnt for less time, "
    care += "so the line of a run says how it went, not what a network of that size could do."
    return f"{' '.join(said)}\n\n{care}"


def show_runs(runs: Sequence[Row], metric: str) -> str:
    """A line per run, as it is at its end."""
    flops = any(run["epochs"][-1].get("flops") for run in runs)
    head = ["run", "parameters", *["FLOPs"] * flops, spell(metric).lower(), "time"]
    rows = []
    for run in runs:
        last = run["epochs"][-1]
        seconds = sum(row["seconds"] for row in run["epochs"])
        seconds += sum(sum(growth.get("seconds", {}).values()) for growth in run["growths"])
        cells = [run["name"], f"{last['parameters']:,}"]
        cells += [shorten(last["flops"]) if last.get("flops") else ""] * flops
        rows.append([*cells, page.form(last[metric], metric), format_time(seconds)])
    return page.table(head, rows)
