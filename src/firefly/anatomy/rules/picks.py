"""Rules of operators that go by numbers: embeddings, picking entries, and adding to entries that numbers name."""

from __future__ import annotations

from typing import Any

from firefly.anatomy.graph import NOWHERE, Flow, Value, activation
from firefly.anatomy.rules.table import fixed, rule, unknown


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


@rule("index", "index_select")
def index(flow: Flow, x: Value, *args: Any) -> Any:
    """Whole slices by number; what is left of a parameter is still its own entries (the weights of an expert)."""
    if isinstance(args[0], int):
        where, numbers = args[0] % len(x.dims), args[1]
    else:
        given = [d for d, i in enumerate(args[0]) if i is not None]
        if len(given) > 1:
            return unknown(flow, x, *args)
        where, numbers = given[0], args[0][given[0]]
    flow.pin((x.dims[where],), "picks some of it")
    dims = (*x.dims[:where], *numbers.dims, *x.dims[where + 1 :])
    sources = (*x.sources[:where], *[NOWHERE] * len(numbers.dims), *x.sources[where + 1 :])
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
