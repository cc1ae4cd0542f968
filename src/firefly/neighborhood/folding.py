"""Sum the two copies of every split neuron in front of the weights that read them.

Both copies are read through W/2, so W/2 times their sum is the same: the reader need not grow, and a step of the
over-grown network costs about two plain ones instead of four.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.overrides import TorchFunctionMode

_FOLDS: dict[Any, tuple[int, int, Callable[[Tensor, Tensor], int]]] = {
    F.linear: (0, 1, lambda x, w: -1),
    torch.addmm: (1, 2, lambda x, w: -1),
    torch.matmul: (0, 1, lambda x, w: -1),
    torch.Tensor.matmul: (0, 1, lambda x, w: -1),
    torch.Tensor.__matmul__: (0, 1, lambda x, w: -1),
    **{
        f: (0, 1, lambda x, w: x.ndim - w.ndim + 1)
        for f in (F.conv1d, F.conv2d, F.conv3d, F.conv_transpose1d, F.conv_transpose2d, F.conv_transpose3d)
    },
}


class Folding(TorchFunctionMode):
    """Sums the two copies of every split neuron in front of the weights that read them (their columns are W/2)."""

    def __init__(self, folds: Mapping[int, list[tuple[int, int, int]] | None]) -> None:
        super().__init__()
        self.folds = {key: fold for key, fold in folds.items() if fold and any(pair for _, pair, _ in fold)}

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        rule = _FOLDS.get(func)
        if rule is not None and len(args) > rule[1] and id(args[rule[1]]) in self.folds:
            x, weight = args[rule[0]], args[rule[1]]
            summed = _fold(x, rule[2](x, weight), self.folds[id(weight)])
            args = (*args[: rule[0]], summed, *args[rule[0] + 1 :])
        return func(*args, **(kwargs or {}))


def _fold(x: Tensor, dim: int, fold: list[tuple[int, int, int]] | None) -> Tensor:
    pieces = iter(x.split([size for run in fold or () for size in run if size], dim))
    out: list[Tensor] = []
    for _, pair, new in fold or ():
        out.append(next(pieces) + next(pieces) if pair else next(pieces))
        out += [next(pieces)] if new else []
    return out[0] if len(out) == 1 else torch.cat(out, dim)
