"""`benchmarks/nas_noise.py`: growths that agree are told from those that do not."""

import random
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))

from nas_noise import compare, compare_merged, list_rivals, tabulate, tabulate_kinds

from firefly.nas.operations import SEARCHED

EDGES = [(cell, node, source) for cell in range(5) for node in range(2) for source in range(2 + node)]
PATHS = [f"cells.{c}.nodes.{n}.{s}.operations.{name}" for c, n, s in EDGES for name in SEARCHED]


def make_row(weights: int, again: int, seed: int) -> dict[str, Any]:
    """A growth in which one operation of each edge, drawn with this seed, is worth much more than the others."""
    dice = random.Random(seed)
    best = {edge: dice.choice(sorted(SEARCHED)) for edge in EDGES}
    gains = {path: [1e-3 + 1e-6 * again] * 4 for path in PATHS}
    gains |= {f"cells.{c}.nodes.{n}.{s}.operations.{best[c, n, s]}": [1.0] * 4 for c, n, s in EDGES}
    row = {"way": "w", "step_one": 1, "weights": weights, "again": again, "config": {"asleep": False}}
    return row | {"gains": gains}


def test_weights_that_decide_are_told_from_noise() -> None:
    decided = [make_row(weights, again, weights) for weights in range(3) for again in range(2)]
    noise = [make_row(weights, again, 10 + 2 * weights + again) for weights in range(3) for again in range(2)]
    for decide in ("width", "gain"):
        same, widths, other, _ = compare(decided, "neuron", decide)
        assert same == 1 and widths > 0.99 and abs(other) < 0.3
        same, _, other, _ = compare(noise, "neuron", decide)
        assert abs(same) < 0.5 and abs(other) < 0.3
    assert [len(line) for line in tabulate(decided)] == [7] * 3


def test_a_quarter_of_each_cell_is_kept() -> None:
    rivals = list_rivals(make_row(0, 0, 0), "neuron")
    grown = {
        cell: sum(one.width - 2 for edge, mine in rivals.items() for one in mine if edge[0] == cell)
        for cell in range(5)
    }
    assert grown == dict.fromkeys(range(5), 5 * 4 * 4 // 4)


def test_noise_weighs_less_where_several_weights_are_taken_together() -> None:
    dice = random.Random(0)
    rows = [make_row(weights, 0, 0) for weights in range(4)]  # the same operations are worth most in all of them
    for row in rows:
        row["gains"] = {path: [one * dice.random() ** 8 for one in gains] for path, gains in row["gains"].items()}
    alone, together = (compare_merged(rows, "neuron", count) for count in (1, 2))
    assert 0 < alone[0] < together[0] and 0 < alone[1] < together[1]


def test_channels_by_kind_are_those_of_one_growth() -> None:
    rows = [make_row(weights, again, weights) for weights in range(3) for again in range(2)]
    kinds = tabulate_kinds(rows)
    assert set(kinds) == set(SEARCHED)
    assert abs(sum(value for value, _ in kinds.values()) - 4) < 1e-9  # of four times four candidates a quarter
