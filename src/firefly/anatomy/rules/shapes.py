"""Rules of operators that move dimensions about: permute, view, cat, split, slice."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

from torch import nn

from firefly.anatomy import axes
from firefly.anatomy.axes import Axis, Term
from firefly.anatomy.graph import NOWHERE, Flow, Value, activation
from firefly.anatomy.rules.table import fixed, rule, unknown
from firefly.surgery.multihead import list_openable


def _reorder(x: Value, order: Sequence[int]) -> Value:
    return Value(tuple(x.dims[d] for d in order), tuple(x.sources[d] for d in order), x.direct)


@rule("permute")
def permute(flow: Flow, x: Value, order: Sequence[int]) -> Value:
    return _reorder(x, order)


@rule("transpose", "swapaxes", "swapdims")
def transpose(flow: Flow, x: Value, a: int, b: int) -> Value:
    order = list(range(len(x.dims)))
    order[a], order[b] = order[b], order[a]
    return _reorder(x, order)


@rule("t", "numpy_T", "mT", "adjoint")
def t(flow: Flow, x: Value) -> Value:
    return transpose(flow, x, -2, -1) if len(x.dims) > 1 else x


@rule("movedim")
def movedim(flow: Flow, x: Value, a: Any, b: Any) -> Value:
    n = len(x.dims)
    sources = [d % n for d in (a if isinstance(a, (list, tuple)) else [a])]
    targets = [d % n for d in (b if isinstance(b, (list, tuple)) else [b])]
    rest = iter(d for d in range(n) if d not in sources)
    moved = dict(zip(targets, sources))
    return _reorder(x, [moved[d] if d in moved else next(rest) for d in range(n)])


@rule("unsqueeze")
def unsqueeze(flow: Flow, x: Value, dim: int) -> Value:
    dim %= len(x.dims) + 1
    one = fixed(flow, (1,))[0]
    return Value((*x.dims[:dim], one, *x.dims[dim:]), (*x.sources[:dim], NOWHERE, *x.sources[dim:]), x.direct)


@rule("squeeze")
def squeeze(flow: Flow, x: Value, dim: Any = None) -> Value:
    n = len(x.dims)
    given = range(n) if dim is None else [dim] if isinstance(dim, int) else dim
    gone = [d % n for d in given if x.shape[d] == 1]
    flow.pin((x.dims[d] for d in gone), "drops it")
    return _reorder(x, [d for d in range(n) if d not in gone])


@rule("expand", "expand_as", "repeat", "tile")
def expand(flow: Flow, x: Value, *_: Any, **__: Any) -> Value:
    shape = flow.outputs()
    ahead = len(shape) - len(x.dims)
    dims = fixed(flow, shape[:ahead])
    for have, want in zip(x.dims, shape[ahead:]):
        size = axes.length(have)
        if want == size:
            dims.append(have)
        elif size == 1:
            flow.pin((have,), "stretches it")
            dims += fixed(flow, (want,))
        else:
            dims.append(axes.times(have, want // size, 1))
    flow.spells(dims)
    same = [n == m for n, m in zip(x.shape, shape[ahead:])]
    sources = [s if keep else NOWHERE for s, keep in zip(x.sources, same)]
    return Value(tuple(dims), (*[NOWHERE] * ahead, *sources))


@rule("repeat_interleave")
def repeat_interleave(flow: Flow, x: Value, repeats: Any, dim: int | None = None, **_: Any) -> Any:
    if not isinstance(repeats, int) or dim is None:
        return unknown(flow, x, repeats)
    dims = list(x.dims)
    dims[dim] = axes.times(dims[dim], 1, repeats)
    return activation(dims)


@rule("cat", "concat", "concatenate")
def cat(flow: Flow, values: Sequence[Value], dim: int = 0) -> Value:
    values = [v for v in values if len(v.dims) == max(len(one.dims) for one in values)]  # torch skips an empty vector
    dim %= len(values[0].dims)
    dims = list(values[0].dims)
    for value in values[1:]:
        for d, axis in enumerate(value.dims):
            if d != dim:
                flow.same(dims[d], axis)
    for value in values:  # a bare parameter among them (a class token) adds nothing to a new neuron
        for name, _ in NOWHERE.union(*value.sources):
            flow.starts.setdefault(name, "zero")
    dims[dim] = tuple(term for value in values for term in value.dims[dim])
    return activation(dims)


@rule("stack")
def stack(flow: Flow, values: Sequence[Value], dim: int = 0) -> Value:
    first = values[0]
    for value in values[1:]:
        for a, b in zip(first.dims, value.dims):
            flow.same(a, b)
    return unsqueezed(flow, first, dim, len(values))


def unsqueezed(flow: Flow, x: Value, dim: int, size: int) -> Value:
    dim %= len(x.dims) + 1
    return activation((*x.dims[:dim], fixed(flow, (size,))[0], *x.dims[dim:]))


@rule("split", "split_with_sizes", "chunk", "tensor_split", "unsafe_split", "unsafe_chunk")
def split(flow: Flow, x: Value, sizes: Any, dim: int = 0, **_: Any) -> list[Value]:
    lengths = [shape[dim] for shape in flow.outputs()]
    pieces = axes.split(x.dims[dim], lengths, flow.reason("cuts through a neuron"))
    flow.spells([x.dims[dim]])
    flow.spells(pieces, listed=True)
    if isinstance(sizes, int) and len(set(lengths)) == 1:  # equal parts stay equal
        for piece in pieces[1:]:
            flow.same(pieces[0], piece)
    return [Value(replaced(x.dims, dim, piece), x.sources, x.direct) for piece in pieces]


def replaced(dims: tuple[Axis, ...], dim: int, axis: Axis) -> tuple[Axis, ...]:
    dim %= len(dims)
    return (*dims[:dim], axis, *dims[dim + 1 :])


@rule("slice", "narrow")
def slice_(flow: Flow, x: Value, dim: int = 0, start: Any = 0, end: Any = None, step: int = 1) -> Value:
    size, out = x.shape[dim], flow.outputs()[dim]
    if out == size:
        flow.spells([x.dims[dim]])  # x[:, : self.channels] may name all of them
        return x
    if step != 1:
        flow.pin((x.dims[dim],), "picks some of it")
        return activation(replaced(x.dims, dim, fixed(flow, (out,))[0]))
    first = min(max(start or 0, 0) if (start or 0) >= 0 else size + start, size)
    pieces = axes.split(x.dims[dim], (first, out, size - first - out), flow.reason("cuts through a neuron"))
    flow.spells([x.dims[dim], *pieces[:2]])
    return Value(replaced(x.dims, dim, pieces[1]), x.sources, x.direct)


@rule("select", "unbind")
def select(flow: Flow, x: Value, dim: int = 0, *_: Any) -> Any:
    flow.pin((x.dims[dim],), "picks one of it")
    rest = _reorder(x, [d for d in range(len(x.dims)) if d != dim % len(x.dims)])
    return [rest] * x.shape[dim] if flow.operator() == "aten.unbind" else rest


@rule("view", "reshape", "_unsafe_view", "flatten", "unflatten", "view_as", "reshape_as")
def view(flow: Flow, x: Value, *_: Any) -> Value:
    shape = flow.outputs()
    dims: list[Axis] = []
    sources: list[Any] = []
    for given, wanted in _regroup(x.shape, shape):
        sizes = [shape[d] for d in wanted]
        long = [d for d in given if x.shape[d] > 1]  # dimensions of size one come and go
        kept = len(long) == sum(size > 1 for size in sizes) == 1
        if kept and any(x.sources):
            dims += [x.dims[long[0]] if size > 1 else fixed(flow, (1,))[0] for size in sizes]
        else:
            dims += _reshape(flow, [x.dims[d] for d in given], sizes)
        sources += [x.sources[long[0]] if kept and size > 1 else NOWHERE for size in sizes]
    flow.spells(dims)
    _mirror_heads(flow, [axis for axis in dims if axes.growable(axis)])
    return Value(tuple(dims), tuple(sources), x.direct and any(sources))


def _mirror_heads(flow: Flow, dims: list[Axis]) -> None:
    module = flow.model.get_submodule(flow.path())
    if type(module) is nn.MultiheadAttention and module not in list_openable(flow.model):
        flow.pin(dims, "may get nested tensors from nn.TransformerEncoder: enable_nested_tensor=False frees the heads")
    elif isinstance(module, nn.MultiheadAttention):
        for axis in dims:
            flow.mirror("num_heads", axis)


def _regroup(have: Sequence[int], want: Sequence[int]) -> list[tuple[list[int], list[int]]]:
    """Pair the dimensions of two shapes in the smallest groups with equal products."""
    groups: list[tuple[list[int], list[int]]] = []
    i = j = 0
    while i < len(have) and j < len(want):
        left, right = [i], [j]
        i, j = i + 1, j + 1
        while (a := math.prod(have[d] for d in left)) != (b := math.prod(want[d] for d in right)):
            if a < b:
                left.append(i)
                i += 1
            else:
                right.append(j)
                j += 1
        groups.append((left, right))
    if i < len(have) or j < len(want):  # ones are left over
        groups.append((list(range(i, len(have))), list(range(j, len(want)))))
    return groups


def _reshape(flow: Flow, given: list[Axis], sizes: list[int]) -> list[Axis]:
    """The same entries in dimensions of other sizes: cut every dimension into common factors, then join those."""
    if len(given) == len(sizes) == 1:
        return given
    if not any(axes.growable(axis) for axis in given):
        reasons = [why for axis in given if (why := axes.why(axis)) and not axes.is_vague(why)]
        return [axes.fixed(n, reasons[0]) for n in sizes] if reasons else fixed(flow, sizes)
    if len(sizes) == 1:
        return [_flatten(flow, given)]
    if len(given) == 1:
        return _unflatten(flow, given[0], sizes)
    factors = _common_factors([axes.length(axis) for axis in given], sizes)
    if factors is None or any(axes.growable(axis) and axes.length(axis) == 1 for axis in given):
        flow.pin(given, "mixes its dimensions")
        return fixed(flow, sizes)
    pieces = [part for axis, group in zip(given, factors[0]) for part in _unflatten(flow, axis, group)]
    return [_flatten(flow, [pieces.pop(0) for _ in group]) for group in factors[1]]


def _common_factors(have: Sequence[int], want: Sequence[int]) -> tuple[list[list[int]], list[list[int]]] | None:
    """Both shapes with every dimension as a list of factors, in the same order; None if there are none."""
    marks = sorted({math.prod(shape[d:]) for shape in (have, want) for d in range(len(shape) + 1)}, reverse=True)
    if any(a % b for a, b in pairwise(marks)):
        return None

    def factors(shape: Sequence[int], d: int) -> list[int]:
        top, bottom = math.prod(shape[d:]), math.prod(shape[d + 1 :])
        return [a // b for a, b in pairwise(marks) if a <= top and b >= bottom]

    return [factors(have, d) for d in range(len(have))], [factors(want, d) for d in range(len(want))]


def _flatten(flow: Flow, given: list[Axis]) -> Axis:
    """Several dimensions become one; one of them may hold neurons."""
    grow = [k for k, axis in enumerate(given) if axes.growable(axis)]
    if not grow:
        return fixed(flow, [math.prod(map(axes.length, given))])[0]
    k = grow[flow.choose(len(grow), given[grow[0]])] if len(grow) > 1 else grow[0]
    flow.pin((given[other] for other in grow if other != k), "mixes it with what may grow")
    before, after = math.prod(map(axes.length, given[:k])), math.prod(map(axes.length, given[k + 1 :]))
    return axes.times(given[k], before, after)


def _unflatten(flow: Flow, axis: Axis, sizes: list[int]) -> list[Axis]:
    """One axis becomes several dimensions; one of them, at `k`, takes the neurons."""
    if len(sizes) == 1:
        return [axis]
    if not sizes or not axes.growable(axis):
        return fixed(flow, sizes)
    k = _neurons_at(flow, axis, sizes)
    before = math.prod(sizes[:k])
    reason = flow.reason("cuts through a neuron")
    pieces = axes.split(axis, [axes.length(axis) // before] * before, reason)
    neurons = [axes.in_blocks(piece, sizes[k], reason) for piece in pieces]
    for other in neurons[1:]:
        flow.same(neurons[0], other)
    dims = fixed(flow, sizes)
    dims[k] = axes.resolve(neurons[0])
    return dims


def _neurons_at(flow: Flow, axis: Axis, sizes: list[int]) -> int:
    terms = axes.resolve(axis)
    for k, size in enumerate(sizes):  # where the neurons are already known, keep them whole
        whole = (Term(terms[0].space, math.prod(sizes[k + 1 :])),) * math.prod(sizes[:k])
        if terms == whole and terms[0].space.size == size and (terms[0].block > 1 or len(terms) > 1):
            return k
    candidates = [k for k, size in enumerate(sizes) if size > 1] or [0]
    if len(sizes) == 2 and sizes[0] == 1:  # perhaps a single head
        candidates = [0, 1]
    elif len(terms) == sizes[0] > 1 and len({term.length for term in terms}) == 1:  # it parts what was concatenated
        candidates = [*candidates[1:], candidates[0]]
    return candidates[flow.choose(len(candidates), axis)]
