"""Where a growth begins: the sizes of neurons and readers, which ε is relative to, and the first δ."""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch
from torch import Tensor

from firefly.neighborhood.slots import Slots
from firefly.tensors import Layout, Run, along, along_runs, compact_shape, sum_neurons

Sizes = dict[str, Tensor]


def measure_scales(
    layouts: Mapping[str, Layout], base: Mapping[str, Tensor], slots: Mapping[str, Slots]
) -> tuple[Sizes, Sizes]:
    """Root mean square of each slot's own rows, per width, and of each reader as a whole, per tensor."""
    device = next(iter(base.values())).device
    squares = {name: torch.zeros(one.size, device=device) for name, one in slots.items()}
    counts = dict.fromkeys(slots, 0)
    readers: Sizes = {}
    for name, layout in layouts.items():
        tensor = base[name].float()
        readers[name] = _rms(tensor)
        make = layout.role("makes")
        if make is not None:
            for width, per_neuron in sum_neurons(layout.dims[make], tensor.square(), make).items():
                if width in squares:
                    squares[width] += per_neuron
                    rest = math.prod(n for dim, n in enumerate(tensor.shape) if dim != make)
                    counts[width] += rest * _owned(layout.dims[make], width)
    scale = {}
    for width, one in slots.items():
        own = (squares[width] / max(counts[width], 1)).sqrt()
        mean = own.mean() if one.size else torch.tensor(max(counts[width], 1) ** -0.5, device=device)
        mean = torch.where(mean > 0, mean, torch.full_like(mean, 0.1))
        own = torch.where(own > 0, own, mean)
        scale[width] = torch.cat([own, mean.expand(one.new)])
    return scale, readers


def _rms(tensor: Tensor) -> Tensor:
    """Root mean square of a weight; where it is zero or empty, that of a fresh one: 1/√fan-in.

    The fan-in of a weight that reads a width of no neurons is taken to be as large as what it makes: one neuron of a
    new layer then moves the stream it is added to by as large a share as one more neuron moves the next layer.
    """
    fresh = torch.tensor((math.prod(tensor.shape[1:]) or tensor.shape[0] or 1) ** -0.5, device=tensor.device)
    rms = tensor.square().mean().sqrt() if tensor.numel() else fresh
    return torch.where(rms > 0, rms, fresh)


def _owned(runs: tuple[Run, ...], width: str) -> int:
    return sum(run.block for run in runs if run.width == width)


def draw_delta(
    layout: Layout, base: Tensor, slots: Mapping[str, Slots], scale: Mapping[str, Tensor], generator: torch.Generator
) -> Tensor:
    """δ of one tensor at the start: random rows as large as each kind says, zero columns for brand-new neurons.

    So f begins within a hair of f_t.
    """
    dtype = base.dtype if base.dtype == torch.float64 else torch.float32
    delta = torch.randn(compact_shape(layout, slots), generator=generator, dtype=dtype).to(base.device)
    read, make = layout.role("reads"), layout.role("makes")
    if read is not None:
        old = {name: (torch.arange(len(one)) < one.size).to(delta) for name, one in slots.items()}
        delta *= along(along_runs(layout.dims[read], old, 1.0, delta), read, delta.ndim)
    if make is not None and layout.start == "zero":  # a bias
        biased = {
            name: one.spread({k: float(k.start_bias()) for k in one.standing}, 1.0) for name, one in slots.items()
        }
        delta *= along(along_runs(layout.dims[make], biased, 1.0, delta), make, delta.ndim)
    return size_rows(layout, delta, slots, scale)


def size_rows(
    layout: Layout, delta: Tensor, slots: Mapping[str, Slots], scale: Mapping[str, Tensor], full: bool = False
) -> Tensor:
    """Random δ with its rows as large as they begin; `full` makes those of neurons that exist as large as these."""
    make = layout.role("makes")
    if make is None:
        return delta
    size = {}
    for name, one in slots.items():
        begin = {k: k.start_rows(scale[name].cpu()[numbers]) for k, numbers in one.standing.items()}
        size[name] = one.spread(begin, 1.0)
        if full:
            size[name][: one.size] = 1.0
    return delta * along(along_runs(layout.dims[make], size, 1.0, delta), make, delta.ndim)
