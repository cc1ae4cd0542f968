"""Layers that no example reaches: whatever may feed them must keep its size, or they would not fit any more.

Nobody has seen what such a layer reads, so its sizes decide. A width is pinned if an axis that holds its neurons, alone
or flattened with the dimensions beside it, is as long as one of the unreached layer's sizes: the input and output
features or channels of a layer that torch knows (never its kernel, nor the number of words of an embedding), any
dimension longer than 1 of a parameter that stands in a module of one's own. Other widths grow as they would.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase
from torch.nn.modules.conv import _ConvNd

from firefly.anatomy import axes
from firefly.anatomy.graph import Flow

SIZES: dict[type[nn.Module], tuple[str, ...]] = {
    nn.Linear: ("in_features", "out_features"),
    nn.Bilinear: ("in1_features", "in2_features", "out_features"),
    _ConvNd: ("in_channels", "out_channels"),
    _NormBase: ("num_features",),
    nn.GroupNorm: ("num_channels",),
    nn.LayerNorm: ("normalized_shape",),
    nn.RMSNorm: ("normalized_shape",),
    nn.Embedding: ("embedding_dim",),
    nn.EmbeddingBag: ("embedding_dim",),
    nn.RNNBase: ("input_size", "hidden_size"),
    nn.RNNCellBase: ("input_size", "hidden_size"),
    nn.MultiheadAttention: ("embed_dim", "kdim", "vdim"),
}


def pin_unreached(flow: Flow, reached: set[int]) -> None:
    """Pin what may feed a parameter that is not among the reached ones."""
    sizes: dict[int, str] = {}
    for name, module, tensor in _unreached(flow, reached):
        for size in _sizes(module, tensor):
            sizes.setdefault(size, name)
    if not sizes:
        return
    for value in flow.passed:
        for d, axis in enumerate(value.dims):
            if not axes.growable(axis):
                continue
            for size in (axes.length(axis), math.prod(value.shape[1:]) if d else 0):
                if size in sizes:
                    axes.pin((axis,), _reason(sizes[size]))


def _unreached(flow: Flow, reached: set[int]) -> Iterator[tuple[str, nn.Module, Tensor | None]]:
    """Parameters, the buffers of modules of which nothing is reached, and norms without any that are not called."""
    for path, module in flow.model.named_modules():
        own = [(f"{path}.{leaf}".lstrip("."), t) for leaf, t in module.named_parameters(recurse=False)]
        buffers = [(f"{path}.{leaf}".lstrip("."), t) for leaf, t in module.named_buffers(recurse=False)]
        if not any(id(tensor) in reached for _, tensor in own + buffers):
            own += buffers if type(module).__module__.startswith("torch.nn") else []
        yield from ((name, module, t) for name, t in own if id(t) not in reached and t.numel())
        if not own and not buffers and path not in flow.called:
            yield path, module, None


def _sizes(module: nn.Module, tensor: Tensor | None) -> set[int]:
    for kind, attributes in SIZES.items():
        if isinstance(module, kind):
            found: list[Any] = [getattr(module, attribute) for attribute in attributes]
            return {n for size in found for n in (size if isinstance(size, (tuple, list)) else (size,))}
    return {n for n in tensor.shape if n > 1} if tensor is not None else set()


def _reason(name: str) -> str:
    return (
        f"no example reaches {name}, which may depend on its size: give an example of each path, "
        "firefly.Examples(x, ...), with firefly.Call for another method than forward"
    )
