"""The tables of continual learning (Table 2): accuracy, what it takes, and the same tasks early and late.

Whoever is compared is paired: with Firefly by split, with a network of its own by task, early with late by task.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

from firefly.experiments.continual.course import RIVALS, Course
from firefly.experiments.curves import name_lines, summarise
from firefly.experiments.rows import Row
from firefly.report.palette import LABELS

Lines = dict[str, dict[int, list[Row]]]  # by name and number of tasks seen
RECIPE = ("dataset", "held_out", "images", "epochs", "first_epochs", "growths", "batch", "lr", "weight_decay")
NOTE = """per cent, means over splits ± standard error; to Firefly: on the same splits, * by more than two errors
transfer: tasks as soon as learnt, above networks of their own; forgotten: below the best that tasks ever were"""
HEADS = (
    "tasks",
    "splits",
    "accuracy",
    "to Firefly",
    "transfer",
    "first task",
    "forgotten",
    "size",
    "MiB",
    "epochs",
)


def group(rows: Iterable[Row]) -> Lines:
    """By method, and what is special of its setting, Firefly first; rotated orders stand in a table of their own."""
    order = {method: number for number, method in enumerate(LABELS)}
    rows = sorted(keep_last(map(complete, rows)), key=lambda row: order.get(row["method"], len(order)))
    rows = [row for row in rows if not row["config"]["rotate"]] or rows
    found: Lines = {}
    for name, row in zip(name_lines(rows), rows):
        found.setdefault(name, {}).setdefault(row["step"] + 1, []).append(row)
    return {name: dict(sorted(steps.items())) for name, steps in found.items()}


def keep_last(rows: Iterable[Row]) -> list[Row]:
    """Of what was measured twice, as by a run that lost its folder and began anew, the later."""
    return list({(row["method"], find_split(row)): row for row in rows}.values())


def complete(row: Row) -> Row:
    """A row from before a setting was known has its default."""
    return row | {"config": {**vars(Course()), **row["config"]}}


def find_last(steps: dict[int, list[Row]]) -> tuple[int, list[Row]]:
    """The last task that all splits of a method have seen."""
    most = max(len(found) for found in steps.values())
    seen = max(step for step, found in steps.items() if len(found) == most)
    return seen, steps[seen]


def cell(values: list[float]) -> str:
    if not values:
        return ""
    mean, error, count = summarise(values)
    return f"{mean:.2f}" + (f" ± {error:.2f}" if count > 1 else "")


def table(rows: list[Row]) -> str:
    """A line per method, at the last task that all of its splits have seen; then early tasks against late ones."""
    if not rows:
        return "nothing measured yet"
    rows = keep_last(map(complete, rows))
    named, alone = group(rows), find_alone(rows)
    ours = {find_split(row, RIVALS): row for row in rows if row["method"] == "firefly"}
    wide = max(32, *(len(name) + 2 for name in named))
    lines = [NOTE, " " * wide + "".join(f"{head:>15}" for head in HEADS)]
    for name, steps in named.items():
        seen, found = find_last(steps)
        size = summarise(row["parameters"] for row in found)[0]
        shown = [str(seen), str(len(found)), cell([100 * row["test_accuracy"] for row in found])]
        shown += [compare(found, ours), cell(list_transfers(steps, alone))]
        shown.append(cell([100 * row["accuracies"]["task 1"] for row in found]))
        shown.append(cell([100 * row["forgotten"] for row in found]) if len(steps) > 1 else "")
        epochs = summarise(row["epochs"] for one in steps.values() for row in one)[0]
        shown += [f"{size:,.0f}", f"{size * 4 / 2**20:.2f}", f"{epochs:.0f}"]
        lines.append(f"{name:{wide}}" + "".join(f"{one:>15}" for one in shown))
    return "\n".join([*lines, *compare_orders(rows, wide)])


def find_split(row: Row, but: tuple[str, ...] = ()) -> str:
    """The setting, whatever these keys are, the split, and how many tasks were seen."""
    config = {key: value for key, value in row["config"].items() if key not in but}
    return json.dumps([config, row["seed"], row["step"]], sort_keys=True)


def compare(found: list[Row], ours: dict[str, Row]) -> str:
    """How far a method is above Firefly, paired by split."""
    keys = [(row, find_split(row, RIVALS)) for row in found if row["method"] != "firefly"]
    pairs = [(row, ours[key]) for row, key in keys if key in ours]
    if not pairs:
        return ""
    gaps = [100 * (row["test_accuracy"] - other["test_accuracy"]) for row, other in pairs]
    mean, error, count = summarise(gaps)
    return cell(gaps) + ("*" if count > 1 and abs(mean) > 2 * error else "")


def find_recipe(row: Row) -> tuple[Any, ...]:
    """What a network of its own depends on, beside its task and its size."""
    return tuple(row["config"][key] for key in RECIPE)


def name_task(row: Row) -> tuple[int, tuple[int, ...]]:
    """The task that was learnt last: its split, and its classes."""
    return row["seed"], tuple(sorted(row["classes"][-1]))


def find_learnt(row: Row) -> float:
    """What the task that was learnt last reaches then, in per cent."""
    return 100 * float(row["accuracies"][f"task {row['step'] + 1}"])


def find_alone(rows: list[Row]) -> dict[Any, float]:
    """What a network of its own reaches on every task, with every recipe."""
    own = (row for row in map(complete, rows) if row["method"] == "individual")
    return {(find_recipe(row), name_task(row)): find_learnt(row) for row in own}


def list_transfers(steps: dict[int, list[Row]], alone: dict[Any, float]) -> list[float]:
    """Per split, by how much its tasks are above networks of their own as soon as they are learnt."""
    gaps: dict[int, list[float]] = {}
    for row in (row for found in steps.values() for row in found):
        task = find_recipe(row), name_task(row)
        if task in alone and row["method"] not in ("individual", "joint"):
            gaps.setdefault(row["seed"], []).append(find_learnt(row) - alone[task])
    return [summarise(one)[0] for one in gaps.values()]


def compare_orders(rows: list[Row], wide: int) -> list[str]:
    """The same tasks in the first quarter and in the second half of the order, paired by task."""
    ways = max(row["ways"] for row in rows)
    still = [one | {"config": {**one["config"], "rotate": 0}} for one in map(complete, rows)]
    found: dict[str, dict[Any, tuple[list[float], list[float]]]] = {}
    for name, row in zip(name_lines(still), still):
        place = row["step"] + 1
        early, late = found.setdefault(name, {}).setdefault(name_task(row), ([], []))
        if row["ways"] == ways and (place <= ways // 4 or place > ways / 2):
            (early if place <= ways // 4 else late).append(find_learnt(row))
    lines = []
    for name, tasks in found.items():
        both = [(summarise(early)[0], summarise(late)[0]) for early, late in tasks.values() if early and late]
        if both:
            gains = cell([late - early for early, late in both])
            means = (summarise(values)[0] for values in zip(*both))
            lines.append(f"{name:{wide}}{len(both):>15}" + "".join(f"{mean:15.2f}" for mean in means) + f"{gains:>15}")
    places = (
        f"the same tasks at places 1 to {ways // 4} and {ways // 2 + 1} to {ways}, as soon as they are learnt, per cent"
    )
    heads = "".join(f"{head:>15}" for head in ("tasks", "early", "late", "late - early"))
    return ["", places, " " * wide + heads, *lines] if lines else []
