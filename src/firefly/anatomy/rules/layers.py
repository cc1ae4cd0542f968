"""Rules of layers with weights: linear maps, convolutions, products, embeddings, and normalisation."""

from __future__ import annotations

from collections.abc import Sequence
from string import ascii_letters
from typing import Any

from firefly.anatomy import axes
from firefly.anatomy.axes import Axis
from firefly.anatomy.graph import NOWHERE, Flow, Value, activation
from firefly.anatomy.reasons import SINGULAR
from firefly.anatomy.rules.table import broadcast, channel_of, fixed, rule, unknown, values_in


@rule("linear")
def linear(flow: Flow, x: Value, weight: Value, bias: Value | None = None) -> Value:
    flow.reads(x.dims[-1], weight, 1)
    flow.makes(weight, 0)
    _bias(flow, bias, weight.dims[0])
    flow.mirror("in_features", x.dims[-1])
    flow.mirror("out_features", weight.dims[0])
    flow.cost(*x.dims[:-1], *weight.dims)
    return activation((*x.dims[:-1], weight.dims[0]))


def _bias(flow: Flow, bias: Value | None, axis: Axis) -> None:
    if bias is not None:
        flow.follows(bias, axis, "zero", dim=len(bias.dims) - 1)
        flow.makes(bias, len(bias.dims) - 1)


