"""The table and the figure of cell search (Table 1): the errors of all cells, and how sure the differences are."""

from __future__ import annotations

import json
import math
from importlib.util import find_spec
from pathlib import Path

from firefly.errors import FireflyError
from firefly.experiments.curves import summarise
from firefly.experiments.rows import Row, accuracy
from firefly.nas.agreement import measure_agreement, measure_growth
from firefly.nas.searching import read_plan
from firefly.nas.winners import list_rivals
from firefly.report.palette import find_colour, name_method

ORDER = ("firefly", "firefly-operation", "firefly-asleep", "permuted", "random", "plain", "darts")


def group(rows: list[Row]) -> dict[str, list[Row]]:
    """The trained networks by method, Firefly first."""
    found: dict[str, list[Row]] = {name: [] for name in ORDER}
    for row in rows:
        if row.get("final"):
            found.setdefault(row["method"], []).append(row)
    order = sorted(found, key=lambda name: not name.startswith("firefly"))
    return {name: found[name] for name in order if found[name]}


def mean_by_cell(rows: list[Row]) -> list[float]:
    """The error of every different cell, in per cent: the mean over the seeds of its training."""
    cells: dict[str, list[float]] = {}
    for row in rows:
        cells.setdefault(str(row["genotype"]["cells"]), []).append(100 * (1 - accuracy(row)))
    return [sum(errors) / len(errors) for errors in cells.values()]


def table(rows: list[Row]) -> str:
    """A line per method and setting; the difference to Firefly in standard errors of both."""
    lines = []
    settings = list(dict.fromkeys((row["dataset"], str(row["config"])) for row in rows if row.get("final")))
    for dataset, config in settings:
        mine = [row for row in rows if row.get("final") and (row["dataset"], str(row["config"])) == (dataset, config)]
        lines += tabulate(dataset, mine)
    return "\n".join([*lines, *tell_searches(rows)]) or "nothing measured yet"


def tell_searches(rows: list[Row]) -> list[str]:
    """How long searches took, and whether those of one plan agree."""
    plans: dict[str, list[Row]] = {}
    for row in rows:
        if row["method"] == "search":
            plans.setdefault(f"{row['dataset']} {json.dumps(row['config'])}", []).append(row)
    lines = []
    for mine in plans.values():
        plan = read_plan(mine[0]["config"])
        took = sum(row["search_seconds"] for row in mine) / len(mine)
        seeds = ", ".join(str(row["seed"]) for row in mine)
        lines.append(f"{mine[0]['dataset']}, searches of {plan.title}, seeds {seeds}: {took:.0f} s each")
        if len(mine) > 1:
            logs = [[{"widths": row["widths"], "gains": gains} for gains in row["gains"]] for row in mine]
            lines.append(str(measure_agreement([list_rivals(log, plan) for log in logs], plan)))
    return lines


def tabulate(dataset: str, rows: list[Row]) -> list[str]:
    first, groups = rows[0], group(rows)
    how = first["config"]
    where = "held-out training images" if "held_accuracy" in first else "test images"
    lines = [
        f"{dataset}, {how['cells']} cells, {first['epochs']} epochs: errors on {where} in per cent, "
        "means over cells and seeds ± standard error over cells",
        f"{'':24}{'cells':>8}{'networks':>10}{'parameters':>13}{'error':>16}{'Firefly lower by':>20}",
    ]
    first_of_ours = next((name for name in groups if name.startswith("firefly")), None)
    ours = mean_by_cell(groups[first_of_ours]) if first_of_ours else []
    for name, mine in groups.items():
        errors = mean_by_cell(mine)
        mean, error, number = summarise(errors)
        size = sum(row["parameters"] for row in mine) / len(mine)
        shown = f"{mean:.2f}" + (f" ± {error:.2f}" if number > 1 else "")
        apart = compare(ours, errors) if ours and name != first_of_ours else ""
        lines.append(f"{name_method(name):24}{number:>8}{len(mine):>10}{size:>13,.0f}{shown:>16}{apart:>20}")
    return lines


def compare(ours: list[float], others: list[float]) -> str:
    """How much lower our error is, and in how many standard errors, where there are several of both."""
    (mine, error, count), (theirs, other, number) = summarise(ours), summarise(others)
    sure = math.hypot(error, other)
    apart = f" ({(theirs - mine) / sure:+.1f} s.e.)" if min(count, number) > 1 and sure else ""
    return f"{theirs - mine:+.2f}{apart}"


def plot(rows: list[Row], path: Path | str) -> Path:
    """The error of every network, a column per method; before there are any, what each search grew."""
    if find_spec("matplotlib") is None:
        raise FireflyError("figures need matplotlib: pip install 'firefly-descent[report]'")
    from matplotlib.figure import Figure

    groups = {name: [100 * (1 - accuracy(row)) for row in mine] for name, mine in group(rows).items()}
    title, columns = ("error (%)", groups) if groups else ("channels grown, mean of all edges", list_grown(rows))
    figure = Figure(figsize=(1.5 + 1.1 * max(len(columns), 2), 3.6), layout="constrained")
    axes = figure.subplots()
    for place, (name, values) in enumerate(columns.items()):
        spread = [place + 0.08 * (k - (len(values) - 1) / 2) for k in range(len(values))]
        axes.scatter(spread, values, color=find_colour(name), s=22)
        mean = sum(values) / len(values)
        axes.plot([place - 0.3, place + 0.3], [mean, mean], color=find_colour(name), linewidth=2)
    axes.set_xticks(range(len(columns)), [name_method(name) for name in columns], rotation=20)
    axes.set_ylabel(title)
    axes.grid(alpha=0.3, axis="y")
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path.with_suffix(".png"), dpi=150)
    return path.with_suffix(".png")


def list_grown(rows: list[Row]) -> dict[str, list[float]]:
    """By operation, the channels that it got on the mean of all edges, in every search."""
    found: dict[str, list[float]] = {}
    for row in (row for row in rows if row["method"] == "search"):
        rivals = list_rivals([{"widths": row["widths"], "gains": {}}], read_plan(row["config"]))
        for name, (mean, _) in measure_growth([rivals, rivals]).items():
            found.setdefault(name, []).append(mean)
    return found
