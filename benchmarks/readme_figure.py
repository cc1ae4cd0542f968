"""The README's figure: accuracy against parameters and against FLOPs, from `results/wider-vgg19.jsonl`.

    python benchmarks/readme_figure.py          writes docs/figures/wider-parameters.svg and wider-flops.svg

A few methods only; docs/results.md has all of them.
"""

import statistics
from pathlib import Path
from typing import Any

from tables_text import RESULTS, Row, percent, read

from firefly.report.charts import draw_points
from firefly.report.page import Picture
from firefly.report.palette import number_series

SERIES = {  # by name: method, budget, whether trained on
    "Firefly": ("firefly", "parameters", False),
    "Firefly, trained on": ("firefly", "parameters", True),
    "Firefly, parameters and FLOPs limited": ("firefly", "both", False),
    "uniform, all layers alike": ("uniform", "parameters", False),
    "NASH": ("nash", "parameters", False),
    "the full network, trained as long": ("full", "parameters", True),
}
SIZES = {"parameters": "wider-parameters", "flops": "wider-flops"}


def list_points(rows: tuple[Row, ...]) -> list[dict[str, Any]]:
    """One point a series and size: the mean over seeds, and its standard error."""
    points = []
    for name, (method, budget, long) in SERIES.items():
        mine = [row for row in rows if is_wanted(row, method, budget, long)]
        for step in sorted({row["step"] for row in mine}):
            found = [row for row in mine if row["step"] == step]
            accuracies = [percent(row) / 100 for row in found]
            error = statistics.stdev(accuracies) / len(found) ** 0.5 if len(found) > 1 else 0.0
            sizes = {size: round(statistics.fmean(row[size] for row in found)) for size in SIZES}
            points.append({"series": name, "accuracy": statistics.fmean(accuracies), "error": error, **sizes})
    return points


def is_wanted(row: Row, method: str, budget: str, long: bool) -> bool:
    plain = row["config"].get("budget", "parameters") == budget and not row["config"].get("deepen")
    return row["method"] == method and row["final"] == long and (plain or method == "full")


def main() -> None:
    points = list_points(read("wider-vgg19"))
    numbers = number_series(SERIES)
    for size, name in SIZES.items():
        picture = Picture(name, draw_points(points, numbers, "accuracy", size), "")
        path: Path = RESULTS.parent / "docs" / "figures" / f"{name}.svg"
        path.write_text(picture.to_file(), encoding="utf-8")
        print(path)


if __name__ == "__main__":
    main()
