"""Charts of the widths of one network: how large they are, when they grew, and what each growth was worth.

They take the growths of a run as plain rows (`Growth.to_dict()`); widths are named after the layer that makes them.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from firefly.report.svg import (
    LETTER,
    WIDE,
    Axis,
    draw_area,
    draw_bar,
    draw_line,
    draw_x,
    shorten,
    tell_apart,
    tick,
    wrap,
    write_text,
)

Row = Mapping[str, Any]

ROW = 22  # the height of a bar and its gap
COLUMNS = 6  # growths beside each other


def draw_widths(history: Sequence[Row], series: int = 0) -> str:
    """Neurons per width over time: a bar for each, with a part for the start and one for each growth."""
    sizes = {name: counts for name, counts in track_widths(history).items() if counts[-1]}
    when, labels = name_growths(history), tell_apart(sizes)
    top, left = 10, leave_room(labels.values())
    bottom = top + ROW * len(sizes)
    most = max(counts[-1] for counts in sizes.values())
    across = Axis(0, most, left, WIDE - 16 - LETTER * len(f"{most:,}"))
    parts = [draw_x(across, [n for n in tick(0, most, 4) if n == int(n)], top, bottom, "neurons", shorten)]
    for place, (name, counts) in enumerate(sizes.items()):
        y = top + ROW * place + 3
        for k, count in enumerate(counts):
            before = across.place(counts[k - 1] if k else 0)
            if across.place(count) > before:
                parts.append(
                    draw_bar(before, y, across.place(count) - before, ROW - 6, *shade(k, len(history), series))
                )
        parts.append(write_text(left - 6, y + 12, labels[name], "", "end"))
        parts.append(write_text(across.place(counts[-1]) + 5, y + 12, f"{counts[-1]:,}"))
    for k, text in enumerate(when):
        x, y = left + (WIDE - left) / 2 * (k % 2), bottom + 44 + 19 * (k // 2)
        parts += [draw_bar(x, y, 12, 12, *shade(k, len(history), series)), write_text(x + 17, y + 10.5, text, "quiet")]
    return wrap(parts, bottom + 48 + 19 * math.ceil(len(when) / 2))


def shade(moment: int, growths: int, series: int) -> tuple[str, float]:
    """Class and strength of what was there at the start (0), or came with a growth: the later, the stronger."""
    return ("old", 1.0) if moment == 0 else (f"bar s{series}", 0.3 + 0.7 * moment / growths)


def draw_network(history: Sequence[Row], series: int = 0) -> str:
    """The network before and after, from input to output: a bar for each width, new layers in front, dormant ones |."""
    sizes = track_widths(history)
    labels = tell_apart(sizes)
    top, left = 40, leave_room(labels.values())
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
                kind = f"bar s{series}" if not counts[0] else "old"
                parts.append(draw_bar(middle - wide / 2, y, wide, ROW - 6, kind))
                parts.append(write_text(middle + wide / 2 + 4, y + 12, f"{counts[moment]:,}"))
            else:
                parts.append(draw_line(middle, y + 2, middle, y + 14, "growth"))
    for place, label in enumerate(labels.values()):
        parts.append(write_text(left - 6, top + ROW * place + 15, label, "", "end"))
    return wrap(parts, top + ROW * len(sizes) + 8)


def draw_timeline(history: Sequence[Row], last: int, series: int = 0) -> str:
    """Each width over the epochs: a step wherever it grew, as high as its share of what it became."""
    sizes = {name: counts for name, counts in track_widths(history).items() if counts[-1]}
    labels = tell_apart(sizes)
    top, left = 10, leave_room(labels.values())
    bottom = top + ROW * len(sizes)
    told = {name: f"{counts[0]:,} → {counts[-1]:,}" for name, counts in sizes.items()}
    across = Axis(0, last, left, WIDE - 10 - LETTER * max(map(len, told.values())))
    whole = [value for value in tick(0, last, 4) if value == int(value)]
    parts = [draw_x(across, whole, top, bottom, "epoch", shorten)]
    when = [0, *(growth["epoch"] for growth in history), last]
    for place, (name, counts) in enumerate(sizes.items()):
        foot, most = top + ROW * place + ROW - 3, max(counts)
        steps = [
            (across.place(when[k + d]), foot - (ROW - 6) * counts[k] / most) for k in range(len(counts)) for d in (0, 1)
        ]
        parts.append(draw_area([(left, foot), *steps, (across.place(last), foot)], f"area s{series}"))
        parts.append(write_text(left - 6, foot - 4, labels[name], "", "end"))
        parts.append(write_text(across.end + 6, foot - 4, told[name]))
    return wrap(parts, bottom + 40)


def draw_gains(history: Sequence[Row], kinds: Sequence[str] = ()) -> str:
    """What each growth expected of each width: a column per growth, a bar per width, a shade per kind.

    In a column the longest bar is the largest gain; gains of different growths are told by the number on top of it.
    `kinds` are those of a whole page, whose place among them says their shade.
    """
    names = [name for name, counts in track_widths(history).items() if counts[-1]]
    kinds = kinds or list_kinds(history)
    drawn = {kind for row in history for gains in row.get("gains", {}).values() for kind in gains if gains[kind] > 0}
    left, parts, top = leave_room(tell_apart(names).values()), [], 26.0
    for start in range(0, len(history), COLUMNS):
        parts += draw_columns(history[start : start + COLUMNS], start, names, kinds, left, top)
        top += ROW * len(names) + 44
    x = left
    for number, kind in ((number, kind) for number, kind in enumerate(kinds) if kind in drawn):
        parts += [draw_bar(x, top - 22, 12, 12, f"kind{number % 3}"), write_text(x + 17, top - 11.5, kind, "quiet")]
        x += 36 + LETTER * len(kind)
    return wrap(parts, top)


def draw_columns(
    history: Sequence[Row], start: int, names: Sequence[str], kinds: Sequence[str], left: float, top: float
) -> list[str]:
    """The gains of a few growths beside each other."""
    labels = enumerate(tell_apart(names).values())
    parts = [write_text(left - 6, top + ROW * place + 15, label, "", "end") for place, label in labels]
    parts += [write_text(left - 6, top + up, word, "quiet", "end") for up, word in ((-14, "growth"), (-1, "gain"))]
    room = (WIDE - left) / max(len(history), 2)
    for column, growth in enumerate(history):
        x, gains = left + room * column, growth.get("gains", {})
        largest = max((sum(gain.values()) for gain in gains.values()), default=0.0)
        parts.append(write_text(x, top - 14, f"{start + column + 1}", "quiet"))
        parts.append(write_text(x, top - 1, f"{largest:.2g}" if largest else "", "quiet"))
        parts.append(draw_line(x, top + 3, x, top + ROW * len(names), "grid"))
        for place, name in enumerate(names):
            at = x
            for number, kind in enumerate(kinds):
                gain = gains.get(name, {}).get(kind, 0.0)
                wide = (room - 10) * gain / largest if largest and gain > 0 else 0.0
                told = f"growth {start + column + 1}, {name}, {kind}: {gain:.3g}"
                parts += [draw_bar(at, top + ROW * place + 4, wide, ROW - 6, f"kind{number % 3}", told=told)] * (
                    wide > 0
                )
                at += wide
    return parts


# ---- data ------------------------------------------------------------------------------------------------------------


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


def list_kinds(history: Sequence[Row]) -> list[str]:
    """The kinds of growth in a run, by name."""
    return list(dict.fromkeys(kind for growth in history for kinds in growth["added"].values() for kind in kinds))


def leave_room(labels: Iterable[str]) -> float:
    """Room for labels on the left; the sign of an omission is as wide as two letters."""
    return 12 + LETTER * max(len(label) + label.count("…") for label in ["growth", *labels])
