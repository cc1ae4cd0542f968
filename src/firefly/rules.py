"""One small rule per operator: how the axes of its inputs relate to those of its outputs.

A rule gets the `Flow` and the operator's arguments, with tensors as `Value`s. It says which axes are the same, which
dimension of a weight *makes* the neurons, which one *reads* them, what *follows* them, and returns the output. An
operator without a rule pins everything it touches, so that nothing is ever grown on a guess.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from firefly import axes
from firefly.axes import Axis, Term
from firefly.flow import NOWHERE, Flow, Value, activation

RULES: dict[str, Callable[..., Any]] = {}


def rule(*names: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    def add(function: Callable[..., Any]) -> Callable[..., Any]:
        RULES.update((f"aten::{name}", function) for name in names)
        return function

    return add


def find(name: str) -> Callable[..., Any]:
    """The rule of an operator; in-place operators share that of the plain one."""
    return RULES.get(name) or RULES.get(name.rstrip("_")) or unknown


def unknown(flow: Flow, *args: Any, **kwargs: Any) -> Any:
    values = _values(args, kwargs)
    flow.pin((axis for value in values for axis in value.dims), "is not known to Firefly")
    flow.makes(next((v for v in values if v.direct and v.dims), None), 0)  # so that the width is listed, as pinned
    return _fixed_outputs(flow)


def _values(*args: Any) -> list[Value]:
    found: list[Value] = []
    for arg in args:
        if isinstance(arg, Value):
            found.append(arg)
        elif isinstance(arg, (tuple, list)):
            found += _values(*arg)
        elif isinstance(arg, dict):
            found += _values(*arg.values())
    return found


def _fixed(flow: Flow, shape: Sequence[int]) -> list[Axis]:
    return [axes.fixed(n, f"it is a fixed dimension{flow.where()}") for n in shape]


def _fixed_outputs(flow: Flow) -> Any:
    shapes = flow.outputs()
    if isinstance(shapes, list):
        return [None if shape is None else activation(_fixed(flow, shape)) for shape in shapes]
    return None if shapes is None else activation(_fixed(flow, shapes))


def _channel(x: Value, spatial: int) -> int:
    """The channel dimension of a (N, C, *spatial) or (C, *spatial) tensor."""
    return len(x.dims) - spatial - 1


# ---- layers with weights ---------------------------------------------------------------------------------------------


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
    channel = _channel(x, len(weight.dims) - 2)
    given = x.dims[channel]
    if groups == 1:
        flow.reads(given, weight, 1)
    else:
        neurons = axes.in_blocks(given, groups, flow.reason("needs whole groups"))
        flow.same(weight.dims[0], axes.times(neurons, 1, weight.shape[0] // groups))
        flow.pin(weight.dims[1:2], "reads the channels of its own group only")
        flow.mirror("groups", neurons)
    return _conv_output(flow, x, weight, bias, given, weight.dims[0], channel, makes=0)


@rule("conv_transpose1d", "conv_transpose2d", "conv_transpose3d")
def conv_transpose(flow: Flow, x: Value, weight: Value, bias: Value | None = None, *rest: Any, **_: Any) -> Value:
    groups = rest[3] if len(rest) > 3 else 1
    channel = _channel(x, len(weight.dims) - 2)
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
    dims = [*x.dims[:channel], made, *_fixed(flow, shape[channel + 1 :])]
    # a forward convolution pays for every output place, a transposed one for every input place
    places = dims[channel + 1 :] if makes == 0 and weight.dims[0] == made else x.dims[channel + 1 :]
    flow.cost(*x.dims[:channel], *places, *weight.dims)
    return activation(dims)


@rule("embedding")
def embedding(flow: Flow, weight: Value, index: Value, *rest: Any) -> Value:
    flow.pin(weight.dims[:1], "looks rows up in it")
    flow.makes(weight, 1)
    flow.mirror("embedding_dim", weight.dims[1])
    return activation((*index.dims, weight.dims[1]))


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
    batch = _broadcast(flow, [a.dims[:-2], b.dims[:-2]])
    dims = [*batch, *a.dims[-2:-1], *(b.dims[-1:] if len(b.dims) > 1 else ())]
    flow.cost(*dims, a.dims[-1])
    return activation(dims)


@rule("addmm")
def addmm(flow: Flow, bias: Value, x: Value, weight: Value, **_: Any) -> Value:
    out = matmul(flow, x, weight)
    _bias(flow, bias, out.dims[-1])
    flow.mirror("nx", x.dims[-1])
    flow.mirror("nf", out.dims[-1])
    return out


@rule("einsum")
def einsum(flow: Flow, equation: str, operands: Sequence[Value], **_: Any) -> Any:
    left, arrow, right = equation.replace(" ", "").partition("->")
    terms = left.split(",")
    if not arrow or "." in equation or any(len(set(t)) < len(t) for t in terms):
        return unknown(flow, *operands)
    found: dict[str, Axis] = {}
    for term, value in zip(terms, operands):
        for letter, axis in zip(term, value.dims):
            flow.same(found.setdefault(letter, axis), axis)
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


@rule("_weight_norm")
def weight_norm(flow: Flow, v: Value, g: Value, dim: int = 0) -> Value:
    flow.same(v.dims[dim], g.dims[dim])
    flow.pin((axis for d, axis in enumerate(v.dims) if d != dim), "normalises over it")
    sources = tuple(v.sources[d] | g.sources[d] if d == dim else NOWHERE for d in range(len(v.dims)))
    return Value(v.dims, sources)


# ---- normalisation ---------------------------------------------------------------------------------------------------


@rule("batch_norm", "instance_norm")
def batch_norm(
    flow: Flow, x: Value, weight: Value | None, bias: Value | None, mean: Value | None, var: Value | None, *rest: Any
) -> Value:
    for value, start in ((weight, "one"), (bias, "zero"), (mean, "mean of data"), (var, "variance of data")):
        flow.follows(value, x.dims[1], start)
    flow.mirror("num_features", x.dims[1])
    return activation(x.dims)


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
    for value in _values(params):
        for mine, theirs in zip(value.dims, last):
            flow.same(mine, theirs)
    return activation(x.dims)


# ---- one entry at a time ---------------------------------------------------------------------------------------------

_COPIES = "to contiguous clone detach alias lift_fresh_copy _to_copy type_as float half bfloat16 double"
_UNARY = """relu relu6 elu celu selu gelu silu mish sigmoid tanh leaky_relu rrelu hardtanh hardswish hardsigmoid
    hardshrink softshrink threshold softplus softsign log_sigmoid logsigmoid exp expm1 log log1p log2 log10 sqrt rsqrt
    square neg abs sign sin cos tan asin acos atan sinh cosh erf erfc reciprocal floor ceil round trunc frac positive
    clamp clamp_min clamp_max clip nan_to_num logical_not bitwise_not isnan isinf isfinite dropout feature_dropout
    alpha_dropout feature_alpha_dropout zeros_like ones_like rand_like randn_like full_like empty_like bernoulli
    zero fill pow_scalar digamma lgamma sinc logit exp2 tanhshrink"""
_NARY = """sub rsub mul div pow maximum minimum fmod remainder where masked_fill lerp addcmul addcdiv eq ne lt le gt ge
    logical_and logical_or logical_xor bitwise_and bitwise_or atan2 copy heaviside xlogy floor_divide true_divide
    subtract multiply divide floor_divide hypot"""


@rule(*_COPIES.split())
def copy(flow: Flow, x: Value, *_: Any, **__: Any) -> Value:
    return x


@rule(*_UNARY.split())
def unary(flow: Flow, x: Value, *_: Any, **__: Any) -> Value:
    return Value(x.dims, x.sources)


@rule("add", "cat_add")
def add(flow: Flow, *args: Any, **kwargs: Any) -> Value:
    return _elementwise(flow, _values(args, kwargs), "zero")


@rule(*_NARY.split())
def nary(flow: Flow, *args: Any, **kwargs: Any) -> Value:
    return _elementwise(flow, _values(args, kwargs), "mean")


def _elementwise(flow: Flow, values: list[Value], start: str) -> Value:
    dims = _broadcast(flow, [value.dims for value in values])
    if all(any(value.sources) for value in values):  # made of parameters alone
        return Value(dims, tuple(_join_sources(values, len(dims) - d) for d in range(len(dims))))
    for value in values:
        for source in value.sources:
            for name, _ in source:
                flow.starts.setdefault(name, start)
    return activation(dims)


def _join_sources(values: list[Value], from_end: int) -> Any:
    found = [v.sources[-from_end] for v in values if from_end <= len(v.dims) and v.shape[-from_end] > 1]
    return NOWHERE.union(*found)


def _broadcast(flow: Flow, shapes: Sequence[Sequence[Axis]]) -> tuple[Axis, ...]:
    """Align the axes from the right; equal sizes are the same axis, a size of one that is stretched stays one."""
    out: list[Axis] = []
    for from_end in range(max(map(len, shapes), default=0), 0, -1):
        here = [dims[-from_end] for dims in shapes if from_end <= len(dims)]
        size = max(axes.length(axis) for axis in here)
        full = [axis for axis in here if axes.length(axis) == size]
        flow.pin((axis for axis in here if axes.length(axis) != size), "stretches it")
        for axis in full[1:]:
            flow.same(full[0], axis)
        out.append(full[0])
    return tuple(out)


@rule("prelu")
def prelu(flow: Flow, x: Value, weight: Value) -> Value:
    if weight.shape[0] > 1:
        flow.follows(weight, x.dims[1], "mean")
        flow.mirror("num_parameters", x.dims[1])
    else:
        flow.pin(weight.dims, "shares it among all neurons")
    return activation(x.dims)


@rule("glu")
def glu(flow: Flow, x: Value, dim: int = -1) -> Value:
    half = x.shape[dim] // 2
    first, second = axes.split(x.dims[dim], (half, half), flow.reason("halves it"))
    flow.same(first, second)
    dims = list(x.dims)
    dims[dim] = first
    return activation(dims)


# ---- over whole dimensions -------------------------------------------------------------------------------------------


@rule("softmax", "log_softmax", "_softmax", "_log_softmax", "cumsum", "cumprod", "logcumsumexp", "flip", "roll", "sort")
def along(flow: Flow, x: Value, *args: Any, **kwargs: Any) -> Value:
    given = [a for a in (*args, *kwargs.values()) if isinstance(a, (int, list)) and not isinstance(a, bool)]
    where = given[-1 if flow.operator() == "aten.roll" else 0] if given else range(len(x.dims))
    for dim in [where] if isinstance(where, int) else where:
        flow.pin((x.dims[dim],), "mixes its entries")
    return activation(x.dims)


@rule("mean", "sum", "amax", "amin", "var", "std", "prod", "logsumexp", "norm", "linalg_vector_norm", "any", "all",
      "max", "min", "argmax", "argmin", "var_mean", "median", "count_nonzero")  # fmt: skip
def reduce(flow: Flow, x: Value, *args: Any, **kwargs: Any) -> Any:
    if args and isinstance(args[0], Value):  # max(a, b)
        return nary(flow, x, *args)
    shapes = flow.outputs()
    shape = shapes[0] if isinstance(shapes, list) else shapes
    positions = args[1:] if "norm" in flow.operator() else args
    given = next((a for a in positions if isinstance(a, (int, list)) and not isinstance(a, bool)), kwargs.get("dim"))
    where = range(len(x.dims)) if given is None else [given] if isinstance(given, int) else given
    dropped = {d % len(x.dims) for d in where} if x.dims else set()
    flow.pin((x.dims[d] for d in dropped), "reduces over it")
    if len(shape) == len(x.dims):
        dims = [_fixed(flow, (1,))[0] if d in dropped else axis for d, axis in enumerate(x.dims)]
    else:
        dims = [axis for d, axis in enumerate(x.dims) if d not in dropped]
    out = activation(dims)
    return [out] * len(shapes) if isinstance(shapes, list) else out


@rule("scaled_dot_product_attention")
def attention(flow: Flow, q: Value, k: Value, v: Value, mask: Value | None = None, *rest: Any, **options: Any) -> Value:
    flow.same(q.dims[-1], k.dims[-1])
    flow.pin((q.dims[-1], q.dims[-2], k.dims[-2], v.dims[-2]), "sums over it with no weight of its own")
    heads = k.dims[:-2]
    if options.get("enable_gqa"):
        heads = (*heads[:-1], axes.times(heads[-1], 1, q.shape[-3] // k.shape[-3]))
    _broadcast(flow, [k.dims[:-2], v.dims[:-2]])
    batch = _broadcast(flow, [q.dims[:-2], heads, *([mask.dims[:-2]] if mask is not None else [])])
    flow.cost(*batch, q.dims[-2], k.dims[-2], q.dims[-1])
    flow.cost(*batch, q.dims[-2], k.dims[-2], v.dims[-1])
    return activation((*batch, q.dims[-2], v.dims[-1]))


@rule(*[f"{kind}_pool{d}d" for kind in ("max", "avg", "adaptive_avg", "adaptive_max", "lp") for d in (1, 2, 3)],
      *[f"max_pool{d}d_with_indices" for d in (1, 2, 3)],
      *[f"upsample_{kind}{d}" for kind in ("nearest", "_nearest_exact") for d in ("1d", "2d", "3d")],
      "upsample_linear1d", "upsample_bilinear2d", "upsample_bicubic2d", "upsample_trilinear3d",
      "_upsample_nearest_exact1d", "_upsample_nearest_exact2d", "_upsample_nearest_exact3d", "grid_sampler")  # fmt: skip
def resample(flow: Flow, x: Value, *_: Any, **__: Any) -> Any:
    spatial = next((d for d in (1, 2, 3) if f"{d}d" in flow.operator()), 2)
    shapes = flow.outputs()
    shape = shapes[0] if isinstance(shapes, list) else shapes
    flow.pin(x.dims[len(x.dims) - spatial :], "moves along it")
    out = activation((*x.dims[: len(x.dims) - spatial], *_fixed(flow, shape[len(shape) - spatial :])))
    return [out] * len(shapes) if isinstance(shapes, list) else out


@rule("pad", "constant_pad_nd", *[f"{k}_pad{d}d" for k in ("reflection", "replication") for d in (1, 2, 3)])
def pad(flow: Flow, x: Value, *_: Any, **__: Any) -> Value:
    shape = flow.outputs()
    changed = [d for d, n in enumerate(shape) if n != x.shape[d]]
    flow.pin((x.dims[d] for d in changed), "pads it")
    return activation(_fixed(flow, (n,))[0] if d in changed else x.dims[d] for d, n in enumerate(shape))


@rule("pixel_shuffle")
def pixel_shuffle(flow: Flow, x: Value, factor: int) -> Value:
    channel = len(x.dims) - 3
    neurons = axes.in_blocks(x.dims[channel], x.shape[channel] // factor**2, flow.reason("needs whole pixels"))
    return activation((*x.dims[:channel], neurons, *_fixed(flow, flow.outputs()[channel + 1 :])))


# ---- moving dimensions about -----------------------------------------------------------------------------------------


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
    one = _fixed(flow, (1,))[0]
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
    dims = _fixed(flow, shape[:ahead])
    for have, want in zip(x.dims, shape[ahead:]):
        size = axes.length(have)
        if want == size:
            dims.append(have)
        elif size == 1:
            flow.pin((have,), "stretches it")
            dims += _fixed(flow, (want,))
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
    values = [v for v in values if len(v.dims) > 1 or len(values[0].dims) == 1]
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
    return activation((*x.dims[:dim], _fixed(flow, (size,))[0], *x.dims[dim:]))


@rule("split", "split_with_sizes", "chunk", "tensor_split", "unsafe_split", "unsafe_chunk")
def split(flow: Flow, x: Value, sizes: Any, dim: int = 0, **_: Any) -> list[Value]:
    lengths = [shape[dim] for shape in flow.outputs()]
    pieces = axes.split(x.dims[dim], lengths, flow.reason("cuts through a neuron"))
    flow.spells(pieces)
    if isinstance(sizes, int) and len(set(lengths)) == 1:  # equal parts stay equal
        for piece in pieces[1:]:
            flow.same(pieces[0], piece)
    return [activation(_replace(x.dims, dim, piece)) for piece in pieces]


def _replace(dims: tuple[Axis, ...], dim: int, axis: Axis) -> tuple[Axis, ...]:
    dim %= len(dims)
    return (*dims[:dim], axis, *dims[dim + 1 :])


@rule("slice", "narrow")
def slice_(flow: Flow, x: Value, dim: int = 0, start: Any = 0, end: Any = None, step: int = 1) -> Value:
    size, out = x.shape[dim], flow.outputs()[dim]
    if out == size:
        return x
    if step != 1:
        flow.pin((x.dims[dim],), "picks some of it")
        return activation(_replace(x.dims, dim, _fixed(flow, (out,))[0]))
    first = min(max(start or 0, 0) if (start or 0) >= 0 else size + start, size)
    pieces = axes.split(x.dims[dim], (first, out, size - first - out), flow.reason("cuts through a neuron"))
    flow.spells(pieces[:2])
    return activation(_replace(x.dims, dim, pieces[1]))


@rule("select", "unbind")
def select(flow: Flow, x: Value, dim: int = 0, *_: Any) -> Any:
    flow.pin((x.dims[dim],), "picks one of it")
    rest = activation(axis for d, axis in enumerate(x.dims) if d != dim % len(x.dims))
    return [rest] * x.shape[dim] if flow.operator() == "aten.unbind" else rest


@rule("index", "index_select")
def index(flow: Flow, x: Value, *args: Any) -> Any:
    if isinstance(args[0], int):
        flow.pin((x.dims[args[0]],), "picks some of it")
        return activation(_replace(x.dims, args[0], args[1].dims[0]))
    where = [d for d, i in enumerate(args[0]) if i is not None]
    if len(where) > 1:
        return unknown(flow, x, *args)
    flow.pin((x.dims[where[0]],), "picks some of it")
    return activation((*x.dims[: where[0]], *args[0][where[0]].dims, *x.dims[where[0] + 1 :]))


@rule("view", "reshape", "_unsafe_view", "flatten", "unflatten", "view_as", "reshape_as")
def view(flow: Flow, x: Value, *_: Any) -> Value:
    shape = flow.outputs()
    dims: list[Axis] = []
    sources: list[Any] = []
    for given, wanted in _regroup(x.shape, shape):
        sizes = [shape[d] for d in wanted]
        dims += _reshape(flow, [x.dims[d] for d in given], sizes)
        kept = len(given) == len(wanted) == 1
        sources += [x.sources[given[0]]] if kept else [NOWHERE] * len(wanted)
    flow.spells(dims)
    return Value(tuple(dims), tuple(sources), x.direct and any(sources))


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
    if len(given) == len(sizes) == 1:
        return given
    grow = [k for k, axis in enumerate(given) if axes.growable(axis)]
    if not grow:
        return _fixed(flow, sizes)
    if len(grow) > 1 or (len(given) > 1 and len(sizes) > 1) or not sizes:
        flow.pin(given, "mixes its dimensions")
        return _fixed(flow, sizes)
    if len(sizes) == 1:
        before = math.prod(axes.length(axis) for axis in given[: grow[0]])
        after = math.prod(axes.length(axis) for axis in given[grow[0] + 1 :])
        return [axes.times(given[grow[0]], before, after)]
    return _unflatten(flow, given[0], sizes)


def _unflatten(flow: Flow, axis: Axis, sizes: list[int]) -> list[Axis]:
    """One axis becomes several dimensions; one of them, at `k`, takes the neurons."""
    k = _neurons_at(axis, sizes, flow.prefer_inner)
    before = math.prod(sizes[:k])
    reason = flow.reason("cuts through a neuron")
    pieces = axes.split(axis, [axes.length(axis) // before] * before, reason)
    neurons = [axes.in_blocks(piece, sizes[k], reason) for piece in pieces]
    for other in neurons[1:]:
        flow.same(neurons[0], other)
    dims = _fixed(flow, sizes)
    dims[k] = axes.resolve(neurons[0])
    return dims


def _neurons_at(axis: Axis, sizes: list[int], prefer_inner: bool) -> int:
    terms = axes.resolve(axis)
    for k, size in enumerate(sizes):  # where the neurons are already known, keep them whole
        if terms == (Term(terms[0].space, math.prod(sizes[k + 1 :])),) * math.prod(sizes[:k]):
            if terms[0].space.size == size and terms[0].block > 1:
                return k
    candidates = [k for k, size in enumerate(sizes) if size > 1] or [0]
    inner = prefer_inner and len(candidates) > 2 and sizes[candidates[0]] <= 4
    return candidates[1] if inner else candidates[0]
