"""Attributes of the user's own modules that spell out a size (`self.n_head`), found by trying.

A forward that says `view(b, t, self.n_head, -1)` breaks when heads are added, unless `n_head` follows. Which attribute
it was is not in the graph, but its value is: those of equal value are tried, the fewest first, and what worked for one
module is tried first for every module of the same class.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass, field

from torch import nn

from firefly.anatomy import axes
from firefly.anatomy.axes import Space
from firefly.anatomy.graph import Flow
from firefly.anatomy.widths import Anatomy, Runs
from firefly.surgery.swap import list_sizes
from firefly.tensors import Run

Mirrors = tuple[tuple[str, str, Runs], ...]  # module, attribute, the axis whose length it equals
MOST = 6  # attributes of one width, by class, that are tried in every combination


@dataclass
class Search:
    """For each width the attributes that may spell out its size, and what has been learnt of their classes."""

    model: nn.Module
    options: dict[str, Mirrors]
    known: set[tuple[type[nn.Module], str]] = field(default_factory=set)
    hopeless: set[frozenset[tuple[type[nn.Module], str]]] = field(default_factory=set)

    def guess(self, name: str) -> Mirrors:
        """The attributes that worked for other modules of the same class."""
        return tuple(option for option in self.options.get(name, ()) if self._kind(option) in self.known)

    def find(self, name: str, works: Callable[[Mirrors], bool]) -> Mirrors | None:
        """The fewest attributes with which the width can grow, or None."""
        options = self.options.get(name, ())
        kinds = list(dict.fromkeys(map(self._kind, options)))[:MOST]
        if frozenset(kinds) in self.hopeless:
            return None
        for count in range(len(kinds) + 1):
            for few in itertools.combinations(kinds, count):
                some = tuple(option for option in options if self._kind(option) in few)
                if some != self.guess(name) and works(some):
                    self.known |= set(few)
                    return some
        self.hopeless.add(frozenset(kinds))
        return None

    def _kind(self, option: tuple[str, str, Runs]) -> tuple[type[nn.Module], str]:
        return type(self.model.get_submodule(option[0])), option[1]


def search(flow: Flow, anatomy: Anatomy) -> Search:
    """Everything that may have to be tried."""
    space = _names(flow, anatomy)
    options: dict[str, dict[tuple[str, str], Runs]] = {}
    for path, axis in flow.shaped:
        runs = tuple(
            Run(space[t.space], t.space.size, t.block) if t.space in space else Run(None, t.length)
            for t in axes.resolve(axis)
        )
        found = [name for name, size in list_sizes(flow.model.get_submodule(path)) if size == axes.length(axis)]
        for width in {run.width for run in runs if run.width}:
            options.setdefault(width, {}).update({(path, attribute): runs for attribute in found})
    return Search(flow.model, {name: tuple((p, a, runs) for (p, a), runs in o.items()) for name, o in options.items()})


def _names(flow: Flow, anatomy: Anatomy) -> dict[Space, str]:
    names: dict[Space, str] = {}
    for layout in anatomy.layouts.values():
        for axis, runs in zip(flow.tensors[layout.name].dims, layout.dims):
            for term, run in zip(axes.resolve(axis), runs):
                if run.width:
                    names[term.space] = run.width
    return names
