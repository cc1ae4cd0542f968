"""Rules of operators that treat every entry alike, and of those that mix a whole dimension."""

from __future__ import annotations

from typing import Any

from firefly.anatomy import axes
from firefly.anatomy.graph import NOWHERE, Flow, Value, activation
from firefly.anatomy.rules.table import broadcast, fixed, rule, values_in

_COPIES = "to contiguous clone detach lift_fresh_copy _to_copy type_as"
_UNARY = """relu relu6 elu celu selu gelu silu mish sigmoid tanh leaky_relu rrelu hardtanh hardswish hardsigmoid
    hardshrink softshrink threshold softplus log_sigmoid exp expm1 log log1p log2 log10 sqrt rsqrt
    square neg abs sign sin cos tan asin acos atan sinh cosh erf erfc reciprocal floor ceil round trunc frac positive
    clamp clamp_min clamp_max clip nan_to_num logical_not bitwise_not isnan isinf isfinite dropout feature_dropout
    alpha_dropout feature_alpha_dropout zeros_like ones_like rand_like randn_like full_like empty_like bernoulli
    zero fill digamma lgamma sinc logit exp2"""
_NARY = """sub rsub mul div pow maximum minimum fmod remainder where masked_fill lerp addcmul addcdiv eq ne lt le gt ge
    logical_and logical_or logical_xor bitwise_and bitwise_or atan2 copy heaviside xlogy true_divide
    subtract multiply divide floor_divide hypot"""


@rule(*_COPIES.split())
def copy(flow: Flow, x: Value, *_: Any, **__: Any) -> Value:
    return x


@rule("alias")
def alias(flow: Flow, x: Value) -> Value:
    flow.spells(x.dims)  # what export makes of x[:, : self.channels] when these are all of them
    return x


@rule(*_UNARY.split())
def unary(flow: Flow, x: Value, *_: Any, **__: Any) -> Value:
    return Value(x.dims, x.sources)


@rule("add")
def add(flow: Flow, *args: Any, **kwargs: Any) -> Value:
    return _elementwise(flow, values_in(args, kwargs), "zero")


@rule(*_NARY.split())
def nary(flow: Flow, *args: Any, **kwargs: Any) -> Value:
    return _elementwise(flow, values_in(args, kwargs), "mean")


def _elementwise(flow: Flow, values: list[Value], start: str) -> Value:
    dims = broadcast(flow, [value.dims for value in values])
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


@rule("_assert_tensor_metadata", "_assert_async", "_assert_scalar", "sym_constrain_range_for_size", "sym_size")
def check(flow: Flow, *_: Any, **__: Any) -> None:
    """Looks at a tensor and makes none."""


@rule("zeros", "ones", "full", "empty", "new_zeros", "new_ones", "new_full", "new_empty")
def uniform(flow: Flow, *_: Any, **__: Any) -> Value:
    """Equal entries everywhere: a size that the forward reads off a tensor or an attribute may grow."""
    dims = [axes.free(n) if n > 1 else fixed(flow, (n,))[0] for n in flow.outputs()]
    flow.spells(dims)
    return activation(dims)


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


@rule("softmax", "log_softmax", "_softmax", "_log_softmax", "cumsum", "cumprod", "logcumsumexp", "flip", "roll", "sort")
def along(flow: Flow, x: Value, *args: Any, **kwargs: Any) -> Any:
    given = [a for a in (*args, *kwargs.values()) if isinstance(a, (int, list)) and not isinstance(a, bool)]
    where = given[-1 if flow.operator() == "aten.roll" else 0] if given else range(len(x.dims))
    for dim in [where] if isinstance(where, int) else where:
        flow.pin((x.dims[dim],), "mixes its entries")
    out, shapes = activation(x.dims), flow.outputs()
    return [out] * len(shapes) if isinstance(shapes, list) else out


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
    kept = [d for d in range(len(x.dims)) if len(shape) == len(x.dims) or d not in dropped]
    dims = [fixed(flow, (1,))[0] if d in dropped else x.dims[d] for d in kept]
    out = Value(tuple(dims), tuple(NOWHERE if d in dropped else x.sources[d] for d in kept))
    return [out] * len(shapes) if isinstance(shapes, list) else out


@rule("scaled_dot_product_attention")
def attention(flow: Flow, q: Value, k: Value, v: Value, mask: Value | None = None, *rest: Any, **options: Any) -> Value:
    flow.same(q.dims[-1], k.dims[-1])
    flow.pin((q.dims[-1], q.dims[-2], k.dims[-2], v.dims[-2]), "sums over it with no weight of its own")
    heads = k.dims[:-2]
    if options.get("enable_gqa"):
        heads = (*heads[:-1], axes.times(heads[-1], 1, q.shape[-3] // k.shape[-3]))
    broadcast(flow, [k.dims[:-2], v.dims[:-2]])
    batch = broadcast(flow, [q.dims[:-2], heads, *([mask.dims[:-2]] if mask is not None else [])])
    flow.cost(*batch, q.dims[-2], k.dims[-2], q.dims[-1])
    flow.cost(*batch, q.dims[-2], k.dims[-2], v.dims[-1])
    return activation((*batch, q.dims[-2], v.dims[-1]))


@rule(*[f"{kind}_pool{d}d" for kind in ("max", "avg", "adaptive_avg", "adaptive_max") for d in (1, 2, 3)],
      *[f"max_pool{d}d_with_indices" for d in (1, 2, 3)],
      *[f"{kind}{d}d" for kind in ("upsample_nearest", "_upsample_nearest_exact") for d in (1, 2, 3)],
      "upsample_linear1d", "upsample_bilinear2d", "upsample_bicubic2d", "upsample_trilinear3d",
      "_upsample_bilinear2d_aa", "_upsample_bicubic2d_aa",
      "grid_sampler")  # fmt: skip
def resample(flow: Flow, x: Value, *_: Any, **__: Any) -> Any:
    spatial = next((d for d in (1, 2, 3) if f"{d}d" in flow.operator()), 2)
    shapes = flow.outputs()
    shape = shapes[0] if isinstance(shapes, list) else shapes
    flow.pin(x.dims[len(x.dims) - spatial :], "moves along it")
    out = activation((*x.dims[: len(x.dims) - spatial], *fixed(flow, shape[len(shape) - spatial :])))
    return [out] * len(shapes) if isinstance(shapes, list) else out


@rule("pad", "constant_pad_nd", *[f"{k}_pad{d}d" for k in ("reflection", "replication") for d in (1, 2, 3)])
def pad(flow: Flow, x: Value, *_: Any, **__: Any) -> Value:
    shape = flow.outputs()
    changed = [d for d, n in enumerate(shape) if n != x.shape[d]]
    flow.pin((x.dims[d] for d in changed), "pads it")
    return activation(fixed(flow, (n,))[0] if d in changed else x.dims[d] for d, n in enumerate(shape))


@rule("pixel_shuffle")
def pixel_shuffle(flow: Flow, x: Value, factor: int) -> Value:
    channel = len(x.dims) - 3
    neurons = axes.in_blocks(x.dims[channel], x.shape[channel] // factor**2, flow.reason("needs whole pixels"))
    return activation((*x.dims[:channel], neurons, *fixed(flow, flow.outputs()[channel + 1 :])))
