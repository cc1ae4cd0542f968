"""The table and the figure of continual learning (Table 2, Fig. 4): accuracy over the tasks seen, and what it takes."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import Any

from firefly.errors import FireflyError
from firefly.experiments.curves import summarise
from firefly.experiments.rows import Row
from firefly.report.palette import LABELS, find_colour, name_method


def group(rows: list[Row]) -> dict[str, dict[int, list[Row]]]:
    """By method and number of tasks seen, Firefly first."""
    found: dict[str, dict[int, list[Row]]] = {name: {} for name in LABELS}
    for row in rows:
        found.setdefault(row["method"], {}).setdefault(row["step"] + 1, []).append(row)
    return {name: dict(sorted(steps.items())) for name, steps in found.items() if steps}


def cell(values: list[float]) -> str:
    mean, error, count = summarise(values)
    return f"{mean:.2f}" + (f" ± {error:.2f}" if count > 1 else "")


def table(rows: list[Row]) -> str:
    """A line per method, at the last task that all of its splits have seen."""
    if not rows:
        return "nothing measured yet"
    heads = ("tasks", "splits", "accuracy", "first task", "forgotten", "parameters")
    lines = ["per cent, means over splits ± standard error; forgotten: below the best that tasks ever were"]
    lines.append(f"{'':32}" + "".join(f"{head:>16}" for head in heads))
    for name, steps in group(rows).items():
        most = max(len(found) for found in steps.values())
        seen = max(step for step, found in steps.items() if len(found) == most)
        found = steps[seen]
        shown = [str(seen), str(len(found)), cell([100 * row["test_accuracy"] for row in found])]
        shown.append(cell([100 * row["accuracies"]["task 1"] for row in found]))
        shown.append(cell([100 * row["forgotten"] for row in found]) if len(steps) > 1 else "")
        shown.append(f"{summarise(row['parameters'] for row in found)[0]:,.0f}")
        lines.append(f"{name_method(name):32}" + "".join(f"{one:>16}" for one in shown))
    return "\n".join(lines)


PANELS: dict[str, Any] = {
    "mean accuracy over the tasks seen (%)": lambda row: 100 * row["test_accuracy"],
    "accuracy of the first task (%)": lambda row: 100 * row["accuracies"]["task 1"],
    "parameters of all tasks": lambda row: row["parameters"],
}


def plot(rows: list[Row], path: Path | str) -> Path:
    """Three panels over the tasks as they come; methods that learn all at once are a point at the end."""
    if find_spec("matplotlib") is None:
        raise FireflyError("figures need matplotlib: pip install 'firefly-descent[report]'")
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    figure = Figure(figsize=(13, 3.9), layout="constrained")
    lines = group(rows)
    for axes, (title, value) in zip(figure.subplots(1, 3), PANELS.items()):
        for name, steps in lines.items():
            points = [summarise(map(value, found)) for found in steps.values()]
            look = {"marker": "o", "markersize": 4, "linewidth": 2.2 if name == "firefly" else 1.3, "capsize": 2}
            errors = [error for _, error, _ in points]
            means = [mean for mean, _, _ in points]
            axes.errorbar(list(steps), means, errors, **look, color=find_colour(name), label=name_method(name))
        axes.set(title=title, xlabel="tasks learnt")
        axes.grid(alpha=0.3)
        axes.xaxis.get_major_locator().set_params(integer=True)
    figure.axes[0].legend(fontsize="small")
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    with rc_context({"svg.hashsalt": "continual"}):  # the same rows give the same files
        figure.savefig(path.with_suffix(".png"), dpi=150)
        figure.savefig(path.with_suffix(".svg"), metadata={"Date": None})
    return path.with_suffix(".png")
