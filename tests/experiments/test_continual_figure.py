"""Tables and figures of continual learning: pairs of early and late, a line per method and size, files as committed."""

import re
from pathlib import Path
from typing import Any

import pytest

from firefly.experiments.continual.figure import plot
from firefly.experiments.continual.table import group, table
from firefly.experiments.rows import Row, read_rows

ROOT = Path(__file__).parents[2]


def make_rows(method: str = "firefly", ways: int = 4, rotate: int = 0, seed: int = 0, **more: Any) -> list[Row]:
    """Tasks of one class each: task k has accuracy 0.5 + k / 100, and a hundredth more for every place."""
    order = [(place + rotate) % ways for place in range(ways)]
    values = {f"task {place + 1}": 0.5 + (task + place) / 100 for place, task in enumerate(order)}
    rows = []
    for step in range(ways):
        seen = dict(list(values.items())[: step + 1])
        told = {"experiment": "continual", "method": method, "seed": seed, "step": step, "final": step == ways - 1}
        told |= {"ways": ways, "parameters": 1000 * (step + 1), "epochs": 10, "forgotten": 0.0, "accuracies": seen}
        told |= {"test_accuracy": sum(seen.values()) / len(seen), "classes": [[task] for task in order[: step + 1]]}
        rows.append({**told, "config": {"rotate": rotate, "parameters": 100}, **more})
    return rows


def test_the_same_tasks_are_paired_early_and_late() -> None:
    rows = [row for k in range(4) for row in make_rows(rotate=k)]
    *_, line = table(rows).splitlines()
    # every task is once first, and once third and fourth: two and three places later, 2.5 hundredths in the mean
    assert line.split() == ["Firefly", "4", "51.50", "54.00", "2.50", "±", "0.00"]
    *_, line = table([row for k in (0, 2) for row in make_rows(rotate=k)]).splitlines()
    assert line.split()[1:] == ["2", "51.00", "53.00", "2.00", "±", "0.00"]  # tasks 0 and 2 were early and late


def test_one_order_has_nothing_to_pair_and_rotated_ones_are_not_more_splits() -> None:
    assert "the same tasks" not in table(make_rows())
    lines = group([row for k in range(4) for row in make_rows(rotate=k)])
    assert {step: len(found) for step, found in lines["Firefly"].items()} == {1: 1, 2: 1, 3: 1, 4: 1}


def test_methods_are_paired_with_firefly_by_split_and_with_networks_of_their_own_by_task() -> None:
    rows = []
    for seed, gap in ((0, 0.0), (1, 0.02), (2, 0.04)):
        rows += make_rows(seed=seed)
        for row in make_rows("ewc", seed=seed) + make_rows("individual", seed=seed):
            lower = {name: value - gap - 0.01 for name, value in row["accuracies"].items()}
            more = {"accuracies": lower, "test_accuracy": row["test_accuracy"] - gap - 0.01}
            rows.append(row | (more if row["method"] == "ewc" else {}))
    ours, own, ewc = table(rows).splitlines()[3:6]
    assert "0.00 ± 0.00" in ours and ours.split()[1:4] == ["4", "3", "53.00"]
    assert "0.00 ± 0.00" in own  # as good as Firefly
    assert "-3.00 ± 1.15*" in ewc and "-3.00 ± 1.15 " in ewc  # to Firefly; transfer
    others = [row | {"config": {**row["config"], "lr": 7.0}} for row in rows if row["method"] == "individual"]
    *_, ewc = table([row for row in rows if row["method"] != "individual"] + others).splitlines()
    assert "-3.00 ± 1.15*" in ewc and "-3.00 ± 1.15 " not in ewc  # of another recipe: nothing to pair with


def test_a_row_from_before_rotation_is_one_that_was_not_rotated() -> None:
    old = make_rows(seed=1)
    for row in old:
        del row["config"]["rotate"]
    assert list(group([*make_rows(), *old])) == ["Firefly"]


def test_a_method_in_several_sizes_is_one_line_against_size(tmp_path: Path) -> None:
    rows = make_rows() + make_rows("ewc")
    for size in (200, 400):
        rows += [row | {"parameters": 10 * row["parameters"] * size} for row in make_rows(config={"parameters": size})]
    assert list(group(rows)) == ["Firefly", "Firefly (parameters 200)", "Firefly (parameters 400)", "EWC"]
    assert plot(rows, tmp_path / "c.png") == tmp_path / "c.svg"
    sizes = (tmp_path / "c-sizes.svg").read_text()
    (line,) = re.findall(r'<polyline points="([^"]+)" class="line s0 front"', sizes)
    places = [float(point.partition(",")[0]) for point in line.split()]
    assert len(places) == 3 and places == sorted(places)
    assert sizes.count("<polyline") == 2


def test_many_methods_are_told_apart_and_named_inside_the_picture(tmp_path: Path) -> None:
    names = ["firefly", *"abcdefghijklmnop"]
    plot([row for name in names for row in make_rows(name)], tmp_path / "c.svg")
    drawn = (tmp_path / "c.svg").read_text()
    assert (
        len(set(re.findall(r'<polyline [^>]*class="([^"]+)"', drawn))) == 15
    )  # eight colours, seven of them dashed, too
    high = float(re.findall(r'viewBox="0 0 \d+ (\d+)"', drawn)[0])
    places = [float(y) for y in re.findall(r'<text x="[^"]+" y="([^"]+)" class="name', drawn)]
    assert len(places) == len(names) and min(places) > 10 and max(places) < high
    gaps = [b - a for a, b in zip(sorted(places), sorted(places)[1:])]
    assert min(gaps) > 14


@pytest.mark.parametrize("name", ["continual", "continual-sizes"])
def test_the_committed_figures_are_those_of_the_results(name: str, tmp_path: Path) -> None:
    plot(read_rows(ROOT / "results" / "continual.jsonl"), tmp_path / "continual.svg")
    drawn, kept = ((folder / f"{name}.svg").read_text() for folder in (tmp_path, ROOT / "docs" / "figures"))
    marks = [re.sub("<style>.*</style>", "", one, flags=re.DOTALL) for one in (drawn, kept)]
    assert marks[0] == marks[1], "firefly report results/continual.jsonl --out docs/figures"
    assert "prefers-color-scheme: dark" in drawn and drawn.startswith("<svg xmlns")
