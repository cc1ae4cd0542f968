"""The charts of a report, as SVG, from plain rows (see `firefly.report`).

A series has the same colour in every chart; `numbers` gives its place among the colours, 0 for the one in front.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import pairwise
from typing import Any

from firefly.report.svg import (
    LETTER,
    WIDE,
    Axis,
    draw_line,
    draw_mark,
    draw_path,
    draw_x,
    draw_y,
    shorten,
    shorten_metric,
    show_error,
    spread,
    tell_apart,
    tick,
    tick_error,
    tick_log,
    wrap,
    write_text,
)

Row = Mapping[str, Any]
Numbers = Mapping[str, int]
Place = tuple[float, float]

LEFT = 54  # of a panel; numbers stand to the left of it


def draw_points(points: Sequence[Row], numbers: Numbers, metric: str, size: str = "parameters") -> str:
    """A metric against a size (log): a line through each series, every point labelled where it has a label."""
    groups = by_series(points, lambda row: str(row["series"]))
    top, bottom, left, right = 18 + 18 * len(groups), 290 + 18 * len(groups), LEFT, WIDE - 16
    sizes = [row[size] for row in points]
    across = Axis(min(sizes) * 0.75, max(sizes) * 1.35, left, right, math.log)
    bars = [row[metric] + sign * row.get("error", 0.0) for row in points for sign in (-1, 1)]
    up = Axis(*widen(bars), bottom, top)
    parts = [
        draw_x(across, tick_log(across.low, across.high), top, bottom, f"{spell(size)} (log scale)", shorten),
        draw_y(up, tick(up.low, up.high), left, right, partial(shorten_metric, metric=metric)),
    ]
    for line, (series, label) in enumerate(tell_apart(groups, 50).items()):
        parts.append(write_text(left, 14 + 18 * line, f"● {label}", f"name s{numbers[series]}"))
    groups = {series: sorted(rows, key=lambda row: row[size]) for series, rows in groups.items()}
    for series, rows in reversed(groups.items()):
        parts.append(draw_series(rows, numbers[series], across, up, metric, size))
    marks = [(across.place(row[size]), up.place(row[metric])) for row in points]
    lines = [[(across.place(row[size]), up.place(row[metric])) for row in rows] for rows in groups.values()]
    return wrap([*parts, *label_marks(points, marks, numbers, lines)], bottom + 40)


def draw_series(rows: Sequence[Row], number: int, across: Axis, up: Axis, metric: str, size: str) -> str:
    """One line with its marks and their errors."""
    front = " front" if number == 0 else ""
    places = [(across.place(row[size]), up.place(row[metric])) for row in rows]
    parts = [draw_path(places, f"line s{number}{front}")]
    for row, (x, y) in zip(rows, places):
        told = f"{row.get('label', row['series'])}: {row[size]:,} {size}, {shorten_metric(row[metric], metric)}"
        if row.get("error"):
            low, high = (up.place(row[metric] + sign * row["error"]) for sign in (-1, 1))
            parts.append(draw_line(x, low, x, high, f"error s{number}"))
        parts.append(draw_mark(x, y, f"mark s{number}", told))
    return "".join(parts)


def label_marks(
    points: Sequence[Row], marks: Sequence[Place], numbers: Numbers, lines: Iterable[Sequence[Place]] = ()
) -> list[str]:
    """The labels of points, each on the side where it covers the least of other labels, marks and lines."""
    taken = 4 * [(x - 5, x + 5, y - 5, y + 5) for x, y in marks]  # a mark counts more than a letter
    taken += [(x - 2, x + 2, y - 2, y + 2) for line in lines for x, y in walk(line)]
    parts = []
    for row, (x, y) in zip(points, marks):
        number, text = numbers[str(row["series"])], str(row.get("label", ""))
        above, below, wide = y - 9, y + 16, LETTER * len(text)
        sides = [(x - 6 - wide, above), (x + 6, below), (x + 6, above), (x - 6 - wide, below)]
        sides += [(min(x - wide / 2, WIDE - 8 - wide), y - 16), (min(x - wide / 2, WIDE - 8 - wide), y + 22)]
        order = sides if number == 0 else [sides[1], sides[0], *sides[2:]]
        boxes = [(start, start + wide, line - 11, line + 4) for start, line in order]
        covered = [
            sum(overlap(box, other) for other in taken) + 1e6 * (box[0] < LEFT or box[1] > WIDE - 8) for box in boxes
        ]
        best = covered.index(min(covered))
        if text:
            taken.append(boxes[best])
            parts.append(write_text(*order[best], text, f"name s{number}"))
    return parts


def walk(line: Sequence[Place], pace: float = 5.0) -> Iterator[Place]:
    """Places along a line, a few units apart."""
    for (x1, y1), (x2, y2) in pairwise(line):
        steps = max(1, int(math.hypot(x2 - x1, y2 - y1) / pace))
        yield from ((x1 + (x2 - x1) * k / steps, y1 + (y2 - y1) * k / steps) for k in range(steps))


def overlap(one: Sequence[float], other: Sequence[float]) -> float:
    """The area that two boxes (left, right, top, bottom) share."""
    wide, high = min(one[1], other[1]) - max(one[0], other[0]), min(one[3], other[3]) - max(one[2], other[2])
    return max(wide, 0.0) * max(high, 0.0)


def draw_epochs(epochs: Sequence[Row], history: Sequence[Row], numbers: Numbers, metric: str) -> str:
    """A metric per epoch, whole: a line per series and label, named where it ends; growths as lines down or as dots."""
    groups = by_series(epochs, lambda row: f"{row['series']}\0{row.get('label', row['series'])}")
    labels = tell_apart((name.partition("\0")[2] for name in groups), 22)
    names = [labels[name.partition("\0")[2]] for name in groups]
    top, bottom, left, right = 14, 284, LEFT, WIDE - 16 - min(LETTER * max(map(len, names)), 0.36 * WIDE)
    first, last = min(row["epoch"] for row in epochs), max(row["epoch"] for row in epochs)
    values = [row[metric] for row in epochs]
    share = is_share(epochs, metric)
    low, high = (min(values), max(values)) if share else widen(values)
    up = Axis(low, high, bottom - 8, top + 8, show_error if share else float)
    across = Axis(min(first, last - 1), last, left, right)
    ticks = (tick_error if share else tick)(low, high)
    whole = [value for value in tick(across.low, across.high) if value == int(value)]
    parts = [
        draw_x(across, whole, top, bottom, "epoch", shorten),
        draw_y(up, ticks, left, right, partial(shorten_metric, metric=metric)),
    ]
    for growth in history:
        if "epoch" in growth:
            x = across.place(growth["epoch"])
            parts.append(draw_line(x, top, x, bottom, "growth"))
    ends = spread([up.place(rows[-1][metric]) for rows in groups.values()], 15)
    lines = [*zip(groups.values(), names, ends)]
    for rows, name, end in reversed(lines):
        number = numbers[str(rows[0]["series"])]
        front = " front" if number == 0 else ""
        places = [(across.place(row["epoch"]), up.place(row[metric])) for row in rows]
        parts.append(draw_path(places, f"line s{number}{front}"))
        for row, (x, y) in zip(rows, places):
            if row.get("grown") or len(rows) == 1:  # of one epoch there is no line
                told = f"{name}: {'grown after ' * bool(row.get('grown'))}epoch {row['epoch']}"
                parts.append(draw_mark(x, y, f"mark s{number}", told))
        parts.append(write_text(right + 6, end + 4, name, f"name s{number}"))
    return wrap(parts, bottom + 40)


def is_share(rows: Iterable[Row], metric: str) -> bool:
    """Whether these are accuracies as shares of 1, whose axis is bent."""
    return "accuracy" in metric and all(0 <= row[metric] <= 1 for row in rows)


# ---- data ------------------------------------------------------------------------------------------------------------


def by_series(rows: Iterable[Row], name: Callable[[Row], str]) -> dict[str, list[Row]]:
    groups: dict[str, list[Row]] = {}
    for row in rows:
        groups.setdefault(name(row), []).append(row)
    return groups


def widen(values: Sequence[float]) -> tuple[float, float]:
    """Limits with a margin around all values."""
    low, high = min(values), max(values)
    margin = 0.06 * (high - low) or 0.05 * abs(high) or 1.0
    return low - margin, high + margin


def spell(key: str) -> str:
    """A key in words: "test_accuracy" is Test accuracy, "flops" FLOPs."""
    return "FLOPs" if key == "flops" else key.replace("held_out", "held-out").replace("_", " ").capitalize()
