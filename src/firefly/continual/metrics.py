"""What a master takes, and how well it does: sizes per task, accuracy over tasks seen, forgetting, transfer (Sec. 3).

`Scores` are the accuracies after each task, one dict a task: what every task learnt so far reaches then.
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch import nn

from firefly.continual.ownership import count_born
from firefly.continual.store import count_bytes
from firefly.errors import FireflyError
from firefly.training.score import evaluate

if TYPE_CHECKING:
    from firefly.continual.master import Master

Scores = Sequence[Mapping[str, float]]
Json = dict[str, Any]


def account(master: Master) -> list[Json]:
    """A row per task: what it owns, what is private to it, what it takes on disk, how it grew, and what that took."""
    rows, union, born = [], 0, dict.fromkeys(master.born, 0)
    for number, (name, task) in enumerate(master.tasks.items(), start=1):
        owned = sum(tensor.numel() for tensor in task.owned.values())
        union += master.count(name)
        born = {width: max(born[width], count_born(numbers)) for width, numbers in task.lists.items()}
        sizes = {"owned": owned, "private": master.count(name) - owned, "union": union, "mib": union * 4 / 2**20}
        uses = {"neurons": sum(map(len, task.lists.values())), "mask_bits": sum(born.values())}
        disk = {} if master.folder is None else {"bytes": count_bytes(master.folder, number)}
        learnt = {"grown": count_grown(task.told), "epochs": task.told["epochs"], "accuracy": task.told["accuracy"]}
        rows.append({"task": name, "classes": task.classes, **sizes, **uses, **disk, **learnt})
    return rows


def count_grown(told: Json) -> dict[str, int]:
    """Neurons by the kind of growth."""
    grown: dict[str, int] = {}
    for growth in told["growths"]:
        for kinds in growth["added"].values():
            for kind, number in kinds.items():
                grown[kind] = grown.get(kind, 0) + number
    return grown


def measure(
    master: Master, tests: Mapping[str, Any], device: Any = None, precision: str | None = None
) -> dict[str, float]:
    """The accuracy of every task learnt so far, on its test data."""
    missing = [name for name in master.tasks if name not in tests]
    if missing:
        raise FireflyError(f"there is no test data for task {missing[0]!r}: give it as tests[{missing[0]!r}]")
    return {name: measure_one(master.network(name), tests[name], device, precision) for name in master.tasks}


def measure_one(model: nn.Module, data: Any, device: Any = None, precision: str | None = None) -> float:
    return evaluate(model if device is None else model.to(device), data, precision=precision).accuracy


def mean_seen(scores: Scores) -> list[float]:
    """After each task the mean accuracy over those seen."""
    return [statistics.fmean(seen.values()) for seen in scores]


def count_forgotten(scores: Scores) -> float:
    """By how much the tasks before the last fell, in the mean, from the best they ever were."""
    last = scores[-1]
    lost = (
        [max(seen[name] for seen in scores if name in seen) - last[name] for name in scores[-2]] if scores[1:] else []
    )
    return statistics.fmean(lost) if lost else 0.0


def count_transfer(scores: Scores, alone: Mapping[str, float]) -> float:
    """By how much tasks, as soon as they are learnt, are above networks of their own, in the mean."""
    learnt = {name: value for seen in reversed(scores) for name, value in seen.items()}
    return statistics.fmean(learnt[name] - alone[name] for name in learnt if name in alone)


def write_account(master: Master, path: Path | str) -> None:
    """The rows as JSON lines."""
    Path(path).write_text("".join(json.dumps(row) + "\n" for row in account(master)), encoding="utf-8")


def tabulate(master: Master) -> str:
    """The rows for people."""
    heads = ("task", "classes", "neurons", "owned", "private", "union", "mask bits", "grown", "epochs", "accuracy")
    rows = [heads]
    for row in account(master):
        grown = ", ".join(f"{number} {kind}" for kind, number in row["grown"].items() if number)
        counts = (f"{row[key]:,}" for key in ("classes", "neurons", "owned", "private", "union", "mask_bits"))
        held_out = "" if row["accuracy"] is None else f"{row['accuracy']:.2%}"
        rows.append((row["task"], *counts, grown, f"{sum(row['epochs'].values()):.0f}", held_out))
    sizes = [max(len(row[k]) for row in rows) for k in range(len(heads))]
    left = (0, heads.index("grown"))
    lines = (
        "  ".join(c.ljust(n) if k in left else c.rjust(n) for k, (c, n) in enumerate(zip(row, sizes))) for row in rows
    )
    return "\n".join(line.rstrip() for line in lines)
