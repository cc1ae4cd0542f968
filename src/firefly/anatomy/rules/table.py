"""One small rule per operator: how the axes of its inputs relate to those of its outputs.

A rule gets the `Flow` and the operator's arguments, with tensors as `Value`s. It says which axes are the same, which
dimension of a weight *makes* the neurons, which one *reads* them, what *follows* them, and returns the output. An
operator without a rule pins everything it touches, so that nothing is ever grown on a guess.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from firefly.anatomy import axes
from firefly.anatomy.axes import Axis
from firefly.anatomy.graph import Flow, Value, activation

RULES: dict[str, Callable[..., Any]] = {}


def rule(*names: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    def add(function: Callable[..., Any]) -> Callable[..., Any]:
        RULES.update((name if "::" in name else f"aten::{name}", function) for name in names)
        return function

    return add


def find(name: str) -> Callable[..., Any]:
    """The rule of an operator; in-place operators share that of the plain one."""
    return RULES.get(name) or RULES.get(name.rstrip("_")) or unknown


def unknown(flow: Flow, *args: Any, **kwargs: Any) -> Any:
    values = values_in(args, kwargs)
    flow.pin((axis for value in values for axis in value.dims), "is not known to Firefly")
    weights = (v for v in values if v.direct and v.dims and any(flow.is_parameter(name) for name, _ in v.sources[0]))
    flow.makes(next(weights, None), 0)  # so that the width is listed, as pinned
    return fixed_outputs(flow)


def values_in(*args: Any) -> list[Value]:
    found: list[Value] = []
    for arg in args:
        if isinstance(arg, Value):
            found.append(arg)
        elif isinstance(arg, (tuple, list)):
            found += values_in(*arg)
        elif isinstance(arg, dict):
            found += values_in(*arg.values())
    return found


def fixed(flow: Flow, shape: Sequence[int]) -> list[Axis]:
    return [axes.fixed(n, f"it must match something of fixed size{flow.where()}") for n in shape]


def fixed_outputs(flow: Flow) -> Any:
    shapes = flow.outputs()
    if isinstance(shapes, list):
        return [None if shape is None else activation(fixed(flow, shape)) for shape in shapes]
    return None if shapes is None else activation(fixed(flow, shapes))


def channel_of(x: Value, spatial: int) -> int:
    """The channel dimension of a (N, C, *spatial) or (C, *spatial) tensor."""
    return len(x.dims) - spatial - 1


def broadcast(flow: Flow, shapes: Sequence[Sequence[Axis]]) -> tuple[Axis, ...]:
    """Align the axes from the right; equal sizes are the same axis, a size of one that is stretched stays one."""
    out: list[Axis] = []
    for from_end in range(max(map(len, shapes), default=0), 0, -1):
        here = [dims[-from_end] for dims in shapes if from_end <= len(dims)]
        size = max(axes.length(axis) for axis in here)
        full = [axis for axis in here if axes.length(axis) == size]
        if size == 1:  # a dimension of one for ever may stand beside a single head
            full = [axis for axis in full if axes.growable(axis)] or full[:1]
        flow.pin((axis for axis in here if axes.length(axis) != size), "stretches it")
        for axis in full[1:]:
            flow.same(full[0], axis)
        out.append(full[0])
    return tuple(out)
