"""What the charts are drawn with: axes, ticks, marks and words, as SVG that follows the theme of the page.

No colour stands in a chart: its parts have classes, and the style sheet below gives them the colours of light or dark
paper. Text is as large as the page's where a chart is 26 rem wide, and still readable on a phone.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from html import escape
from itertools import pairwise
from os.path import commonprefix

from firefly.report.palette import FRONT, FRONT_ON_DARK, ON_DARK, OTHERS

WIDE = 420  # of every chart, in its own units: about pixels
LETTER = 7.2  # mean width of a letter, in a wide font

LIGHT = "; ".join(f"--s{number}: {colour}" for number, colour in enumerate((FRONT, *OTHERS)))
DARK = "; ".join(f"--s{number}: {colour}" for number, colour in enumerate((FRONT_ON_DARK, *ON_DARK)))
STYLE = f"""
:root {{ --ink: #1d1d1f; --faint: #66666e; --line: #dcdce0; --paper: #fff; {LIGHT} }}
@media (prefers-color-scheme: dark) {{
  :root {{ --ink: #e9e9ed; --faint: #a0a0aa; --line: #3a3a42; --paper: #17171a; {DARK} }}
}}
svg.chart {{ font: 12.5px system-ui, "Segoe UI", Roboto, "Helvetica Neue", sans-serif }}
.chart text {{ fill: var(--ink); paint-order: stroke; stroke: var(--paper); stroke-width: 3px; stroke-linejoin: round }}
.chart .quiet {{ fill: var(--faint); font-size: 11.5px }}
.chart .grid {{ stroke: var(--line); stroke-width: 1 }}
.chart .growth {{ stroke: var(--faint); stroke-width: 1; stroke-dasharray: 2 3 }}
.chart .line {{ fill: none; stroke: var(--c); stroke-width: 1.6; stroke-linejoin: round }}
.chart .front {{ stroke-width: 2.8 }}
.chart .again {{ stroke-dasharray: 6 4 }}
.chart .mark, .chart text.name {{ fill: var(--c) }}
.chart .error {{ stroke: var(--c); stroke-width: 1 }}
.chart .bar {{ fill: var(--c) }}
.chart .area {{ fill: var(--c); opacity: .75 }}
.chart .kind0 {{ fill: var(--ink); opacity: .8 }}
.chart .kind1 {{ fill: var(--faint); opacity: .6 }}
.chart .kind2 {{ fill: var(--faint); opacity: .25 }}
.chart .old {{ fill: var(--faint); opacity: .55 }}
""" + "".join(f".chart .s{number} {{ --c: var(--s{number}) }}\n" for number in range(len(OTHERS) + 1))


@dataclass(frozen=True)
class Axis:
    """Where a value lies: from `low` at `start` to `high` at `end`, straight or as `bend` bends it."""

    low: float
    high: float
    start: float
    end: float
    bend: Callable[[float], float] = float

    def place(self, value: float) -> float:
        low, high = self.bend(self.low), self.bend(self.high)
        return self.start + (self.end - self.start) * (self.bend(value) - low) / ((high - low) or 1.0)


def show_error(accuracy: float) -> float:
    """Bends an axis of accuracies so that each halving of the errors takes the same room: all of a training is seen."""
    return -math.log(max(1 - accuracy, 1e-4))


def tick(low: float, high: float, most: int = 5) -> list[float]:
    """Round numbers between two, at most so many and one."""
    rough = (high - low) / most or 1.0
    size = 10.0 ** math.floor(math.log10(rough))
    step = size * next(factor for factor in (1, 2, 2.5, 5, 10) if factor * size >= rough * 0.999)
    first = math.ceil(low / step - 1e-9)
    return [round(step * k, 12) for k in range(first, math.floor(high / step + 1e-9) + 1)]


def tick_log(low: float, high: float) -> list[float]:
    """The powers of ten between two numbers; where those are few, 1, 2 and 5 times them, or even more."""
    powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    for parts in ((1.0,), (1.0, 3.0), (1.0, 2.0, 5.0), (1.0, 1.5, 2.0, 3.0, 4.0, 5.0, 7.0)):
        found = [part * 10.0**power for power in powers for part in parts if low <= part * 10.0**power <= high]
        if len(found) >= 4:
            return found
    found = tick(low, high, 4)
    return found if len(found) > 2 else tick(low, high, 8)


def tick_error(low: float, high: float) -> list[float]:
    """Accuracies that people count in, between two."""
    known = (0.0, 0.2, 0.5, 0.8, 0.9, 0.95, 0.98, 0.99, 0.995, 0.998, 0.999)
    found = [value for value in known if low <= value <= high]
    return found if len(found) > 2 else tick(low, high)


def shorten(value: float) -> str:
    """1,234, then 12.3 k, 123 k, 1.23 M."""
    if abs(value) < 10_000:
        return f"{value:,.0f}"
    power = min((len(f"{abs(value):.0f}") - 1) // 3, 4)
    return f"{value / 1000**power:.3g} {' kMGT'[power]}"


def spell_time(seconds: float) -> str:
    """Seconds as people say them: 9 s, 2 min 5 s, 3 h 20 min."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    if hours:
        return f"{hours} h {minutes} min"
    return f"{minutes} min {rest} s" if minutes else f"{rest} s"


def shorten_metric(value: float, metric: str) -> str:
    """A share as per cent, anything else with four digits."""
    return f"{100 * value:.6g} %" if "accuracy" in metric else f"{value:.4g}"


def spread(values: Sequence[float], gap: float) -> list[float]:
    """The values moved apart, in their order, so that any two differ by at least `gap`: places for labels."""
    order = sorted(range(len(values)), key=lambda k: values[k])
    places = [float(value) for value in values]
    for _ in range(200):
        moved = False
        for below, above in pairwise(order):
            lack = gap - (places[above] - places[below])
            if lack > 1e-9 * gap:
                places[below] -= lack / 2
                places[above] += lack / 2
                moved = True
        if not moved:
            break
    return places


def cut(name: str, most: int = 20) -> str:
    """The end of a long name, which tells layers apart; from where a part of it begins, if one does."""
    if len(name) <= most:
        return name
    tail = name[1 - most :]
    parts = [k for k in range(most // 2) if name[-len(tail) + k - 1] in "._/"]
    return f"…{tail[parts[0] :] if parts else tail}"


def tell_apart(names: Iterable[str], most: int = 20) -> dict[str, str]:
    """A label for each name: its end; with the part in which they differ in front where several end alike."""
    labels = {name: cut(name, most) for name in names}
    for label in {*labels.values()}:
        alike = [name for name, one in labels.items() if one == label]
        if len(alike) > 1:
            before, after = commonprefix(alike), commonprefix([name[::-1] for name in alike])[::-1]  # noqa: RUF071
            before = before[: len(before) - len(re.split(r"[._/]", before)[-1])]  # whole parts, not half a number
            after = after[len(re.split(r"[._/]", after)[0]) :] or after
            middles = [name[len(before) : len(name) - len(after)] for name in alike]
            short = tell_apart(middles, most // 2)
            for name, middle in zip(alike, middles):
                head = f"{'…' * bool(before)}{short[middle]}"
                labels[name] = f"{head}{cut(after, most - len(head))}"
    return labels


# ---- parts -----------------------------------------------------------------------------------------------------------


def write_text(x: float, y: float, text: str, kind: str = "", anchor: str = "start") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" class="{kind}" text-anchor="{anchor}">{escape(text)}</text>'


def draw_line(x1: float, y1: float, x2: float, y2: float, kind: str) -> str:
    return f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" class="{kind}"/>'


def draw_path(places: Sequence[tuple[float, float]], kind: str) -> str:
    return f'<polyline points="{" ".join(f"{x:.1f},{y:.1f}" for x, y in places)}" class="{kind}"/>'


def draw_mark(x: float, y: float, kind: str, told: str) -> str:
    return f'<circle cx="{x:.1f}" cy="{y:.1f}" r="4.2" class="{kind}"><title>{escape(told)}</title></circle>'


def draw_bar(x: float, y: float, wide: float, high: float, kind: str, strength: float = 1.0, told: str = "") -> str:
    faded = f' opacity="{strength:.2f}"' if strength < 1 else ""
    bar = f'<rect x="{x:.1f}" y="{y:.1f}" width="{wide:.1f}" height="{high:.1f}" class="{kind}"{faded}'
    return f"{bar}><title>{escape(told)}</title></rect>" if told else f"{bar}/>"


def draw_area(places: Sequence[tuple[float, float]], kind: str) -> str:
    return f'<polygon points="{" ".join(f"{x:.1f},{y:.1f}" for x, y in places)}" class="{kind}"/>'


def draw_x(axis: Axis, ticks: Sequence[float], top: float, bottom: float, title: str, form: Callable[..., str]) -> str:
    """Ticks below, a light line up from each, and the title; a number that would touch the one before is left out."""
    parts = [draw_line(axis.place(value), top, axis.place(value), bottom, "grid") for value in ticks]
    end = -math.inf
    for value in ticks:
        x, half = axis.place(value), LETTER * len(form(value)) / 2
        if x - half > end:
            parts.append(write_text(x, bottom + 15, form(value), "quiet", "middle"))
            end = x + half + LETTER / 2
    return "".join([*parts, write_text((axis.start + axis.end) / 2, bottom + 32, title, "quiet", "middle")])


def draw_y(axis: Axis, ticks: Sequence[float], left: float, right: float, form: Callable[..., str]) -> str:
    """Ticks on the left and a light line from each."""
    parts = [draw_line(left, axis.place(value), right, axis.place(value), "grid") for value in ticks]
    parts += [write_text(left - 6, axis.place(value) + 4, form(value), "quiet", "end") for value in ticks]
    return "".join(parts)


def wrap(parts: Sequence[str], high: float, wide: float = WIDE) -> str:
    """A whole chart."""
    return f'<svg class="chart" viewBox="0 0 {wide:.0f} {high:.0f}" role="img">{"".join(parts)}</svg>'
