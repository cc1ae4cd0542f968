"""Cells and their growth as pictures: SVG that follows the theme of the page, like the charts of `firefly.report`.

A cell is drawn like a conversation: a line down for each input and node, and an arrow for every operation from what it
reads to the node that adds it up. So no two labels meet, however the cell looks.
"""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from firefly.nas.genotype import Cell, Genotype
from firefly.nas.operations import IDENTITY, SEARCHED
from firefly.nas.searching import Searched
from firefly.nas.winners import read_path
from firefly.report.svg import STYLE, WIDE, Axis, draw_line, draw_path, draw_x, draw_y, tick, write_text

LANE = 21  # between two arrows
TOP = 46
SERIES = {name: number for number, name in enumerate([*SEARCHED, IDENTITY, "max_pool_3x3", "avg_pool_3x3"])}
MORE = """
.chart .life { stroke: var(--line); stroke-width: 1.4 }
.chart .arrow { fill: none; stroke: var(--c); stroke-width: 2.2 }
.chart .head { fill: var(--c) }
.chart .thin { fill: none; stroke: var(--c); stroke-width: .8; opacity: .3 }
.chart .back { fill: var(--paper) }
.chart .box { fill: var(--paper); stroke: var(--faint) }
.chart .title { font-weight: 600 }
"""
SHORT = {"skip_connect": "identity", "none": "none", "conv_7x1_1x7": "7×1 1×7"}


def shorten(name: str) -> str:
    """`sep_conv_3x3` as `sep 3×3`."""
    return SHORT.get(name) or name.replace("_conv_", " ").replace("_pool_", " ").replace("x", "×").replace("ma×", "max")


def colour(name: str) -> str:
    return f"s{SERIES.get(name, 7) % 8}"


def draw_genotype(genotype: Genotype, title: str = "") -> str:
    """All cells of a genotype, one below the other."""
    names = ("normal", "reduce") if len(genotype.cells) == 2 else [f"cell {k + 1}" for k in range(5)]
    parts, high = [], 8.0
    for number, (cell, name) in enumerate(zip(genotype.cells, names)):
        told = f"{name}, halves the image" if number % 2 else name
        drawn, more = draw_cell(cell, told)
        parts.append(f'<g transform="translate(0 {high:.0f})">{drawn}</g>')
        high += more
    return frame(parts, high, title or genotype.name)


def draw_cell(cell: Cell, title: str) -> tuple[str, float]:
    """The parts of a cell's picture, and how high it is."""
    names = ["input 0", "input 1", *(f"node {number}" for number in range(2, 2 + len(cell.nodes))), "output"]
    step = (WIDE - 60) / (len(names) - 1)
    places = [30 + step * number for number in range(len(names))]
    edges = [(source, node, name) for node, ones in enumerate(cell.nodes, start=2) for name, source in ones]
    bottom = TOP + LANE * (len(edges) + 1) + 6
    parts = [write_text(8, 14, title, "title")]
    for place, name in zip(places, names):
        parts.append(draw_line(place, TOP - 8, place, bottom, "life"))
        parts.append(write_text(place, TOP - 14, name, "quiet", "middle"))
    for number, (source, node, name) in enumerate(edges):
        parts.append(draw_arrow(places[source], places[node], TOP + LANE * (number + 0.7), name))
    y = TOP + LANE * (len(edges) + 0.7)
    for number in cell.concat:
        parts.append(f'<circle cx="{places[number]:.1f}" cy="{y:.1f}" r="3" class="old"/>')
    parts.append(draw_line(places[min(cell.concat)], y, places[-1], y, "growth"))
    parts.append(write_text(places[-1] - 6, y - 5, "joined", "quiet", "end"))
    return "".join(parts), bottom + 22


def draw_arrow(start: float, end: float, y: float, name: str) -> str:
    """An operation: from what it reads to its node, its name at the end."""
    tip = f"{end:.1f},{y:.1f} {end - 7:.1f},{y - 3.6:.1f} {end - 7:.1f},{y + 3.6:.1f}"
    return (
        f'<g class="{colour(name)}"><title>{escape(name)}</title>'
        f'<circle cx="{start:.1f}" cy="{y:.1f}" r="3" class="head"/>'
        f'<line x1="{start:.1f}" y1="{y:.1f}" x2="{end - 6:.1f}" y2="{y:.1f}" class="arrow"/>'
        f'<polygon points="{tip}" class="head"/></g>' + write_text(end - 10, y - 5, shorten(name), "quiet", "end")
    )


# ---- growth ----------------------------------------------------------------------------------------------------------

HIGH = 120  # of a cell's panel


def draw_growth(found: Searched) -> str:
    """The channels of every operation after every growth: a panel per cell, a thin line per edge, a thick mean."""
    parts, top = [draw_legend(16)], 40.0
    for cell in range(len(found.plan.channels)):
        parts.append(draw_panel(found, cell, top))
        top += HIGH + 42
    return frame(parts, top + 6, f"channels of every operation, seed {found.seed}")


def draw_legend(y: float) -> str:
    gap = (WIDE - 40) / len(SEARCHED)
    parts = []
    for number, name in enumerate(SEARCHED):
        x = 34 + gap * number
        parts.append(f'<g class="{colour(name)}">{draw_line(x, y - 4, x + 16, y - 4, "arrow")}</g>')
        parts.append(write_text(x + 21, y, shorten(name), "quiet"))
    return "".join(parts)


def draw_panel(found: Searched, cell: int, top: float) -> str:
    lines = list_lines(found, cell)
    most = max(max(line) for lines_of in lines.values() for line in lines_of)
    across = Axis(0, len(found.growths), 40, WIDE - 12)
    up = Axis(0, max(most, 1), top + HIGH, top + 8)
    form = "{:g}".format
    parts = [draw_y(up, tick(0, max(most, 1), 3), 40, WIDE - 12, form)]
    told = "growth" if cell == len(found.plan.channels) - 1 else ""
    parts.append(draw_x(across, range(len(found.growths) + 1), top, top + HIGH, told, form))
    parts.append(write_text(46, top + 16, f"cell {cell + 1}", "title"))
    for name, mine in lines.items():
        thin = [draw_path(trace(line, across, up), "thin") for line in mine]
        mean = [sum(values) / len(values) for values in zip(*mine)]
        parts.append(f'<g class="{colour(name)}">{"".join(thin)}{draw_path(trace(mean, across, up), "line front")}</g>')
    return "".join(parts)


def trace(line: Sequence[float], across: Axis, up: Axis) -> list[tuple[float, float]]:
    return [(across.place(number), up.place(value)) for number, value in enumerate(line)]


def list_lines(found: Searched, cell: int) -> dict[str, list[list[float]]]:
    """By operation, the widths on every edge of a cell: at first, then after every growth."""
    lines: dict[str, list[list[float]]] = {name: [] for name in SEARCHED}
    for path in found.growths[-1]["widths"]:
        place = read_path(path)
        if place.cell == cell:
            later = [float(growth["widths"][path]) for growth in found.growths]
            lines[place.operation].append([float(found.plan.begin[cell]), *later])
    return lines


def frame(parts: Sequence[str], high: float, title: str) -> str:
    """A picture of its own: with its style, and paper behind it."""
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" class="chart" viewBox="0 0 {WIDE} {high:.0f}" role="img">'
        f"<title>{escape(title)}</title><style>{STYLE}{MORE}</style>"
        f'<rect width="{WIDE}" height="{high:.0f}" class="back"/>{"".join(parts)}</svg>'
    )
