"""Some operators can be read in several ways: which factor of a reshaped width holds the neurons, whether a grouped
convolution grows by groups or inside them. Every way is right; the one that leaves the most widths free is taken.
"""

from __future__ import annotations

from collections.abc import Callable

from firefly.anatomy import axes
from firefly.anatomy.graph import Choice, Flow
from firefly.anatomy.widths import Anatomy

Reading = tuple[Flow, Anatomy]


def read_best(read: Callable[[dict[Choice, int]], Reading]) -> Reading:
    """Walk the graph with the first way everywhere, then change one choice after another where that frees more."""
    choices: dict[Choice, int] = {}
    best = read(choices)
    tried: set[Choice] = set()
    while ahead := [place for place in best[0].asked if place not in tried]:
        place = ahead[0]
        tried.add(place)
        ways, concerned = best[0].asked[place]
        if all(term.space.pinned is None and term.space.size > 1 for a in concerned for term in axes.resolve(a)):
            continue  # free, and in more than one neuron
        for way in range(1, ways):
            other = read({**choices, place: way})
            if freedom(other[1]) > freedom(best[1]):
                best, choices, tried = other, {**choices, place: way}, {place}
    return best


def freedom(anatomy: Anatomy) -> tuple[int, int, int]:
    """How many widths can grow, how many rows of their makers are in them, and how many neurons those are."""
    growable = anatomy.growable()
    sizes = [width.size for width in growable]
    return len(growable), sum(width.size * width.block for width in growable), sum(sizes)
