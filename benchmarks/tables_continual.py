"""The tables of learning task after task, for `tables.py`."""

import statistics
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import asdict, replace
from typing import Any

from tables_text import EMPTY, BySeed, Row, by_seed, describe, describe_gap, lay_out, list_gaps, mean, percent, read

from firefly.experiments.continual import SETTINGS
from firefly.experiments.continual.course import RIVALS, Course
from firefly.experiments.continual.methods import SIZED
from firefly.experiments.options import change

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

# what all methods share
TRAINING = ("epochs", "batch", "lr", "weight_decay", "cutout", "mixup", "label_smoothing", "aside")


def pick(name: str, method: str, tasks: int | None = None) -> BySeed:
    """The row of each split after so many tasks, or after all, in the order in which they were dealt."""
    rows = [row for row in read(name) if row["method"] == method and not row["config"].get("rotate")]
    return by_seed(row for row in rows if (row["final"] if tasks is None else row["step"] == tasks - 1))


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


def tell_gap(name: str, method: str, other: str, count: str | None = None) -> str:
    """One difference, paired by split: `tasks-gap continual firefly equal`; with `14` after so many tasks."""
    tasks = None if count is None else int(count)
    return describe_gap(list_gaps(pick(name, method, tasks), pick(name, other, tasks)), 2)


def list_trials(name: str, words: Iterable[str]) -> list[tuple[Row, Row]]:
    """The rows whose settings are as the words say, with their settings."""
    course, keys = asdict(change(Course(), list(words))), [word.split("=")[0] for word in words]
    pairs = [(row, read_setting(row)) for row in read(name)]
    return [(row, one) for row, one in pairs if all(one[key] == course[key] for key in keys)]


def tabulate_trials(name: str, count: str, *words: str) -> str:
    """The settings that were tried on held-out images, by their mean over the first tasks."""
    tasks, last = int(count), dict[tuple[str, str], Row]()
    pairs = list_trials(name, words)
    settings = [one for _, one in pairs]
    usual = {key: most_common(one[key] for one in settings) for key in settings[0]}
    for row, setting in pairs:
        told = ", ".join(f"`{k}={v}`" for k, v in setting.items() if v != usual[k] and is_felt(k, row["method"]))
        if row["step"] == tasks - 1:
            last[METHODS[row["method"]], told] = row
    lines = sorted(last.items(), key=lambda pair: -percent(pair[1]))
    cells = [[*label, f"{percent(row):.1f}", f"{row['parameters'] / 1e6:.1f} M"] for label, row in lines]
    return lay_out(["method", "setting", f"mean of the first {tasks} tasks, %", "parameters then"], cells)


def read_setting(row: Row) -> Row:
    """The setting of a row; older rows lack what there was no choice of then."""
    whole: Row = asdict(Course()) | row["config"]
    return {key: value for key, value in whole.items() if key not in ("tasks", "rotate", "fisher")}


def is_felt(key: str, method: str) -> bool:
    """Whether a method depends on a setting."""
    if key in RIVALS:
        return (key, method) in (("strength", "ewc"), ("own", "individual"))
    return method not in ("individual", *SIZED) or key in TRAINING


def tell_trial_gap(name: str, count: str, method: str, other: str, *words: str) -> str:
    """Two methods in one setting, paired by task: `trials-gap continual-20-held-out 10 firefly uniform`.

    Never bold: of one split nothing may be claimed.
    """
    course = change(replace(SETTINGS["quick"][20], held_out=True), list(words))
    found = dict[str, list[float]]()
    for row in read(name):
        mine = all(v == getattr(course, k) for k, v in read_setting(row).items() if is_felt(k, row["method"]))
        if mine and row["step"] == int(count) - 1:
            found[row["method"]] = [100 * accuracy for accuracy in row["accuracies"].values()]
    return describe_gap([a - b for a, b in zip(found[method], found[other], strict=True)]).strip("*")


def tell_effect(name: str, count: str, change_of: str, *words: str) -> str:
    """What a setting is worth: `trials-effect continual-20-held-out 9 cutout=12 aside=false`, paired by task.

    Firefly's lines with it less those without, all as the words say; never bold, as above.
    """
    key, value = change_of.split("=")[0], asdict(change(Course(), [change_of]))[change_of.split("=")[0]]
    lines: dict[bool, list[list[float]]] = {True: [], False: []}
    for row, setting in list_trials(name, words):
        if (row["method"], row["step"]) == ("firefly", int(count) - 1):
            lines[setting[key] == value].append([100 * one for one in row["accuracies"].values()])
    with_it, without = ([statistics.fmean(one) for one in zip(*lines[on])] for on in (True, False))
    return describe_gap([a - b for a, b in zip(with_it, without, strict=True)], 2).strip("*")


def most_common(values: Iterable[Any]) -> Any:
    return Counter(values).most_common(1)[0][0]


PIECES: dict[str, Callable[..., str]] = {
    "tasks": tabulate_tasks,
    "tasks-gap": tell_gap,
    "tasks-trials": tabulate_trials,
    "trials-gap": tell_trial_gap,
    "trials-effect": tell_effect,
}
