"""From grown widths to cells (App. B.3): the operation that grew most wins its edge, and a node keeps two inputs.

Where no operation grew by 20 % the edge is the identity. The paper does not say which edges stay; as in DARTS, they are
the two strongest inputs of every node, by the width of the winner.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from firefly.nas.genotype import Cell, Genotype
from firefly.nas.operations import IDENTITY
from firefly.nas.plan import Plan
from firefly.nas.template import Place

Edge = tuple[int, int, int]  # cell, node, source


@dataclass(frozen=True)
class Rival:
    """An operation of an edge after a search."""

    name: str
    start: int
    width: int
    gain: float  # of its candidates, over all growths

    @property
    def growth(self) -> float:
        """The share by which it grew; one that woke up counts as grown."""
        return self.width / self.start - 1 if self.start else float(self.width > 0)


@dataclass(frozen=True)
class Winner:
    """Who won an edge, and how strong the edge is."""

    operation: str
    strength: tuple[float, float]


def read_path(path: str) -> Place:
    """Where the operation with this path in the template stands."""
    _, cell, _, node, source, _, name = path.split(".")
    return Place(int(cell), int(node) + 2, int(source), name)


def list_rivals(history: Sequence[Mapping[str, Any]], plan: Plan) -> dict[Edge, list[Rival]]:
    """The operations of every edge, from the log of a search."""
    gains: dict[str, float] = {}
    for growth in history:
        for path, gain in growth["gains"].items():
            gains[path] = gains.get(path, 0.0) + gain
    rivals: dict[Edge, list[Rival]] = {}
    for path, width in history[-1]["widths"].items():
        place = read_path(path)
        one = Rival(place.operation, plan.begin[place.cell], width, gains.get(path, 0.0))
        rivals.setdefault((place.cell, place.node, place.source), []).append(one)
    return rivals


def merge(searches: Sequence[Mapping[Edge, Sequence[Rival]]]) -> dict[Edge, list[Rival]]:
    """Several searches as one: widths and gains added up, so that what is noise in each weighs less."""
    first = searches[0]
    return {
        edge: [
            Rival(one.name, *map(sum, zip(*((s[edge][k].start, s[edge][k].width, s[edge][k].gain) for s in searches))))
            for k, one in enumerate(mine)
        ]
        for edge, mine in first.items()
    }


def find_winners(rivals: Mapping[Edge, Sequence[Rival]], plan: Plan) -> dict[Edge, Winner]:
    """The winning operation of every edge, kept or not; between equal widths the gain decides."""

    def rank(one: Rival) -> tuple[float, float]:
        return (one.gain, one.width) if plan.decide == "gain" else (one.width, one.gain)

    found = {}
    for edge, mine in rivals.items():
        best = max(mine, key=rank)
        grew = best.growth >= plan.least
        found[edge] = Winner(best.name if grew else IDENTITY, rank(best) if grew else (-1.0, best.gain))
    return found


def make_genotype(winners: Mapping[Edge, Winner], plan: Plan, name: str = "") -> Genotype:
    """The cells: of every node its strongest inputs, each with the operation that won there."""
    cells = []
    for cell in range(len(plan.channels)):
        nodes = []
        for node in range(2, 2 + plan.nodes):
            edges = {source: winners[cell, node, source] for source in range(node)}
            kept = sorted(sorted(edges, key=lambda source: edges[source].strength)[-plan.inputs :])
            nodes.append(tuple((edges[source].operation, source) for source in kept))
        cells.append(Cell(tuple(nodes), tuple(range(2, 2 + plan.nodes))))
    return Genotype(tuple(cells), name)
