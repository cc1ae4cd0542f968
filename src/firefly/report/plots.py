"""The pictures of a report, as PNG bytes, from plain rows (see `firefly.report`).

Colours are those of Okabe and Ito, which people with any colour vision can tell apart; series are labelled where they
end, not in a legend. matplotlib is imported where it is used, without pyplot, so nothing of the user's is touched.
"""

from __future__ import annotations

import io
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from typing import Any

from firefly.errors import FireflyError

Row = Mapping[str, Any]

FRONT = "#D55E00"  # the series a page is about
BEHIND = ("#0072B2", "#009E73", "#CC79A7", "#56B4E9", "#E69F00", "#999999")
INK, FAINT = "#222222", "#8a8a8a"
MARKERS = "osD^vP"


def draw_points(points: Sequence[Row], metric: str = "accuracy") -> bytes:
    """A metric against parameters (log): a line through each series, every point labelled where it has a label."""
    figure, axes = make_figure(7.4, 4.6)
    for number, (series, rows) in reversed(list(enumerate(by_series(points).items()))):
        colour = FRONT if number == 0 else BEHIND[(number - 1) % len(BEHIND)]
        rows = sorted(rows, key=lambda row: row["parameters"])
        x, y = [row["parameters"] for row in rows], [row[metric] for row in rows]
        style = {"color": colour, "zorder": 10 - number, "marker": MARKERS[number % len(MARKERS)], "markersize": 7}
        errors = [row.get("error", 0.0) for row in rows]
        axes.errorbar(x, y, yerr=errors if any(errors) else None, label=series, elinewidth=1, linewidth=1.8, **style)
        for row in rows:
            place = ((-7, 6), "right", "bottom") if number == 0 else ((7, -6), "left", "top")
            annotate(axes, row.get("label", ""), (row["parameters"], row[metric]), *place, colour)
    axes.set_xscale("log")
    label_parameters(axes, [row["parameters"] for row in points])
    finish(axes, "parameters (log scale)", metric)
    axes.legend(frameon=False, loc="lower right", fontsize=10.5, labelcolor="linecolor", handlelength=1.6)
    return to_png(figure)


def draw_widths(history: Sequence[Row]) -> bytes:
    """Neurons per width over time: a bar for each, with a part for the start and one for each growth."""
    sizes = {name: counts for name, counts in track_widths(history).items() if counts[-1]}
    figure, axes = make_figure(7.4, 1.2 + max(0.26 * len(sizes), 1.8))
    from matplotlib import colormaps

    shades = [0.95 - 0.85 * k / max(len(history) - 1, 1) for k in range(len(history))]
    colours = ["#c8c8c8", *map(colormaps["viridis"], shades)]
    for k, (colour, when) in enumerate(zip(colours, name_growths(history))):
        left = [counts[k - 1] if k else 0 for counts in sizes.values()]
        more = [counts[k] - before for counts, before in zip(sizes.values(), left)]
        axes.barh(range(len(sizes)), more, left=left, color=colour, height=0.78, label=when)
    for place, counts in enumerate(sizes.values()):
        annotate(axes, f"{counts[-1]:,}", (counts[-1], place), (5, 0), "left", "center", INK)
    axes.set_yticks(range(len(sizes)), sizes)
    axes.invert_yaxis()
    finish(axes, "neurons", "")
    axes.grid(False, axis="y")
    axes.legend(frameon=False, fontsize=10, loc="center left", bbox_to_anchor=(1.04, 0.5), handlelength=1)
    return to_png(figure)


def draw_network(history: Sequence[Row]) -> bytes:
    """The network before and after, from input to output: a bar for each width, new layers in front, dormant ones |."""
    sizes = track_widths(history)
    figure, panels = make_figure(7.4, 1.3 + max(0.22 * len(sizes), 1.5), panels=2)
    most = max(counts[-1] for counts in sizes.values())
    for axes, when, moment in zip(panels, ("before", "after"), (0, -1)):
        for place, counts in enumerate(sizes.values()):
            size, colour = counts[moment], FRONT if not counts[0] else BEHIND[0]
            if size:
                axes.barh(place, size, left=-size / 2, height=0.74, color=colour)
                annotate(axes, f"{size:,}", (size / 2, place), (4, 0), "left", "center", INK)
            else:
                axes.plot(0, place, marker="|", color=FAINT, markersize=7)
        layers = sum(counts[moment] > 0 for counts in sizes.values())
        axes.set_title(
            f"{when}: {layers} widths, {sum(counts[moment] for counts in sizes.values()):,} neurons", size=11
        )
        axes.set_xlim(-0.6 * most, 0.72 * most)
        finish(axes, "", "")
        axes.grid(False)
        axes.set_xticks([])
        axes.tick_params(left=False)
        axes.spines[:].set_visible(False)
    panels[0].set_yticks(range(len(sizes)), sizes)
    panels[0].set_ylim(len(sizes) - 0.4, -0.6)  # the input at the top
    return to_png(figure)


