"""Who owns what (Sec. 2.4): an entry of a weight belongs to the first task whose lists hold all of its neurons.

Every width has neurons 0, 1, 2, ... in order of birth, and every task an ordered list of those it uses. The entry
(a, b) of a weight joins two neurons; a kernel is one entry as a whole, a bias has one neuron only. So a new neuron may
feed a locked one, since no older task holds both; and two old neurons that no task used together are joined by the
first that does. Before an entry has an owner it is 0. A task may also be told that locked neurons do not listen to its
brand-new ones: those entries are 0 for ever.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from firefly.anatomy.widths import length
from firefly.tensors import Layout, Roster, along, along_runs, entries

Lists = Mapping[str, Tensor]  # per width the numbers of neurons, in the order in which the task has them
Tensors = dict[str, Tensor]


@dataclass(frozen=True, eq=False)
class Task:
    """A task that was learnt: never changed again."""

    name: str
    classes: int
    lists: Lists
    owned: Tensors  # per shared tensor the entries that are its own, in a row
    private: Tensors
    told: dict[str, Any] = field(default_factory=dict)  # how it was learnt, as plain JSON

    def __repr__(self) -> str:
        neurons = sum(len(numbers) for numbers in self.lists.values())
        known = self.told.get("accuracy")
        accuracy = "" if known is None else f", {known:.2%} held out"
        return f"Task({self.name!r}: {self.classes} classes, {neurons:,} neurons{accuracy})"

    @property
    def unheard(self) -> dict[str, int]:
        """Per width, how many neurons at the end of the list older neurons do not listen to."""
        return dict(self.told.get("unheard", {}))


def count_born(numbers: Tensor) -> int:
    """How many neurons of a width there must be, as far as a list knows; a dormant layer has none."""
    return int(numbers.max()) + 1 if len(numbers) else 0


def find_places(layout: Layout, lists: Lists, born: Mapping[str, int]) -> tuple[Tensor, ...]:
    """Where the entries of a network of these lists lie in the master's tensor, shaped to index it."""
    still = torch.zeros(0)
    rosters = {name: Roster(born[name], 0, numbers, still, still) for name, numbers in lists.items()}
    found = (entries(runs, rosters, compact=False) for runs in layout.dims)
    return tuple(along(torch.as_tensor(where), dim, len(layout.dims)) for dim, where in enumerate(found))


def enlarge(tensor: Tensor, layout: Layout, before: Mapping[str, int], after: Mapping[str, int]) -> Tensor:
    """The master's tensor with room for neurons that were born since; what nobody owns is 0."""
    larger = tensor.new_zeros([length(runs, after) for runs in layout.dims])
    larger[find_places(layout, {name: torch.arange(size) for name, size in before.items()}, after)] = tensor
    return larger


def find_own(layout: Layout, lists: Lists, earlier: Iterable[Lists]) -> Tensor:
    """Which entries are a task's own, given the lists of all tasks before it: of the tensor's shape, or 1 where any."""
    shape = [
        length(runs, {n: len(numbers) for n, numbers in lists.items()}) if has_width(runs) else 1
        for runs in layout.dims
    ]
    taken = torch.zeros(shape, dtype=torch.bool)
    for other in earlier:
        known = {name: torch.isin(numbers, other[name]) for name, numbers in lists.items()}
        both = torch.ones(shape, dtype=torch.bool)
        for dim, runs in enumerate(layout.dims):
            if has_width(runs):
                both = both & along(along_runs(runs, known, True, taken), dim, len(shape))
        taken |= both
    return ~taken


def find_heard(layout: Layout, lists: Lists, born: Mapping[str, int], unheard: Mapping[str, int]) -> Tensor:
    """Which entries are heard: all but those by which a neuron born before reads one of the last in its list."""
    make, read = layout.role("makes"), layout.role("reads")
    still = torch.ones((), dtype=torch.bool)
    if make is None or read is None or not unheard:
        return still
    young = {name: numbers >= born[name] for name, numbers in lists.items()}
    heard = {name: torch.arange(len(numbers)) < len(numbers) - unheard.get(name, 0) for name, numbers in lists.items()}
    makers = along(along_runs(layout.dims[make], young, True, still), make, len(layout.dims))
    return makers | along(along_runs(layout.dims[read], heard, True, still), read, len(layout.dims))


def has_width(runs: Iterable[Any]) -> bool:
    return any(run.width is not None for run in runs)
