"""The charts of a report, as SVG, from plain rows (see `firefly.report`).

A series has the same colour in every chart; `numbers` gives its place among the colours, 0 for the one in front.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any

from firefly.report.svg import (
    LETTER,
    WIDE,
    Axis,
    draw_bar,
    draw_line,
    draw_mark,
    draw_path,
    draw_x,
    draw_y,
    shorten,
    shorten_metric,
    show_error,
    spread,
    tick,
    tick_error,
    tick_log,
    wrap,
    write_text,
)

Row = Mapping[str, Any]
Numbers = Mapping[str, int]

ROW = 22  # the height of a bar and its gap


def draw_points(points: Sequence[Row], numbers: Numbers, metric: str, size: str = "parameters") -> str:
    """A metric against a size (log): a line through each series, every point labelled where it has a label."""
    groups = by_series(points, lambda row: str(row["series"]))
    top, bottom, left, right = 18 + 18 * len(groups), 290 + 18 * len(groups), 54, WIDE - 16
    sizes = [row[size] for row in points]
    across = Axis(min(sizes) * 0.75, max(sizes) * 1.35, left, right, math.log)
    bars = [row[metric] + sign * row.get("error", 0.0) for row in points for sign in (-1, 1)]
    up = Axis(*widen(bars), bottom, top)
    parts = [
        draw_x(across, tick_log(across.low, across.high), top, bottom, f"{spell(size)} (log scale)", shorten),
        draw_y(up, tick(up.low, up.high), left, right, partial(shorten_metric, metric=metric)),
    ]
    for line, series in enumerate(groups):
        parts.append(write_text(left, 14 + 18 * line, f"● {series}", f"name s{numbers[series]}"))
    for series, rows in reversed(groups.items()):
        parts.append(draw_series(sorted(rows, key=lambda row: row[size]), numbers[series], across, up, metric, size))
    marks = [(across.place(row[size]), up.place(row[metric])) for row in points]
    return wrap([*parts, *label_marks(points, marks, numbers)], bottom + 40)


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


def label_marks(points: Sequence[Row], marks: Sequence[tuple[float, float]], numbers: Numbers) -> list[str]:
    """The labels of points, each on the side where it covers the least of other labels and marks."""
    taken = 4 * [(x - 5, x + 5, y - 5, y + 5) for x, y in marks]  # a mark counts more than a letter
    parts = []
    for row, (x, y) in zip(points, marks):
        number, text = numbers[str(row["series"])], str(row.get("label", ""))
        above, below, wide = y - 9, y + 16, LETTER * len(text)
        sides = [(x - 6 - wide, above), (x + 6, below), (x + 6, above), (x - 6 - wide, below)]
        sides += [(min(x - wide / 2, WIDE - wide), y - 16), (min(x - wide / 2, WIDE - wide), y + 22)]
        order = sides if number == 0 else [sides[1], sides[0], *sides[2:]]
        boxes = [(start, start + wide, line - 11, line + 4) for start, line in order]
        covered = [sum(overlap(box, other) for other in taken) + 1e6 * (box[0] < 4 or box[1] > WIDE) for box in boxes]
        best = covered.index(min(covered))
        if text:
            taken.append(boxes[best])
            parts.append(write_text(*order[best], text, f"name s{number}"))
    return parts


def overlap(one: Sequence[float], other: Sequence[float]) -> float:
    """The area that two boxes (left, right, top, bottom) share."""
    wide, high = min(one[1], other[1]) - max(one[0], other[0]), min(one[3], other[3]) - max(one[2], other[2])
    return max(wide, 0.0) * max(high, 0.0)


def draw_epochs(epochs: Sequence[Row], history: Sequence[Row], numbers: Numbers, metric: str) -> str:
    """A metric per epoch, whole: a line per series and label, named where it ends, and a mark at every growth."""
    groups = by_series(epochs, lambda row: f"{row['series']}\0{row.get('label', row['series'])}")
    names = [name.partition("\0")[2] for name in groups]
    top, bottom, left, right = 14, 284, 54, WIDE - 16 - min(LETTER * max(map(len, names)), 0.36 * WIDE)
    first, last = min(row["epoch"] for row in epochs), max(row["epoch"] for row in epochs)
    values = [row[metric] for row in epochs]
    share = "accuracy" in metric and min(values) >= 0 and max(values) <= 1
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
        parts.append(
            draw_path([(across.place(row["epoch"]), up.place(row[metric])) for row in rows], f"line s{number}{front}")
        )
        parts.append(write_text(right + 6, end + 4, name, f"name s{number}"))
    return wrap(parts, bottom + 40)


def draw_widths(history: Sequence[Row]) -> str:
    """Neurons per width over time: a bar for each, with a part for the start and one for each growth."""
    sizes = {name: counts for name, counts in track_widths(history).items() if counts[-1]}
    when = name_growths(history)
    top, left = 10, leave_room(sizes)
    bottom = top + ROW * len(sizes)
    most = max(counts[-1] for counts in sizes.values())
    across = Axis(0, most, left, WIDE - 16 - LETTER * len(f"{most:,}"))
    parts = [draw_x(across, [n for n in tick(0, most, 4) if n == int(n)], top, bottom, "neurons", shorten)]
    for place, (name, counts) in enumerate(sizes.items()):
        y = top + ROW * place + 3
        for k, count in enumerate(counts):
            before = across.place(counts[k - 1] if k else 0)
            if across.place(count) > before:
                parts.append(draw_bar(before, y, across.place(count) - before, ROW - 6, *shade(k, len(history))))
        parts.append(write_text(left - 6, y + 12, cut(name), "", "end"))
        parts.append(write_text(across.place(counts[-1]) + 5, y + 12, f"{counts[-1]:,}"))
    for k, text in enumerate(when):
        x, y = left + (WIDE - left) / 2 * (k % 2), bottom + 44 + 19 * (k // 2)
        parts += [draw_bar(x, y, 12, 12, *shade(k, len(history))), write_text(x + 17, y + 10.5, text, "quiet")]
    return wrap(parts, bottom + 48 + 19 * math.ceil(len(when) / 2))


def shade(moment: int, growths: int) -> tuple[str, float]:
    """Class and strength of what was there at the start (0), or came with a growth: the later, the stronger."""
    return ("old", 1.0) if moment == 0 else ("bar s0", 0.3 + 0.7 * moment / growths)


def draw_network(history: Sequence[Row]) -> str:
    """The network before and after, from input to output: a bar for each width, new layers in front, dormant ones |."""
    sizes = track_widths(history)
    top, left = 40, leave_room(sizes)
    most = max(max(counts[0], counts[-1]) for counts in sizes.values()) or 1
    room = (WIDE - left) / 2
    parts = []
    for panel, (when, moment) in enumerate((("before", 0), ("after", -1))):
        middle = left + room * (panel + 0.42)
        layers = sum(counts[moment] > 0 for counts in sizes.values())
        neurons = sum(counts[moment] for counts in sizes.values())
        parts.append(write_text(middle, 14, when, "", "middle"))
        parts.append(write_text(middle, 30, f"{layers} widths, {neurons:,} neurons", "quiet", "middle"))
        for place, counts in enumerate(sizes.values()):
            y, wide = top + ROW * place + 3, 0.68 * room * counts[moment] / most
            if wide:
                kind = "bar s0" if not counts[0] else "old"
                parts.append(draw_bar(middle - wide / 2, y, wide, ROW - 6, kind))
                parts.append(write_text(middle + wide / 2 + 4, y + 12, f"{counts[moment]:,}"))
            else:
                parts.append(draw_line(middle, y + 2, middle, y + 14, "growth"))
    for place, name in enumerate(sizes):
        parts.append(write_text(left - 6, top + ROW * place + 15, cut(name), "", "end"))
    return wrap(parts, top + ROW * len(sizes) + 8)


# ---- data ------------------------------------------------------------------------------------------------------------


def by_series(rows: Iterable[Row], name: Callable[[Row], str]) -> dict[str, list[Row]]:
    groups: dict[str, list[Row]] = {}
    for row in rows:
        groups.setdefault(name(row), []).append(row)
    return groups


def deepens(history: Sequence[Row]) -> bool:
    """Whether there are dormant layers in it."""
    return any(not before for growth in history for before, _ in growth["widths"].values())


def track_widths(history: Sequence[Row]) -> dict[str, list[int]]:
    """The size of every width before the first growth and after each."""
    names = list(dict.fromkeys(name for growth in history for name in growth["widths"]))
    found: dict[str, list[int]] = {}
    for name in names:
        first = next(growth["widths"][name][0] for growth in history if name in growth["widths"])
        counts = [first]
        for growth in history:
            counts.append(growth["widths"][name][1] if name in growth["widths"] else counts[-1])
        found[name] = counts
    return found


def name_growths(history: Sequence[Row]) -> list[str]:
    """The start and each growth, by epoch where that is known."""
    known = all("epoch" in growth for growth in history)
    names = [f"after epoch {row['epoch']}" if known else f"growth {k}" for k, row in enumerate(history, start=1)]
    return ["at the start", *names]


def widen(values: Sequence[float]) -> tuple[float, float]:
    """Limits with a margin around all values."""
    low, high = min(values), max(values)
    margin = 0.06 * (high - low) or 0.05 * abs(high) or 1.0
    return low - margin, high + margin


def spell(key: str) -> str:
    """A key in words: "test_accuracy" is Test accuracy, "flops" FLOPs."""
    return "FLOPs" if key == "flops" else key.replace("_", " ").capitalize()


def leave_room(names: Iterable[str]) -> float:
    """Room for names on the left."""
    return 12 + LETTER * max((len(cut(name)) for name in names), default=0)


def cut(name: str, most: int = 20) -> str:
    """The end of a long name, which tells layers apart."""
    return name if len(name) <= most else f"…{name[1 - most :]}"
