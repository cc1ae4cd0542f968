"""Rows of `results/` in columns, for `tables.py`: means, differences paired by seed, and what may be claimed."""

import json
import math
import statistics
from collections.abc import Callable, Iterable, Sequence
from functools import cache
from pathlib import Path
from typing import Any

Row = dict[str, Any]
BySeed = dict[int, Row]
RESULTS = Path(__file__).parents[1] / "results"
EMPTY = "Not measured yet."


@cache
def read(name: str) -> tuple[Row, ...]:
    """The rows of a file in `results/`; none if it is not there yet."""
    path = RESULTS / f"{name}.jsonl"
    lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
    return tuple(json.loads(line) for line in lines if line.strip())


def by_seed(rows: Iterable[Row]) -> BySeed:
    """One row a seed, the last of several."""
    return {row["seed"]: row for row in rows}


def percent(row: Row) -> float:
    """Accuracy on the test images, or on those that were set apart."""
    return 100 * float(row["test_accuracy"] if "test_accuracy" in row else row["held_accuracy"])


def describe(values: Sequence[float], digits: int = 1) -> str:
    """Mean ± standard error; of one value no error is known."""
    if not values:
        return ""
    error = f" ± {find_error(values):.{digits}f}" if len(values) > 1 else ""
    return f"{statistics.fmean(values):.{digits}f}{error}"


def find_error(values: Sequence[float]) -> float:
    """The standard error of the mean."""
    return statistics.stdev(values) / math.sqrt(len(values)) if len(values) > 1 else math.inf


def list_gaps(one: BySeed, other: BySeed, value: Callable[[Row], float] = percent) -> list[float]:
    """The differences of two methods, seed by seed."""
    return [value(one[seed]) - value(other[seed]) for seed in sorted(one.keys() & other.keys())]


def is_clear(gaps: Sequence[float]) -> bool:
    """Whether a difference may be claimed: over three seeds or more it exceeds two of its standard errors."""
    return len(gaps) > 2 and abs(statistics.fmean(gaps)) > 2 * find_error(gaps)


def describe_gap(gaps: Sequence[float], digits: int = 1) -> str:
    """A difference with its sign, in bold where it may be claimed."""
    if not gaps:
        return ""
    error = f" ± {find_error(gaps):.{digits}f}" if len(gaps) > 1 else ""
    text = f"{statistics.fmean(gaps):+.{digits}f}{error}".replace("-", "−")
    return f"**{text}**" if is_clear(gaps) else text


def lay_out(head: Sequence[str], lines: Iterable[Sequence[str]]) -> str:
    """A table of Markdown."""
    rows = [head, ["---"] * len(head), *lines]
    return "\n".join("| " + " | ".join(cells) + " |" for cells in rows).replace("|  |", "| |").replace("|  |", "| |")


def mean(rows: Iterable[Row], key: str) -> float:
    return statistics.fmean(row[key] for row in rows)


def join(words: Sequence[str]) -> str:
    """a, b and c."""
    return " and ".join([", ".join(words[:-1])] * (len(words) > 1) + list(words[-1:]))