@rule("conv1d", "conv2d", "conv3d")
def conv(flow: Flow, x: Value, weight: Value, bias: Value | None = None, *rest: Any, **_: Any) -> Value:
    groups = rest[3] if len(rest) > 3 else 1
    channel = channel_of(x, len(weight.dims) - 2)
    given = x.dims[channel]
    if groups == 1:
        flow.reads(given, weight, 1)
    elif 1 < groups < min(x.shape[channel], weight.shape[0]) and flow.choose(2, given):
        _grow_inside(flow, given, weight, groups)
    else:
        neurons = axes.in_blocks(given, groups, flow.reason("needs whole groups"))
        flow.same(weight.dims[0], axes.times(neurons, 1, weight.shape[0] // groups))
        flow.pin(weight.dims[1:2], "reads the channels of its own group only")
        flow.mirror("groups", neurons)
    return _conv_output(flow, x, weight, bias, given, weight.dims[0], channel, makes=0)


def _grow_inside(flow: Flow, given: Axis, weight: Value, groups: int) -> None:
    """So many groups for ever: a neuron is one channel of every group."""
    for axis, neurons in ((given, weight.dims[1]), (weight.dims[0], axes.free(weight.shape[0] // groups))):
        flow.same(axis, axes.times(neurons, groups, 1))
    flow.reads(weight.dims[1], weight, 1)


@rule("conv_transpose1d", "conv_transpose2d", "conv_transpose3d")
def conv_transpose(flow: Flow, x: Value, weight: Value, bias: Value | None = None, *rest: Any, **_: Any) -> Value:
    groups = rest[3] if len(rest) > 3 else 1
    channel = channel_of(x, len(weight.dims) - 2)
    given = x.dims[channel]
    if groups == 1:
        flow.reads(given, weight, 0)
        return _conv_output(flow, x, weight, bias, given, weight.dims[1], channel, makes=1)
    neurons = axes.in_blocks(given, groups, flow.reason("needs whole groups"))
    flow.same(weight.dims[0], given)
    flow.pin(weight.dims[1:2], "makes the channels of its own group only")
    flow.mirror("groups", neurons)
    made = axes.times(neurons, 1, weight.shape[1])
    return _conv_output(flow, x, weight, bias, given, made, channel, makes=0)


def _conv_output(
    flow: Flow, x: Value, weight: Value, bias: Value | None, given: Axis, made: Axis, channel: int, makes: int
) -> Value:
    flow.makes(weight, makes)
    _bias(flow, bias, made)
    flow.pin(weight.dims[2:], "slides it over space")
    flow.mirror("in_channels", given)
    flow.mirror("out_channels", made)
    shape = flow.outputs()
    dims = [*x.dims[:channel], made, *fixed(flow, shape[channel + 1 :])]
    # a forward convolution pays for every output place, a transposed one for every input place
    places = dims[channel + 1 :] if makes == 0 and weight.dims[0] == made else x.dims[channel + 1 :]
    flow.cost(*x.dims[:channel], *places, *weight.dims)
    return activation(dims)


@rule("matmul", "mm", "bmm")
def matmul(flow: Flow, a: Value, b: Value) -> Value:
    inner = -2 if len(b.dims) > 1 else -1
    if b.direct and any(b.sources) and not (a.direct and any(a.sources)):
        flow.reads(a.dims[-1], b, inner)
        if len(b.dims) > 1:
            flow.makes(b, len(b.dims) - 1)
    elif a.direct and any(a.sources):
        flow.reads(b.dims[inner], a, len(a.dims) - 1)
        if len(a.dims) > 1:
            flow.makes(a, len(a.dims) - 2)
    else:
        flow.same(a.dims[-1], b.dims[inner])
        flow.pin((a.dims[-1],), "sums over it with no weight of its own")
    batch = broadcast(flow, [a.dims[:-2], b.dims[:-2]])
    dims = [*batch, *a.dims[-2:-1], *(b.dims[-1:] if len(b.dims) > 1 else ())]
    flow.cost(*dims, a.dims[-1])
    return activation(dims)


@rule("mv")
def mv(flow: Flow, matrix: Value, vector: Value) -> Value:
    if type(flow.model.get_submodule(flow.path())).__name__ != "_SpectralNorm":
        return matmul(flow, matrix, vector)
    flow.pin((*matrix.dims, *vector.dims), SINGULAR)
    flow.makes(matrix if matrix.direct else None, 0)
    return activation(matrix.dims[:1])


@rule("addmm")
def addmm(flow: Flow, bias: Value, x: Value, weight: Value, **_: Any) -> Value:
    out = matmul(flow, x, weight)
    _bias(flow, bias, out.dims[-1])
    flow.mirror("nx", x.dims[-1])
    flow.mirror("nf", out.dims[-1])
    return out


@rule("baddbmm", "addbmm")
def baddbmm(flow: Flow, bias: Value, a: Value, b: Value, **_: Any) -> Value:
    out = matmul(flow, a, b)
    return activation(broadcast(flow, [bias.dims, out.dims]))


@rule("_grouped_mm", "transformers::grouped_mm_fallback")
def grouped_mm(flow: Flow, x: Value, weight: Value, *_: Any, **__: Any) -> Value:
    """Rows of x go through the matrix of their expert: (S, in), (experts, in, out) -> (S, out)."""
    if len(x.dims) != 2 or len(weight.dims) != 3:
        return unknown(flow, x, weight)
    flow.pin(weight.dims[:1], "picks one of it for every row")
    flow.reads(x.dims[1], weight, 1)
    flow.makes(weight, 2)
    flow.cost(x.dims[0], *weight.dims[1:])
    return activation((x.dims[0], weight.dims[2]))


@rule("einsum")
def einsum(flow: Flow, equation: str, operands: Sequence[Value], **_: Any) -> Any:
    terms, right = _spell_out(equation, operands)
    found: dict[str, Axis] = {}
    for term, value in zip(terms, operands):
        for letter, axis in zip(term, value.dims, strict=True):
            if axes.length(found.setdefault(letter, axis)) != axes.length(axis):
                raise ValueError(f"{letter} is stretched")
    for term, value in zip(terms, operands):
        for letter, axis in zip(term, value.dims):
            flow.same(found[letter], axis)
    for letter, axis in found.items():
        users = [(t.index(letter), v) for t, v in zip(terms, operands) if letter in t]
        weights = [(d, v) for d, v in users if v.direct and v.sources[d]]
        if letter not in right:
            if len(weights) == 1 and len(users) > 1:
                flow.reads(axis, weights[0][1], weights[0][0])
            else:
                flow.pin((axis,), "sums over it with no weight of its own")
        elif len(weights) == len(users):
            for d, v in weights:
                flow.makes(v, d)
    flow.cost(*found.values())
    return activation(found[letter] for letter in right)


def _spell_out(equation: str, operands: Sequence[Value]) -> tuple[list[str], str]:
    """The letters of every operand and of the result, with some for the dimensions that dots stand for."""
    left, arrow, right = equation.replace(" ", "").partition("->")
    terms = left.split(",")
    hidden = [len(value.dims) - len(term.replace("...", "")) for term, value in zip(terms, operands)]
    spare = "".join(sorted(set(ascii_letters) - set(equation)))[: max(hidden)]
    terms = [term.replace("...", spare[len(spare) - count :]) for term, count in zip(terms, hidden)]
    if not arrow or any(len(set(term)) < len(term) for term in terms):
        raise ValueError(f"{equation} has no result, or takes a diagonal")
    return terms, right.replace("...", spare)


@rule("_weight_norm")
def weight_norm(flow: Flow, v: Value, g: Value, dim: int = 0) -> Value:
    flow.same(v.dims[dim], g.dims[dim])
    flow.pin((axis for d, axis in enumerate(v.dims) if d != dim), "normalises over it")
    sources = tuple(v.sources[d] | g.sources[d] if d == dim else NOWHERE for d in range(len(v.dims)))
    return Value(v.dims, sources)


@rule("batch_norm", "instance_norm")
def batch_norm(
    flow: Flow, x: Value, weight: Value | None, bias: Value | None, mean: Value | None, var: Value | None, *rest: Any
) -> Value:
    for value, start in ((weight, "one"), (bias, "zero"), (mean, "mean of data"), (var, "variance of data")):
        flow.follows(value, x.dims[1], start)
    flow.pin((x.dims[0], *x.dims[2:]), "normalises over it")
    flow.mirror("num_features", x.dims[1])
    return Value(x.dims, x.sources)  # of a standardised weight, still the rows of a parameter


@rule("group_norm")
def group_norm(
    flow: Flow, x: Value, groups: int, weight: Value | None = None, bias: Value | None = None, *_: Any
) -> Value:
    if groups == 1:
        flow.pin((x.dims[1],), "normalises over it")
    neurons = axes.in_blocks(x.dims[1], groups, flow.reason("needs whole groups"))
    flow.follows(weight, x.dims[1], "one")
    flow.follows(bias, x.dims[1], "zero")
    flow.mirror("num_groups", neurons)
    flow.mirror("num_channels", x.dims[1])
    return activation(x.dims)


@rule("layer_norm", "rms_norm")
def layer_norm(flow: Flow, x: Value, shape: Sequence[int], *params: Any) -> Value:
    last = x.dims[len(x.dims) - len(shape) :]
    flow.pin(last, "normalises over it")
    for value in values_in(params):
        for mine, theirs in zip(value.dims, last):
            flow.same(mine, theirs)
    return activation(x.dims)
