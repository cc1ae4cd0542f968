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
from firefly.report import draw_growths, draw_sizes, draw_training, page
from firefly.report.charts import spell
from firefly.report.palette import number_series
from firefly.report.svg import shorten, spell_time
from firefly.report.widths import list_kinds, track_widths

Row = Mapping[str, Any]
METRICS = ("test_accuracy", "test_loss", "training_loss")


def write_runs(path: str | Path, runs: Sequence[Row]) -> Path:
    """Write the page of these runs, all inside one file, and return its path."""
    path = Path(path)
    runs = [
        run | {"epochs": [row | {"training_loss": row["loss"]} for row in run["epochs"]]} for run in map(dict, runs)
    ]
    metric = choose_metric(runs)
    numbers = number_series(str(run["name"]) for run in runs)
    points: list[Row] = [point for run in runs for point in list_points(run, metric, len(runs) > 1)]
    epochs: list[Row] = [row | {"series": run["name"]} for run in runs for row in run["epochs"]]
    drawn = [metric] if metric == METRICS[-1] or not is_known(runs, METRICS[-1]) else [metric, METRICS[-1]]
    pictures = draw_sizes(points, numbers, metric)
    pictures += [picture for one in drawn for picture in draw_training(epochs, [], numbers, one)]
    several = len(runs) > 1
    kinds = list_kinds([growth for run in runs for growth in run["growths"]])
    sections = [
        page.Section(
            f"How {run['name']} grew" if several else "How it grew",
            draw_growths(run["growths"], run["epochs"], numbers[str(run["name"])], kinds),
            run["growths"],
            folded=several,
        )
        for run in runs
        if run["growths"]
    ]
    names = [str(run["name"]) for run in runs] if several else ["value"]
    settings = page.show_settings(*(run["settings"] for run in runs), names=names)
    grew = "a network that grew" if runs[0]["growths"] else "a network before its first growth"
    title = f"{len(runs)} runs side by side" if several else f"{runs[0]['name']}: {grew}"
    tables = [("The runs", show_runs(runs, metric))] if several else [("The network", show_sizes(runs[0], metric))]
    tables += [("Neurons at the end", show_widths(runs))] if several and any(run["growths"] for run in runs) else []
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
    for metric in METRICS:
        if is_known(runs, metric):
            return metric
    raise FireflyError("the runs have no number in common that can be drawn: an accuracy, or a loss that is finite")


def is_known(runs: Sequence[Row], metric: str) -> bool:
    values = [row.get(metric) for run in runs for row in run["epochs"]]
    return all(value is not None and math.isfinite(value) for value in values)


def list_sizes(run: Row) -> list[Row]:
    """The epochs of which the page tells: a network of each size, as it was before it grew, and at the end."""
    return [row for row in run["epochs"] if row.get("grown") or row is run["epochs"][-1]]


def list_points(run: Row, metric: str, several: bool) -> list[dict[str, Any]]:
    """A point for each size."""
    kept = list_sizes(run)
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
    said = [tell_run(run, metric) for run in runs[:6]]
    said += [f"{len(runs) - 6} more stand in the table."] * (len(runs) > 6)
    better = min(map(METRICS.index, (choose_metric([run]) for run in runs)))
    if METRICS[better] != metric:
        words, known = (key.replace("_", " ") for key in (METRICS[better], metric))
        said.append(f"Not every run has a {words} that is a number, so the charts show the {known}.")
    care = "A point is a network as it was just before it grew, or at the end: smaller ones have learnt for less time, "
    care += "so the line of a run says how it went, not what a network of that size could do."
    return "\n\n".join([" ".join(said), *[care] * any(run["growths"] for run in runs)])


def tell_run(run: Row, metric: str) -> str:
    """One run in a sentence."""
    first, last = run["epochs"][0], run["epochs"][-1]
    grown = sum(growth["parameters"][0] != growth["parameters"][1] for growth in run["growths"])
    times = f"grew {grown} time{'s' * (grown != 1)}, from {first['parameters']:,} to"
    planned = run["settings"].get("epochs", last["epoch"])
    when = f"epoch {last['epoch']}" + f" of {planned}" * (planned != last["epoch"])
    result = f"{metric.replace('_', ' ')} {page.hold(page.form(last[metric], metric))} after {when}"
    size = f"{times if grown else 'has not grown,'} {last['parameters']:,} parameters"
    return f"{run['name']} {size}: {result}, in {page.hold(spell_time(count_seconds(run)))}."


def show_runs(runs: Sequence[Row], metric: str) -> str:
    """A line per run, as it is at its end."""
    flops = any(run["epochs"][-1].get("flops") for run in runs)
    head = ["run", "parameters", *["FLOPs"] * flops, spell(metric).lower(), "time"]
    rows = []
    for run in runs:
        last = run["epochs"][-1]
        cells = [run["name"], f"{last['parameters']:,}"]
        cells += [shorten(last["flops"]) if last.get("flops") else ""] * flops
        rows.append([*cells, page.form(last[metric], metric), spell_time(count_seconds(run))])
    return page.table(head, rows)


def count_seconds(run: Row) -> float:
    """Of training and growth."""
    growing = sum(sum(growth.get("seconds", {}).values()) for growth in run["growths"])
    return float(sum(row["seconds"] for row in run["epochs"]) + growing)


def show_sizes(run: Row, metric: str) -> str:
    """A line per size of one network."""
    kept = list_sizes(run)
    flops = any(row.get("flops") for row in kept)
    told = dict.fromkeys([metric, METRICS[-1]])
    head = ["after epoch", "parameters", *["FLOPs"] * flops, *(spell(key).lower() for key in told)]
    rows = []
    for row in kept:
        cells = [row["epoch"], f"{row['parameters']:,}", *[shorten(row["flops"]) if row.get("flops") else ""] * flops]
        rows.append([*cells, *(page.form(row[key], key) for key in told)])
    return page.table(head, rows)


def show_widths(runs: Sequence[Row]) -> str:
    """How many neurons each width has in each run."""
    sizes = [{name: counts[-1] for name, counts in track_widths(run["growths"]).items()} for run in runs]
    names = dict.fromkeys(name for one in sizes for name in one)
    rows = [[name, *(f"{one[name]:,}" if name in one else "" for one in sizes)] for name in names]
    return page.table(["width", *(run["name"] for run in runs)], rows).replace("<table>", '<table class="names">')
