"""Rules of operators that go by numbers: embeddings, picking entries, and adding to entries that numbers name."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from firefly.anatomy.axes import Axis
from firefly.anatomy.graph import NOWHERE, Flow, Value, activation
from firefly.anatomy.rules.table import broadcast, fixed, rule, unknown


@rule("embedding")
def embedding(flow: Flow, weight: Value, index: Value, *rest: Any) -> Value:
    flow.pin(weight.dims[:1], "looks rows up in it")
    flow.makes(weight, 1)
    flow.mirror("embedding_dim", weight.dims[1])
    return activation((*index.dims, weight.dims[1]))


@rule("embedding_bag", "_embedding_bag")
def embedding_bag(flow: Flow, weight: Value, *_: Any, **__: Any) -> list[Any]:
    flow.pin(weight.dims[:1], "looks rows up in it")
    flow.makes(weight, 1)
    flow.mirror("embedding_dim", weight.dims[1])
    shapes = flow.outputs()
    bags = activation((fixed(flow, shapes[0][:1])[0], weight.dims[1]))
    return [bags, *(activation(fixed(flow, shape)) for shape in shapes[1:])]


@rule("index_select")
def index_select(flow: Flow, x: Value, dim: int, numbers: Value) -> Value:
    return _pick(flow, x, dim % len(x.dims), numbers.dims)


@rule("index")
def index(flow: Flow, x: Value, indices: list[Value | None]) -> Any:
    """Whole slices, by their numbers or where a mask says so."""
    given = [d for d, i in enumerate(indices) if i is not None]
    if len(given) > 1:
        return unknown(flow, x, indices)
    numbers = indices[given[0]]
    if not _is_mask(flow, given[0]):
        return _pick(flow, x, given[0], numbers.dims)  # type: ignore[union-attr]
    return _pick(flow, x, given[0], fixed(flow, (flow.rows,)), len(numbers.dims))  # type: ignore[union-attr]


@rule("index_put")
def index_put(flow: Flow, x: Value, indices: list[Value | None], other: Value, *_: Any, **__: Any) -> Value:
    """Other values at the places that `index` picks."""
    picked = index(flow, x, indices)
    if not isinstance(picked, Value) or sum(i is not None for i in indices) > 1:
        return unknown(flow, x, other)
    broadcast(flow, [picked.dims, other.dims])
    return activation(x.dims)


def _is_mask(flow: Flow, place: int) -> bool:
    given: Any = flow.node.args[1] if flow.node is not None else ()
    return bool(given[place].meta["val"].dtype == torch.bool)


def _pick(flow: Flow, x: Value, where: int, picked: Sequence[Axis], count: int = 1) -> Value:
    """Other axes instead of so many. What is left of a parameter is still its own entries: the weights of an expert."""
    flow.pin(x.dims[where : where + count], "picks some of it")
    dims = (*x.dims[:where], *picked, *x.dims[where + count :])
    sources = (*x.sources[:where], *[NOWHERE] * len(picked), *x.sources[where + count :])
    return Value(dims, sources, x.direct)


@rule("gather", "take_along_dim")
def gather(flow: Flow, x: Value, dim: int, numbers: Value, **_: Any) -> Value:
    flow.pin((x.dims[dim],), "picks some of it")
    return activation(_by_number(flow, numbers, x, dim))


@rule("index_add")
def index_add(flow: Flow, x: Value, dim: int, numbers: Value, other: Value, **_: Any) -> Value:
    flow.pin((x.dims[dim], other.dims[dim]), "adds to some of it")
    for d, (mine, theirs) in enumerate(zip(x.dims, other.dims)):
        if d != dim % len(x.dims):
            flow.same(mine, theirs)
    return activation(x.dims)


@rule("scatter", "scatter_add", "scatter_reduce")
def scatter(flow: Flow, x: Value, dim: int, numbers: Value, other: Any, *_: Any, **__: Any) -> Value:
    """Every entry of `other` goes along `dim` to the place that `numbers` names; messages of a graph."""
    if not isinstance(other, Value):
        return unknown(flow, x, numbers)
    flow.pin((x.dims[dim], other.dims[dim]), "adds to some of it")
    for d, axis in enumerate(_by_number(flow, numbers, other, dim)):
        if d != dim % len(x.dims):
            flow.same(x.dims[d], axis)
    return activation(x.dims)


def _by_number(flow: Flow, numbers: Value, x: Value, dim: int) -> list[Any]:
    """The axes of what is picked: a dimension in which numbers stand for every entry of x is that of x."""
    pairs = list(zip(numbers.shape, x.shape))
    whole = [d != dim % len(pairs) and a == b for d, (a, b) in enumerate(pairs)]
    flow.pin((x.dims[d] for d, same in enumerate(whole) if not same), "picks some of it")
    return [x.dims[d] if same else numbers.dims[d] for d, same in enumerate(whole)]
