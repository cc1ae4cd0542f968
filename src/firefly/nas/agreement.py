"""Is the winner noise? The agreement of winning operations between seeds, against what chance would give.

Chance keeps how often each operation wins in each search and shuffles where: the agreement that two searches would have
if they knew which operations are good but not where. The probability `p` is the share of shuffles that agree as well.
"""

from __future__ import annotations

import math
import random
import statistics
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations

from firefly.errors import FireflyError
from firefly.nas.plan import Plan
from firefly.nas.winners import Edge, Rival, find_winners

Winners = Mapping[Edge, str]


@dataclass(frozen=True)
class Agreement:
    """Means over all pairs of searches; `by_cell` per cell; `width`: the correlation of the grown widths.

    Searches that disagree on places may still agree on operations: then the `grown` of one is above that of others.
    """

    observed: float
    chance: float
    p: float
    edges: int
    pairs: int
    by_cell: tuple[float, ...]
    width: float
    wins: Mapping[str, float]  # the share of edges that each operation wins
    grown: Mapping[str, tuple[float, float]]  # channels that an operation got, on the mean: over searches, ± its error

    @property
    def kappa(self) -> float:
        """Cohen's: 0 is chance, 1 full agreement."""
        return (self.observed - self.chance) / max(1 - self.chance, 1e-12)

    def __str__(self) -> str:
        cells = ", ".join(f"{share:.2f}" for share in self.by_cell)
        wins = ", ".join(f"{name} {share:.0%}" for name, share in self.wins.items())
        grown = ", ".join(f"{name} +{mean:.2f} ± {error:.2f}" for name, (mean, error) in self.grown.items())
        return (
            f"the same operation wins {self.observed:.1%} of {self.edges} edges (mean of {self.pairs} pairs); "
            f"by chance {self.chance:.1%}; kappa {self.kappa:.2f}, p = {self.p:.3f}\n"
            f"by cell: {cells}; correlation of the grown widths of operations: {self.width:.2f}\n"
            f"wins: {wins}\nchannels grown, ± standard error over searches: {grown}"
        )


def measure_agreement(
    searches: Sequence[Mapping[Edge, Sequence[Rival]]], plan: Plan, shuffles: int = 2000, seed: int = 0
) -> Agreement:
    """The agreement of searches of the same plan, each given by the rivals of its edges (`list_rivals`)."""
    if len(searches) < 2 or len({frozenset(one) for one in searches}) != 1:
        raise FireflyError(f"agreement of {len(searches)} searches: give at least two, of the same number of nodes")
    winners = [{edge: won.operation for edge, won in find_winners(one, plan).items()} for one in searches]
    edges = sorted(winners[0])
    pairs = list(combinations(winners, 2))
    observed = mean([share_equal(one, other, edges) for one, other in pairs])
    chance = mean([share_expected(one, other) for one, other in pairs])
    dice = random.Random(seed)
    as_well = sum(shuffled(winners, edges, dice) >= observed - 1e-12 for _ in range(shuffles))
    cells = sorted({edge[0] for edge in edges})
    by_cell = [
        mean([share_equal(one, other, [edge for edge in edges if edge[0] == cell]) for one, other in pairs])
        for cell in cells
    ]
    counts = Counter(name for one in winners for name in one.values())
    wins = {name: count / (len(edges) * len(winners)) for name, count in counts.most_common()}
    p = (as_well + 1) / (shuffles + 1)
    width = mean([correlate(*pair) for pair in combinations([list_widths(one, edges) for one in searches], 2)])
    grown = measure_growth(searches)
    return Agreement(observed, chance, p, len(edges), len(pairs), tuple(by_cell), width, wins, grown)


def measure_growth(searches: Sequence[Mapping[Edge, Sequence[Rival]]]) -> dict[str, tuple[float, float]]:
    """By operation the channels that it got on the mean of all edges: the mean over searches, and its error."""
    means: dict[str, list[float]] = {}
    for rivals in searches:
        mine: dict[str, list[float]] = {}
        for one in (one for edge in rivals.values() for one in edge):
            mine.setdefault(one.name, []).append(one.width - one.start)
        for name, values in mine.items():
            means.setdefault(name, []).append(mean(values))
    errors = {name: statistics.stdev(values) / math.sqrt(len(values)) for name, values in means.items()}
    return {name: (mean(values), errors[name]) for name, values in means.items()}


def share_equal(one: Winners, other: Winners, edges: Sequence[Edge]) -> float:
    return mean([float(one[edge] == other[edge]) for edge in edges])


def share_expected(one: Winners, other: Winners) -> float:
    """The agreement of two searches with these winners, if places were random."""
    first, second = Counter(one.values()), Counter(other.values())
    return sum(first[name] * second[name] for name in first) / (len(one) * len(other))


def shuffled(winners: Sequence[Winners], edges: Sequence[Edge], dice: random.Random) -> float:
    """The agreement after every search's winners were put onto random edges."""
    drawn = []
    for one in winners:
        names = [one[edge] for edge in edges]
        dice.shuffle(names)
        drawn.append(dict(zip(edges, names)))
    return mean([share_equal(one, other, edges) for one, other in combinations(drawn, 2)])


def list_widths(rivals: Mapping[Edge, Sequence[Rival]], edges: Sequence[Edge]) -> list[float]:
    """The width of every operation, relative to the mean of its cell, since cells grow by different amounts."""
    cells: dict[int, list[int]] = {}
    for edge in edges:
        cells.setdefault(edge[0], []).extend(one.width for one in rivals[edge])
    means = {cell: mean(widths) for cell, widths in cells.items()}
    return [one.width - means[edge[0]] for edge in edges for one in rivals[edge]]


def correlate(one: Sequence[float], other: Sequence[float]) -> float:
    """Pearson's; 0 where one of them does not vary."""
    a, b = mean(one), mean(other)
    together = sum((x - a) * (y - b) for x, y in zip(one, other))
    size = math.sqrt(sum((x - a) ** 2 for x in one) * sum((y - b) ** 2 for y in other))
    return together / size if size else 0.0


def mean(values: Sequence[float]) -> float:
    return sum(values) / len(values) if values else 0.0
