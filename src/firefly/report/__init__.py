"""A run as charts and one self-contained HTML page. It takes plain data, so every run can have its page.

    history = [{**growth.to_dict(), "epoch": 4}, ...]            # what grew; or `grower.history`
    points = [{"series": "grown", "parameters": 2954, "flops": 304_000, "accuracy": 0.97, "label": "3 growths"}, ...]
    epochs = [{"series": "grown", "epoch": 1, "accuracy": 0.91}, ...]
    firefly.report.write("runs/mine", history, points=points, epochs=epochs, title="My network")

`firefly report RUN --html page.html` makes one of a run in a folder, or of several side by side (`runs.py`).

`epoch`, `flops`, `error` and `label` may be left out. The first series is drawn in front, as the one the page is about,
and a series has one colour in all charts. `metric` names the key that is plotted: "accuracy" and other shares read as
per cent, anything else ("loss") as it is.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from numbers import Real
from pathlib import Path
from typing import Any

from firefly.errors import FireflyError
from firefly.report import charts, page, widths
from firefly.report.charts import spell
from firefly.report.palette import number_series

__all__ = ["prepare", "write"]

Row = Mapping[str, Any]


def write(
    folder: str | Path,
    history: Iterable[Row],
    *,
    points: Iterable[Row] = (),
    epochs: Iterable[Row] = (),
    settings: Mapping[str, Any] | None = None,
    text: str = "",
    title: str = "A network grown by Firefly",
    metric: str = "accuracy",
    epoch_metric: str | None = None,
) -> Path:
    """Write `report.html` and its charts (SVG) into a folder, and return the page's path.

    Args:
        folder: made if it is not there; the page needs none of the other files in it.
        history: one `Growth.to_dict()` per growth, with the "epoch" after which it happened where you know it.
        points: networks, each with "series", "parameters" and the metric; with "flops", a second chart has those.
        epochs: the metric at the end of each epoch, with "series" and "epoch": how training went.
        settings: what the run was made with, as a table at the end.
        text: paragraphs for the top of the page, plain text with blank lines between them.
        metric: the key of the points that is plotted, and of the epochs unless `epoch_metric` names another.
    """
    growths, points, epochs = list(history), list(points), list(epochs)
    check_rows("history", growths, ("added", "widths", "parameters", "loss_before", "loss_after"))
    check_rows("points", points, ("series", "parameters", metric), ("parameters", "flops", metric))
    check_rows("epochs", epochs, ("series", "epoch", epoch_metric or metric), ("epoch", epoch_metric or metric))
    folder = prepare(folder)
    numbers = number_series(str(row["series"]) for row in points + epochs)
    sizes = draw_sizes(points, numbers, metric)
    grown = [*draw_training(epochs, growths, numbers, epoch_metric or metric), *draw_growths(growths, epochs)]
    for picture in sizes + grown:
        (folder / f"{picture.name}.svg").write_text(picture.to_file(), encoding="utf-8")
    tables = [("The networks", page.show_points(points, metric))] if points else []
    sections = [page.Section("How it grew", grown, growths)] if grown or growths else []
    told = page.show_settings(settings) if settings else ""
    path = folder / "report.html"
    path.write_text(page.render(title, text, sizes, tables, sections, told), encoding="utf-8")
    return path


def prepare(folder: str | Path) -> Path:
    """Make the folder: before a long run, so that nothing fails after it."""
    try:
        Path(folder).mkdir(parents=True, exist_ok=True)
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or error
        raise FireflyError(f"cannot make the folder {str(folder)!r}: {why}; give another one") from error
    return Path(folder)


def draw_sizes(points: list[Row], numbers: Mapping[str, int], metric: str) -> list[page.Picture]:
    """The metric against parameters, and against FLOPs where all are known."""
    drawn = []
    for size in ("parameters", "flops"):
        if points and all(size in point for point in points):
            words = size if size == "parameters" else "FLOPs"
            caption = f"{spell(metric)} against {words}."
            better = "Higher" if "accuracy" in metric else "Lower" if "loss" in metric else ""
            caption += f" {better} and further left is better." if better else ""
            caption += " The bars are one standard error." if any(point.get("error") for point in points) else ""
            drawn.append(page.Picture(size, charts.draw_points(points, numbers, metric, size), caption))
    return drawn


def draw_training(epochs: list[Row], growths: list[Row], numbers: Mapping[str, int], metric: str) -> list[page.Picture]:
    """The metric over the epochs."""
    if not epochs:
        return []
    marks = [" Each halving of the errors takes the same height."] * charts.is_share(epochs, metric)
    marks += [" A dot marks a growth."] * any(row.get("grown") for row in epochs)
    marks += [" A dotted line marks a growth."] * any("epoch" in growth for growth in growths)
    caption = f"{spell(metric)} at the end of each epoch.{''.join(marks)}"
    return [page.Picture("epochs", charts.draw_epochs(epochs, growths, numbers, metric), caption)]


def draw_growths(
    growths: list[Row], epochs: list[Row], series: int = 0, kinds: Sequence[str] = ()
) -> list[page.Picture]:
    """The widths of one network: how large, since when, what each growth was worth, and its new layers."""
    drawn = []
    if any(new for growth in growths for _, new in growth["widths"].values()):
        caption = "Neurons in each width as the network grew. Widths are named after the layer that makes them."
        drawn.append(page.Picture("widths", widths.draw_widths(growths, series), caption))
        if epochs and all("epoch" in growth for growth in growths):
            last = max(row["epoch"] for row in epochs)
            caption = "The same over time: when each width grew, as a share of what it became."
            drawn.append(page.Picture("timeline", widths.draw_timeline(growths, last, series), caption))
        if any(gain for growth in growths for kinds in growth.get("gains", {}).values() for gain in kinds.values()):
            caption = (
                "Why: the gain of what each width got, by kind; in each column the number is that of its longest bar."
            )
            drawn.append(page.Picture("gains", widths.draw_gains(growths, kinds), caption))
    if widths.deepens(growths):
        caption = "The network before and after, from its input down. New layers stand out; | is a dormant layer."
        drawn.append(page.Picture("network", widths.draw_network(growths, series), caption))
    return drawn


def check_rows(name: str, rows: list[Row], keys: tuple[str, ...], numbers: tuple[str, ...] = ()) -> None:
    """Refuse a row that lacks a key, or has no finite number where one is drawn."""
    for number, row in enumerate(rows):
        missing = [key for key in keys if key not in row]
        if missing:
            wanted = ", ".join(map(repr, keys))
            raise FireflyError(f"{name}[{number}] has no {missing[0]!r}: each needs {wanted}; see help(firefly.report)")
        for key in numbers:
            value = row.get(key, 1)
            if not isinstance(value, Real) or not math.isfinite(value):
                raise FireflyError(f"{name}[{number}]: {key}={value!r} cannot be drawn: give a finite number")
            if key in ("parameters", "flops") and value <= 0:
                raise FireflyError(f"{name}[{number}]: {key}={value!r} has no place on a log scale; leave it out")
