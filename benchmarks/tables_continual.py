"""The tables of learning task after task, for `tables.py`."""

from collections import Counter
from collections.abc import Callable, Iterable
from typing import Any

from tables_text import EMPTY, BySeed, Row, by_seed, describe, describe_gap, lay_out, list_gaps, mean, percent, read

METHODS = {
    "firefly": "Firefly, unlocking and new neurons",
    "firefly-new": "Firefly, new neurons only",
    "firefly-unlock": "Firefly, unlocking only",
    "firefly-deaf": "Firefly, new neurons that locked ones cannot hear",
    "firefly-mask": "Firefly, picked by mask",
    "firefly-all": "Firefly, all picked",
    "firefly-none": "Firefly, none picked",
    "uniform": "Firefly, the same in every layer",
    "firefly-random": "Firefly, chosen at random",
    "random": "Firefly, random candidates in random directions",
    "individual": "a network per task",
    "equal": "a network per task, all as large as Firefly's",
    "last": "each from the last, all as large as Firefly's",
    "frozen": "frozen after the first task",
    "cpg": "CPG: prune, pick, grow",
    "ewc": "EWC",
    "fine-tune": "fine-tuning",
    "joint": "all tasks at once",
}


def pick(name: str, method: str) -> BySeed:
    """The last row of each split, in the order in which the tasks were dealt."""
    rows = [row for row in read(name) if (row["method"], row["final"]) == (method, True)]
    return by_seed(row for row in rows if not row["config"].get("rotate"))


def tabulate_tasks(name: str) -> str:
    """Mean accuracy over the tasks, the difference to Firefly paired by split, what was forgotten, size and epochs."""
    ours = pick(name, "firefly")
    if not ours:
        return EMPTY
    lines = []
    for method, label in METHODS.items():
        found = pick(name, method)
        if not found:
            continue
        gap = "" if method == "firefly" else describe_gap(list_gaps(found, ours), 2)
        lost = [100 * row.get("forgotten", 0.0) for row in found.values()]
        size = f"{mean(found.values(), 'parameters'):,.0f}"
        forgotten = describe(lost, 2) if any(lost) else "0"
        accuracy = describe([percent(row) for row in found.values()], 2)
        lines.append([label, accuracy, gap, forgotten, size, count_epochs(name, method), str(len(found))])
    tasks = next(iter(ours.values()))["ways"]
    heads = ["method", f"mean of {tasks} tasks, %", "against Firefly", "forgotten", "parameters of all"]
    return lay_out([*heads, "epochs a task", "splits"], lines)


def count_epochs(name: str, method: str) -> str:
    """Of a task, the picking of neurons and step one included."""
    rows = [row for row in read(name) if row["method"] == method and not row["config"].get("rotate")]
    beside = [sum(epochs for what, epochs in row.get("spent", {}).items() if what == "step one") for row in rows]
    return f"{mean(rows, 'epochs') + sum(beside) / len(rows):.0f}"


def tell_gap(name: str, method: str, other: str) -> str:
    """One difference, paired by split: `tasks-gap continual firefly equal`."""
    return describe_gap(list_gaps(pick(name, method), pick(name, other)), 2)


def tabulate_trials(name: str, widths: str, count: str) -> str:
    """The settings that were tried on held-out images, by their mean over the first tasks."""
    tasks, groups = int(count), dict[str, list[Row]]()
    rows = [row for row in read(name) if row["config"]["widths"] == int(widths)]
    known = dict.fromkeys(key for row in rows for key in row["config"])
    changed = [key for key in known if len({str(row["config"].get(key)) for row in rows}) > 1]
    for row in rows:
        words = [f"{key}={row['config'].get(key)}" for key in changed]
        groups.setdefault(f"{row['method']} {', '.join(words)}", []).append(row)
    lines = []
    for mine in groups.values():
        last = next((row for row in reversed(mine) if row["step"] == tasks - 1), None)
        if last is not None:
            config = last["config"]
            usual = {key: most_common(row["config"].get(key) for row in rows) for key in changed}
            told = ", ".join(f"`{k}={config.get(k)}`" for k in changed if config.get(k) != usual[k])
            lines.append([METHODS.get(last["method"], last["method"]), told, percent(last), last["parameters"]])
    lines.sort(key=lambda line: -line[2])
    cells = [[method, told, f"{accuracy:.1f}", f"{size / 1e6:.1f} M"] for method, told, accuracy, size in lines]
    return lay_out(["method", "setting", f"mean of the first {tasks} tasks, %", "parameters then"], cells)


def most_common(values: Iterable[Any]) -> Any:
    return Counter(values).most_common(1)[0][0]


PIECES: dict[str, Callable[..., str]] = {
    "tasks": tabulate_tasks,
    "tasks-gap": tell_gap,
    "tasks-trials": tabulate_trials,
}
