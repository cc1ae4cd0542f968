"""Attributes of the user's own modules that spell out a size (`self.n_head`), found by trying.

A forward that says `view(b, t, self.n_head, -1)` breaks when heads are added, unless `n_head` follows. Which attribute
it was is not in the graph, but its value is: those of equal value are tried, the fewest first, and what worked for one
module is tried first for every module of the same class. Some attributes are not needed by the forward of the example,
but perhaps by another one, and follow too if they can be nothing else (`find_companions`).
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from torch import Tensor, nn

from firefly.anatomy import axes
from firefly.anatomy.axes import Space
from firefly.anatomy.graph import Flow
from firefly.anatomy.widths import Anatomy, Runs
from firefly.surgery.swap import list_sizes
from firefly.tensors import Run

Mirrors = tuple[tuple[str, str, Runs], ...]  # module, attribute, the axis whose length it equals
SIZES = re.compile(  # hidden_size, n_inner, d
    r"(?i)dim|size|width|hidden|channel|feature|unit|head|model|embed|inner|latent|planes|neuron"
    r"|(^|_)(n|in|out|d|h|c)(_|$)"
)
HEADS = re.compile(r"(?!.*(dim|per_|size|d_head))\w*heads?")  # num_heads, n_head; not head_dim, d_head
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

    def sift(self, options: Mirrors, works: Callable[[Mirrors], bool]) -> Mirrors:
        """All of them if they work together, otherwise those of each class and name that do."""
        if not options or works(options):
            return options
        kept: Mirrors = ()
        for kind in dict.fromkeys(map(self._kind, options)):
            some = kept + tuple(option for option in options if self._kind(option) == kind)
            kept = some if works(some) else kept
        return kept

    def _kind(self, option: tuple[str, str, Runs]) -> tuple[type[nn.Module], str]:
        return type(self.model.get_submodule(option[0])), option[1]


def make_search(flow: Flow, anatomy: Anatomy) -> Search:
    """Everything that may have to be tried."""
    space = _names(flow, anatomy)
    options: dict[str, dict[tuple[str, str], Runs]] = {}
    for path, axis, item in flow.shaped:
        runs = tuple(
            Run(space[t.space], t.space.size, t.block) if t.space in space else Run(None, t.length)
            for t in axes.resolve(axis)
        )
        equal = (name for name, size in list_sizes(flow.model.get_submodule(path)) if size == axes.length(axis))
        found = [name for name in equal if item is None or "[" not in name or name.endswith(f"[{item}]")]
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


def find_companions(search: Search, anatomy: Anatomy, known: Mirrors) -> Mirrors:
    """Attributes that equal a size which grows and can hardly be anything else.

    A number of heads, by its name, in a module that cuts something into so many; and in a user's own layer a number
    that equals the same dimension of its tensors in every layer of that class, if it has several values or is called as
    sizes are.
    """
    taken = {(path, attribute) for path, attribute, _ in known}
    heads = [one for options in search.options.values() for one in options if HEADS.fullmatch(one[1])]
    found = {one[:2]: one for one in (*heads, *_list_own(search.model, anatomy)) if one[:2] not in taken}
    return tuple(found.values())


def _list_own(model: nn.Module, anatomy: Anatomy) -> Iterator[tuple[str, str, Runs]]:
    names = {id(tensor): name for name, tensor in model.named_parameters()}
    classes: dict[type[nn.Module], list[tuple[str, nn.Module]]] = {}
    for path, module in model.named_modules():
        if not type(module).__module__.startswith("torch.nn"):  # those are known to the rules
            classes.setdefault(type(module), []).append((path, module))

    def runs_of(tensor: Tensor, dim: int) -> Runs:
        layout = anatomy.layouts.get(names[id(tensor)])
        return layout.dims[dim] if layout else (Run(None, tensor.shape[dim]),)

    for modules in classes.values():
        own = [list(module.named_parameters(recurse=False)) for _, module in modules]
        places = {(leaf, dim) for leaf, tensor in own[0] for dim in range(tensor.ndim)}
        sizes = [{(leaf, d): n for leaf, t in tensors for d, n in enumerate(t.shape)} for tensors in own]
        for attribute, _ in list_sizes(modules[0][1]):
            values = [dict(list_sizes(module)).get(attribute) for _, module in modules]
            if len(set(values)) == 1 and not SIZES.search(attribute):
                continue  # nothing but one number says so: perhaps it logs every 16 steps
            fitting = [place for place in places if all(s.get(place) == v for s, v in zip(sizes, values))]
            for (path, _), tensors in zip(modules, own):
                runs = {runs_of(dict(tensors)[leaf], dim) for leaf, dim in fitting}
                if len(runs) == 1 and any(run.width for run in next(iter(runs))):
                    yield path, attribute, runs.pop()
