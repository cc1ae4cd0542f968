"""The table and the figure of growing wider (Fig. 3, Fig. 5): accuracy against size, and seconds per growth."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Callable, Iterable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from firefly.errors import FireflyError
from firefly.experiments.rows import Row, accuracy, count_seconds, settings
from firefly.report.palette import LABELS, find_colour, name_method

Lines = dict[str, dict[int, list[Row]]]  # by name and step
Looks = dict[str, tuple[str, str]]  # colour and style of each line
Size = Callable[[Row], float]

STYLES = ("-", "--", ":", "-.")  # of the lines of one method in several settings
RECIPE = ("batch", "lr", "long_lr", "weight_decay", "images")  # what the full network depends on, beside its epochs


def percent(row: Row) -> float:
    """Accuracy in per cent, on the test set or on the images held out."""
    return 100 * accuracy(row)


def name_lines(rows: list[Row]) -> list[str]:
    """A name per row: its method and, in a file of several settings, what differs from the most frequent one."""
    keys = dict.fromkeys(key for row in rows for key in row["config"])
    configs = [settings(row | {"config": {key: row["config"].get(key) for key in keys}}) for row in rows]
    seen = {key: Counter(str(config[key]) for config in configs if key in config) for key in keys}
    names = []
    for row, config in zip(rows, configs):
        other = [spell(key, config[key]) for key in config if str(config[key]) != seen[key].most_common(1)[0][0]]
        if row["method"] == "full":
            other = [f"{row['epochs']} epochs", *(word for word in other if word.split()[0] in RECIPE)]
        label = name_method(row["method"])
        names.append(f"{label} ({', '.join(other)})" if other else label)
    return names


def spell(key: str, value: Any) -> str:
    return f"{len(value)} growths" if key == "sizes" else f"{key} {value}"


def summarise(values: Iterable[float]) -> tuple[float, float, int]:
    """Mean, its standard error (0 for one value), and how many."""
    found = list(values)
    error = statistics.stdev(found) / len(found) ** 0.5 if len(found) > 1 else 0.0
    return statistics.fmean(found), error, len(found)


def set_apart(rows: list[Row]) -> tuple[list[Row], dict[str, float]]:
    """The networks, and the seconds of one growth by every method, if benchmarks/growth_seconds.py measured them."""
    took: dict[str, list[float]] = {}
    for row in rows:
        if row.get("benchmark") == "growth_seconds":
            took.setdefault(name_method(row["method"]), []).append(row["growth_seconds"])
    networks = [row for row in rows if "benchmark" not in row]
    return networks, {name: statistics.fmean(values) for name, values in took.items()}


def group(rows: list[Row], final: bool) -> Lines:
    """Rows by name and step, Firefly first."""
    order = {method: number for number, method in enumerate(LABELS)}
    rows = sorted(rows, key=lambda row: order.get(row["method"], len(order)))
    lines: Lines = {}
    for name, row in zip(name_lines(rows), rows):
        if row["final"] == final:
            lines.setdefault(name, {}).setdefault(row["step"], []).append(row)
    return lines


def table(rows: list[Row]) -> str:
    """A line per method: accuracy at every size after its round, then the networks that were trained for long."""
    rows, _ = set_apart(rows)
    if not rows:
        return "nothing measured yet"
    lines = ["accuracy in per cent: mean ± standard error (seeds); share of the full network's parameters"]
    for name, steps in group(rows, False).items():
        cells = []
        for _, found in sorted(steps.items()):
            mean, error, seeds = summarise(map(percent, found))
            share, *_ = summarise(100 * row["share"] for row in found)
            cells.append(f"{share:.2f} %: {mean:.2f}" + (f" ± {error:.2f} ({seeds})" if seeds > 1 else ""))
        lines.append(f"{name:28} " + "   ".join(cells))
    long = group(rows, True)
    if long:
        heads = f"{'parameters':>12} {'share':>8} {'MFLOPs':>7} {'epochs':>7} {'accuracy':>16} {'seconds':>8}"
        lines += ["", f"{'trained for long':28} {heads}"]
    for name, steps in long.items():
        for _, found in sorted(steps.items()):
            mean, error, seeds = summarise(map(percent, found))
            size, epochs = summarise(row["parameters"] for row in found)[0], found[0]["epochs"]
            flops = summarise(map(find_flops, found))[0]
            alone = [count_seconds(row, rows) for row in found if not row.get("shared")]
            seconds = f"{summarise(alone)[0]:.0f}" if alone else ""
            cell = f"{mean:.2f} ± {error:.2f} ({seeds})" if seeds > 1 else f"{mean:.2f}"
            part = f"{100 * found[0]['share']:.2f} %"
            lines.append(f"{name:28} {size:12,.0f} {part:>8} {flops:7.1f} {epochs:7} {cell:>16} {seconds:>8}")
    return "\n".join(lines)


def plot(rows: list[Row], path: Path | str) -> Path:
    """Accuracy against parameters and against FLOPs, and seconds per growth, as PNG and SVG."""
    if find_spec("matplotlib") is None:
        raise FireflyError("figures need matplotlib: pip install 'firefly-descent[report]'")
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    rows, clocked = set_apart(rows)
    figure = Figure(figsize=(14, 5), layout="constrained")
    left, middle, right = figure.subplots(1, 3, width_ratios=(2, 1.6, 0.8))
    lines = group(rows, False)
    starts = {name: lines.pop(name) for name in list(lines) if name.startswith(LABELS["start"])}
    looks = choose_looks([lines, group(rows, True)])
    for axes, size in ((left, find_share), (middle, find_flops)):
        draw_sizes(axes, lines, starts, looks, size)
        draw_long(axes, group(rows, True), looks, size)
        axes.set(xscale="log")
        axes.grid(alpha=0.3)
    left.set(xlabel="parameters, % of the full network", ylabel=describe_axis(rows))
    number_axis(left, (0.2, 0.3, 0.5, 0.7, 1, 1.5, 2, 3, 4, 6, 10, 15, 20, 30, 40, 60, 100, 200))
    middle.set(xlabel="MFLOPs of one image, forward")
    middle.sharey(left)
    number_axis(middle, (0.5, 1, 2, 5, 10, 20, 50, 100, 200, 500, 1000))
    compiled = "kernels compiled before" if clocked else "with compilation of kernels"
    right.set(xlabel=f"seconds for one growth,\n{compiled}")
    named = draw_seconds(right, clocked or find_seconds(lines), looks)
    others = {label: mark for mark, label in zip(*left.get_legend_handles_labels()) if label not in named}
    if others:
        names = [trim(label, 60) for label in others]
        left.legend(others.values(), names, fontsize="small", loc="lower right")
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    with rc_context({"svg.hashsalt": "wider"}):  # the same rows give the same files
        figure.savefig(path.with_suffix(".png"), dpi=150)
        figure.savefig(path.with_suffix(".svg"), metadata={"Date": None})
    return path.with_suffix(".png")


def choose_looks(groups: Iterable[Lines]) -> Looks:
    """A method has one colour, and a style for each of its settings."""
    looks: Looks = {}
    seen: Counter[str] = Counter()
    for lines in groups:
        for name, steps in lines.items():
            method = str(next(iter(steps.values()))[0]["method"])
            if name not in looks:
                looks[name] = find_colour(method), STYLES[seen[method] % len(STYLES)]
                seen[method] += 1
    return looks


def describe_axis(rows: list[Row]) -> str:
    where = "held-out training images" if any("held_accuracy" in row for row in rows) else "test images"
    seeds = len({row["seed"] for row in rows})
    return f"accuracy on {where}, %\n" + (f"mean ± standard error, up to {seeds} seeds" if seeds > 1 else "one seed")


def number_axis(axes: Any, places: tuple[float, ...]) -> None:
    """Plain numbers on a logarithmic axis, those of `places` that lie on it."""
    low, high = axes.get_xlim()
    axes.set_xticks([place for place in places if low <= place <= high])
    axes.xaxis.set_major_formatter("{x:g}")
    axes.minorticks_off()


def find_share(row: Row) -> float:
    return 100 * float(row["share"])


def find_flops(row: Row) -> float:
    return float(row["flops"]) / 1e6


def draw_sizes(axes: Any, lines: Lines, starts: Lines, looks: Looks, size: Size) -> None:
    """A curve per method, each from the start network of its setting on."""
    for name, steps in lines.items():
        config = settings(next(iter(steps.values()))[0])
        start = [row for rows in starts.values() for row in rows[0] if settings(row) == config]
        found = [start] * bool(start) + [rows for _, rows in sorted(steps.items())]
        sizes = [summarise(map(size, rows))[0] for rows in found]
        means, errors, _ = zip(*(summarise(map(percent, rows)) for rows in found))
        strong = {"lw": 2.4, "zorder": 5} if name == LABELS["firefly"] else {"lw": 1.2}
        color, dashes = looks[name]
        style = {"marker": "o", "markersize": 3.5, "capsize": 2, "color": color, "ls": dashes, **strong}
        axes.errorbar(sizes, means, errors, **style, label=name)


def draw_long(axes: Any, lines: Lines, looks: Looks, size: Size) -> None:
    """Networks that were trained on, as stars, those from scratch as crosses; the full one as a horizontal line."""
    for name, steps in lines.items():
        for rows in steps.values():
            mean, error, _ = summarise(map(percent, rows))
            if rows[0]["method"] == "full":
                axes.axhline(mean, color="black", lw=1, ls="--", label=name)
                continue
            place, color = summarise(map(size, rows))[0], looks[name][0]
            axes.errorbar([place], [mean], [error], color=color, capsize=2)
            cross, star = {"marker": "x", "s": 50}, {"marker": "*", "s": 150, "edgecolors": "white", "linewidths": 0.7}
            style: dict[str, Any] = cross if rows[0]["method"] == "scratch" else star
            axes.scatter([place], [mean], **style, color=color, zorder=6, label=f"{name}, trained for long")


def find_seconds(lines: Lines) -> dict[str, float]:
    """How long one growth took, the mean over all growths of a method that had the machine to themselves."""
    took = {
        name: [
            row["growth_seconds"]
            for rows in steps.values()
            for row in rows
            if row.get("growth_seconds") and not row.get("shared")
        ]
        for name, steps in lines.items()
    }
    return {name: statistics.fmean(values) for name, values in took.items() if values}


def draw_seconds(axes: Any, means: dict[str, float], looks: Looks) -> list[str]:
    """A bar per method; returns their names."""
    means = {name: means[name] for name in looks if name in means}
    places = range(len(means))
    axes.barh(places, list(means.values()), color=[looks[name][0] for name in means])
    for place, mean in zip(places, means.values()):
        axes.annotate(f" {mean:.0f}" if mean >= 10 else f" {mean:.1f}", (mean, place), va="center", fontsize=9)
    axes.set_yticks(list(places), [trim(name, 40) for name in means])
    axes.margins(x=0.25)
    axes.invert_yaxis()
    return list(means)


def trim(name: str, most: int) -> str:
    """The beginning of a long name; the table beside the figure has the whole."""
    return name if len(name) <= most else f"{name[: most - 1]}…"
