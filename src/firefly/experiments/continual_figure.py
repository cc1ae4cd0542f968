"""The tables and figures of continual learning (Table 2, Fig. 4): accuracy over the tasks seen, size, and order."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import Any

from firefly.experiments.continual_course import Course
from firefly.experiments.curves import name_lines, summarise
from firefly.experiments.rows import Row, accuracy
from firefly.report.page import Picture
from firefly.report.palette import LABELS, name_method, number_series
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

Lines = dict[str, dict[int, list[Row]]]  # by name and number of tasks seen
Series = dict[str, list[tuple[float, float, float]]]  # by name: place, mean, its standard error
PANELS: dict[str, Callable[[Row], float]] = {
    "mean over the tasks seen": lambda row: float(row["test_accuracy"]),
    "the first task": lambda row: float(row["accuracies"]["task 1"]),
}
TOP, BOTTOM, LEFT, PANEL = 30, 300, 48, 270  # of a panel: its edges, the room left of it, and its width
TICKS = (0.0, 0.2, 0.5, 0.7, 0.8, 0.9, 0.95, 0.98, 0.99, 1.0)


def group(rows: Iterable[Row]) -> Lines:
    """By method, and what is special of its setting, Firefly first; rotated orders stand in a table of their own."""
    order = {method: number for number, method in enumerate(LABELS)}
    rows = sorted(map(complete, rows), key=lambda row: order.get(row["method"], len(order)))
    rows = [row for row in rows if not row["config"]["rotate"]] or rows
    found: Lines = {}
    for name, row in zip(name_lines(rows), rows):
        found.setdefault(name, {}).setdefault(row["step"] + 1, []).append(row)
    return {name: dict(sorted(steps.items())) for name, steps in found.items()}


def complete(row: Row) -> Row:
    """A row from before a setting was known has its default."""
    return row | {"config": {**vars(Course()), **row["config"]}}


def find_last(steps: dict[int, list[Row]]) -> tuple[int, list[Row]]:
    """The last task that all splits of a method have seen."""
    most = max(len(found) for found in steps.values())
    seen = max(step for step, found in steps.items() if len(found) == most)
    return seen, steps[seen]


# ---- tables ----------------------------------------------------------------------------------------------------------


def cell(values: list[float]) -> str:
    mean, error, count = summarise(values)
    return f"{mean:.2f}" + (f" ± {error:.2f}" if count > 1 else "")


def table(rows: list[Row]) -> str:
    """A line per method, at the last task that all of its splits have seen; then early tasks against late ones."""
    if not rows:
        return "nothing measured yet"
    heads = ("tasks", "splits", "accuracy", "first task", "forgotten", "parameters", "MiB", "epochs a task")
    lines = ["per cent, means over splits ± standard error; forgotten: below the best that tasks ever were"]
    named = group(rows)
    wide = max(32, *(len(name) + 2 for name in named))
    lines.append(" " * wide + "".join(f"{head:>15}" for head in heads))
    for name, steps in named.items():
        seen, found = find_last(steps)
        size = summarise(row["parameters"] for row in found)[0]
        shown = [str(seen), str(len(found)), cell([100 * row["test_accuracy"] for row in found])]
        shown.append(cell([100 * row["accuracies"]["task 1"] for row in found]))
        shown.append(cell([100 * row["forgotten"] for row in found]) if len(steps) > 1 else "")
        epochs = summarise(row["epochs"] for one in steps.values() for row in one)[0]
        shown += [f"{size:,.0f}", f"{size * 4 / 2**20:.2f}", f"{epochs:.0f}"]
        lines.append(f"{name:{wide}}" + "".join(f"{one:>15}" for one in shown))
    return "\n".join([*lines, *compare_orders(rows, wide)])


def compare_orders(rows: list[Row], wide: int) -> list[str]:
    """The same tasks in the first quarter and in the second half of the order, paired by task."""
    ways = max(row["ways"] for row in rows)
    still = [one | {"config": {**one["config"], "rotate": 0}} for one in map(complete, rows)]
    found: dict[str, dict[Any, tuple[list[float], list[float]]]] = {}
    for name, row in zip(name_lines(still), still):
        place, task = row["step"] + 1, (row["seed"], tuple(sorted(row["classes"][-1])))
        early, late = found.setdefault(name, {}).setdefault(task, ([], []))
        if row["ways"] == ways and (place <= ways // 4 or place > ways / 2):
            (early if place <= ways // 4 else late).append(100 * row["accuracies"][f"task {place}"])
    lines = []
    for name, tasks in found.items():
        both = [(summarise(early)[0], summarise(late)[0]) for early, late in tasks.values() if early and late]
        if both:
            gains = cell([late - early for early, late in both])
            means = (summarise(values)[0] for values in zip(*both))
            lines.append(f"{name:{wide}}{len(both):>15}" + "".join(f"{mean:15.2f}" for mean in means) + f"{gains:>15}")
    places = (
        f"the same tasks at places 1 to {ways // 4} and {ways // 2 + 1} to {ways}, as soon as they are learnt, per cent"
    )
    heads = "".join(f"{head:>15}" for head in ("tasks", "early", "late", "late - early"))
    return ["", places, " " * wide + heads, *lines] if lines else []


# ---- figures ---------------------------------------------------------------------------------------------------------


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
    up = Axis(min(values), max(values), BOTTOM - 8, TOP + 8, bend_accuracy)
    names = list(next(iter(panels.values())))
    numbers, parts, right = number_series(names), [], 0.0
    for number, (title, series) in enumerate(panels.items()):
        left = LEFT + (PANEL + LEFT) * number
        right = left + PANEL
        across = Axis(*limits, left, right, bend)
        parts.append(write_text(left, TOP - 12, title))
        parts.append(draw_x(across, ticks, TOP, BOTTOM, words, shorten))
        shown = [value for value in TICKS if up.low <= value <= up.high]
        shown = shown if len(shown) > 2 else tick(up.low, up.high)
        parts.append(draw_y(up, shown, left, right, partial(shorten_metric, metric="accuracy")))
        parts += [draw_series(name, series[name], numbers[name], across, up) for name in reversed(names)]
    ends = spread([up.place(points[-1][1]) for points in series.values()], 15)
    parts += [write_text(right + 12, y + 4, name, f"name s{numbers[name]}") for name, y in zip(names, ends)]
    return wrap(parts, BOTTOM + 40, right + 16 + LETTER * max(map(len, names)))


def draw_series(name: str, points: list[tuple[float, float, float]], number: int, across: Axis, up: Axis) -> str:
    """One line with its marks and their errors."""
    places = [(across.place(x), up.place(mean)) for x, mean, _ in points]
    parts = [draw_path(places, f"line s{number}" + " front" * (not number))]
    for (x, y), (_, mean, error) in zip(places, points):
        low, high = (up.place(min(max(mean + sign * error, up.low), up.high)) for sign in (-1, 1))
        parts.append(draw_line(x, low, x, high, f"error s{number}"))
        parts.append(draw_mark(x, y, f"mark s{number}", f"{name}: {mean:.2%}"))
    return "".join(parts)


def bend_accuracy(value: float) -> float:
    """Gives the last per cents more room, without an end."""
    return -math.log(1.01 - value)