def draw_epochs(epochs: Sequence[Row], history: Sequence[Row] = (), metric: str = "accuracy") -> bytes:
    """A metric per epoch, a line per series, with a mark where the network grew."""
    figure, axes = make_figure(7.4, 4.2)
    groups = by_series(epochs)
    last = max(row["epoch"] for row in epochs)
    low, high = bounds([row[metric] for row in epochs])
    ends = [min(max(rows[-1][metric], low), high) for rows in groups.values()]
    for number, ((series, rows), place) in enumerate(zip(groups.items(), spread(ends, 0.065 * (high - low)))):
        colour = FRONT if number == 0 else BEHIND[(number - 1) % len(BEHIND)]
        style = {"color": colour, "linewidth": 2.4 if number == 0 else 1.3, "zorder": 10 - number}
        axes.plot([row["epoch"] for row in rows], [row[metric] for row in rows], **style)
        where = {"textcoords": "offset points", "va": "center", "fontsize": 10}
        axes.annotate(series, (last, place), (8, 0), color=colour, annotation_clip=False, **where)
    for growth in history:
        if "epoch" in growth:
            axes.axvline(growth["epoch"], color=FAINT, linewidth=1, linestyle=":", zorder=0)
    axes.set_ylim(low, high)
    first = min(row["epoch"] for row in epochs)
    axes.set_xlim(min(first, last - 1), last)
    axes.xaxis.get_major_locator().set_params(integer=True)
    finish(axes, "epoch", metric)
    return to_png(figure)


# ---- data ------------------------------------------------------------------------------------------------------------


def by_series(rows: Iterable[Row]) -> dict[str, list[Row]]:
    groups: dict[str, list[Row]] = {}
    for row in rows:
        groups.setdefault(str(row["series"]), []).append(row)
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


def bounds(values: Sequence[float]) -> tuple[float, float]:
    """Limits that show all but the lowest tenth, which is the very beginning of training."""
    ordered = sorted(values)
    low, high = ordered[len(ordered) // 10], ordered[-1]
    margin = 0.06 * (high - low) or 0.05 * abs(high) or 1.0
    return low - margin, high + margin


# ---- looks -----------------------------------------------------------------------------------------------------------


def check_matplotlib() -> None:
    try:
        import matplotlib.figure  # noqa: F401
    except ImportError as error:
        raise FireflyError("a report needs matplotlib: pip install firefly-descent[report]") from error


def make_figure(wide: float, high: float, panels: int = 1) -> tuple[Any, Any]:
    """A figure and its axes; with more panels than one, a row of axes that share theirs."""
    check_matplotlib()
    from matplotlib.figure import Figure

    figure = Figure(figsize=(wide, high), layout="constrained", facecolor="white")
    return figure, figure.add_subplot() if panels == 1 else figure.subplots(1, panels, sharex=True, sharey=True)


def finish(axes: Any, x: str, y: str) -> None:
    """Labels, light grid, no box; shares as per cent, large numbers with separators."""
    from matplotlib.ticker import FuncFormatter

    axes.set_xlabel(x, color=INK, fontsize=11)
    axes.set_ylabel(y.replace("_", " "), color=INK, fontsize=11)
    if "accuracy" in y:
        axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{100 * value:.6g} %"))
    if x == "neurons":
        axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}"))
    axes.spines[["top", "right"]].set_visible(False)
    axes.spines[["left", "bottom"]].set_color(FAINT)
    axes.tick_params(colors=INK, which="both", labelsize=10, color=FAINT)
    axes.grid(color="#e6e6e6", linewidth=0.8)
    axes.set_axisbelow(True)


def label_parameters(axes: Any, values: Sequence[int]) -> None:
    """Ticks at 1, 2 and 5 times powers of ten, written out: 500, 1,000, 2,000."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    few = max(values) / max(min(values), 1) < 300
    axes.xaxis.set_major_locator(LogLocator(10, subs=(1, 2, 5) if few else (1,)))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}"))
    axes.xaxis.set_minor_formatter(NullFormatter())
    axes.set_xlim(min(values) * 0.8, max(values) * 1.35)


def annotate(
    axes: Any, text: str, at: tuple[float, float], offset: tuple[int, int], across: str, up: str, colour: str
) -> None:
    """Text beside a point, with a white rim so that it can be read on a line."""
    from matplotlib.patheffects import withStroke

    style = {"textcoords": "offset points", "ha": across, "va": up, "color": colour, "fontsize": 9.5, "zorder": 20}
    if text:
        axes.annotate(text, at, offset, **style, path_effects=[withStroke(linewidth=3, foreground="white")])


def to_png(figure: Any) -> bytes:
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=160)
    return buffer.getvalue()
