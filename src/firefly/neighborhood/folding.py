"""Sum the copies of every neuron in front of the weights that read them.

Both copies of a split neuron are read through W/2, so W/2 times their sum is the same: the reader need not grow, and a
step of the over-grown network costs about two plain ones instead of four.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.overrides import TorchFunctionMode

from firefly.neighborhood.slots import Slots
from firefly.tensors import Layout, Run

# where a function has its input and its weight, and which dimension of the input the weight reads
READERS: dict[Any, tuple[int, int, Callable[[Tensor, Tensor], int]]] = {
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


class Fold(NamedTuple):
    """One run of a reader's input: its first copies, the further ones that are added to them, and new neurons."""

    first: int
    further: tuple[tuple[int, Tensor | None], ...]  # how many entries; which of the first they belong to, None for all
    new: int


def find_folds(layout: Layout, slots: Mapping[str, Slots], device: torch.device) -> list[Fold] | None:
    """How the input of a tensor that reads is folded; None where nothing is."""
    read = layout.role("reads")
    if read is None:
        return None
    folds = [_find_fold(run, slots, device) for run in layout.dims[read]]
    return folds if any(fold.further for fold in folds) else None


def _find_fold(run: Run, slots: Mapping[str, Slots], device: torch.device) -> Fold:
    if run.width is None or run.width not in slots:
        return Fold(run.size * run.block, (), 0)
    own = slots[run.width]
    further = []
    for numbers in own.further:
        entries = (numbers[:, None] * run.block + torch.arange(run.block)).flatten().to(device)
        further.append((len(entries), None if len(numbers) == own.size else entries))
    return Fold(run.size * run.block, tuple(part for part in further if part[0]), own.new * run.block)


class Folding(TorchFunctionMode):
    """Inside it the inputs of these weights, by their ids, are folded."""

    def __init__(self, folds: Mapping[int, list[Fold] | None]) -> None:
        super().__init__()
        self.folds = {key: fold for key, fold in folds.items() if fold}

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        reader = READERS.get(func)
        if reader is not None and len(args) > reader[1] and id(args[reader[1]]) in self.folds:
            x, weight = args[reader[0]], args[reader[1]]
            summed = fold_copies(x, reader[2](x, weight), self.folds[id(weight)])
            args = (*args[: reader[0]], summed, *args[reader[0] + 1 :])
        return func(*args, **(kwargs or {}))


def fold_copies(x: Tensor, dim: int, folds: list[Fold]) -> Tensor:
    sizes = [size for fold in folds for size in (fold.first, *(count for count, _ in fold.further), fold.new) if size]
    pieces = iter(x.split(sizes, dim))
    out: list[Tensor] = []
    for fold in folds:
        if fold.first:
            total = next(pieces)
            for _, entries in fold.further:
                more = next(pieces)
                total = total + more if entries is None else total.index_add(dim, entries, more)
            out.append(total)
        if fold.new:
            out.append(next(pieces))
    return out[0] if len(out) == 1 else torch.cat(out, dim)
