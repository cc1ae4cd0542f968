"""The figures of continual learning (Fig. 4): accuracy over tasks seen and against size, on light and dark paper."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from pathlib import Path

from firefly.experiments.continual.table import Lines, find_last, group
from firefly.experiments.curves import summarise, trim
from firefly.experiments.rows import Row, accuracy
from firefly.report.page import Picture
from firefly.report.palette import OTHERS, name_method, number_series
from firefly.report.svg import (
    LETTER,
    Axis,
    draw_line,
    draw_mark,
    draw_path,
    draw_x,
    draw_y,
    shorten,
    shorten_metric,
    spread,
    tick,
    tick_log,
    wrap,
    write_text,
)

Series = dict[str, list[tuple[float, float, float]]]  # by name: place, mean, its standard error
PANELS: dict[str, Callable[[Row], float]] = {
    "mean over the tasks seen": lambda row: float(row["test_accuracy"]),
    "the first task": lambda row: float(row["accuracies"]["task 1"]),
}
TOP, BOTTOM, LEFT, PANEL = 30, 300, 48, 270  # of a panel: its edges, the room left of it, and its width
GAP, MOST = 15, 70  # between names; letters of one
COLOURS = 1 + len(OTHERS)
TICKS = (0.0, 0.2, 0.5, 0.7, 0.8, 0.9, 0.95, 0.98, 0.99, 1.0)


def plot(rows: list[Row], path: Path | str) -> Path:
    """Accuracy over the tasks as they come, and against size in a second file; both for light and dark paper."""
    path, lines = Path(path), group(rows)
    path.parent.mkdir(parents=True, exist_ok=True)
    for file, picture in ((path.stem, draw_tasks(lines)), (f"{path.stem}-sizes", draw_sizes(lines))):
        path.with_name(f"{file}.svg").write_text(Picture(file, picture, "").to_file(), encoding="utf-8")
    return path.with_suffix(".svg")


def draw_tasks(lines: Lines) -> str:
    """Two panels over the number of tasks learnt (Fig. 4b): all tasks so far, and what is left of the first."""
    panels: dict[str, Series] = {}
    for title, value in PANELS.items():
        means = {name: {k: summarise(map(value, found)) for k, found in steps.items()} for name, steps in lines.items()}
        panels[title] = {name: [(k, *one[:2]) for k, one in steps.items()] for name, steps in means.items()}
    last = max(2, *(step for steps in lines.values() for step in steps))
    whole = [value for value in tick(1, last) if value == int(value)]
    return draw_panels(panels, (1, last), whole, "tasks learnt")


def draw_sizes(lines: Lines) -> str:
    """Accuracy of all tasks against the parameters of all (Fig. 4a); a method in several sizes is one line."""
    series: Series = {}
    for steps in lines.values():
        _, found = find_last(steps)
        size, (mean, error, _) = summarise(row["parameters"] for row in found)[0], summarise(map(accuracy, found))
        series.setdefault(name_method(found[0]["method"]), []).append((size, mean, error))
    sizes = [size for points in series.values() for size, _, _ in points]
    limits = 0.8 * min(sizes), 1.25 * max(sizes)
    ticks = tick_log(*limits)
    series = {name: sorted(points) for name, points in series.items()}
    return draw_panels({"mean over all tasks": series}, limits, ticks, "parameters of all (log scale)", math.log)


def draw_panels(
    panels: dict[str, Series],
    limits: tuple[float, float],
    ticks: list[float],
    words: str,
    bend: Callable[[float], float] = float,
) -> str:
    """Panels side by side with one scale of accuracies, and the names where the lines of the last one end."""
    values = [mean for series in panels.values() for points in series.values() for _, mean, _ in points]
    names = list(next(iter(panels.values())))
    bottom = max(BOTTOM, TOP + GAP * len(names))
    up = Axis(min(values), max(values), bottom - 8, TOP + 8, bend_accuracy)
    looks = {name: f"s{number}" for name, number in number_series(names).items()}
    looks |= {name: f"{looks[name]} again" for name in names[COLOURS:]}  # dashed
    parts, right = [], 0.0
    for number, (title, series) in enumerate(panels.items()):
        left = LEFT + (PANEL + LEFT) * number
        right = left + PANEL
        across = Axis(*limits, left, right, bend)
        parts.append(write_text(left, TOP - 12, title))
        parts.append(draw_x(across, ticks, TOP, bottom, words, shorten))
        shown = [value for value in TICKS if up.low <= value <= up.high]
        shown = shown if len(shown) > 2 else tick(up.low, up.high)
        parts.append(draw_y(up, shown, left, right, partial(shorten_metric, metric="accuracy")))
        parts += [draw_series(name, series[name], looks[name], across, up) for name in reversed(names)]
    ends = place_names([up.place(points[-1][1]) for points in series.values()], bottom)
    parts += [write_text(right + 12, y + 4, trim(name, MOST), f"name {looks[name]}") for name, y in zip(names, ends)]
    return wrap(parts, bottom + 40, right + 16 + LETTER * min(MOST, max(map(len, names))))


def place_names(ends: list[float], bottom: float = BOTTOM) -> list[float]:
    """Where names stand beside the ends of their lines: apart, and none above or below the panel."""
    gap = min(GAP, (bottom - TOP) / len(ends))
    ranks = {k: rank for rank, k in enumerate(sorted(range(len(ends)), key=lambda k: ends[k]))}
    lowest = [min(end, bottom - gap * (len(ends) - 1 - ranks[k])) for k, end in enumerate(ends)]
    return spread([max(end, TOP + gap * ranks[k]) for k, end in enumerate(lowest)], gap)


def draw_series(name: str, points: list[tuple[float, float, float]], look: str, across: Axis, up: Axis) -> str:
    """One line with its marks and their errors."""
    places = [(across.place(x), up.place(mean)) for x, mean, _ in points]
    parts = [draw_path(places, f"line {look}" + " front" * (look == "s0"))]
    for (x, y), (_, mean, error) in zip(places, points):
        low, high = (up.place(min(max(mean + sign * error, up.low), up.high)) for sign in (-1, 1))
        parts.append(draw_line(x, low, x, high, f"error {look}"))
        parts.append(draw_mark(x, y, f"mark {look}", f"{name}: {mean:.2%}"))
    return "".join(parts)


def bend_accuracy(value: float) -> float:
    """Gives the last per cents more room, without an end."""
    return -math.log(1.01 - value)
