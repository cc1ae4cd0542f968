"""A cell of the template in few and large kernels: what it computes is its plain forward, to rounding (App. B.3).

A step of the plain template is thousands of small kernels, and depthwise convolutions are slow on a GPU, above all the
gradient of their weights. But between a depthwise convolution and the pointwise one behind it nothing happens, so

- both are one dense convolution, whose weight is the product of theirs;
- all operations of a kind that read the same node are one convolution with their weights one below the other;
- all that a node adds up is one linear transform of everything joined: the sum over operations is inside it;
- the identities of a node add one state to the sum of the node before.

Rows of zeros make every width a multiple of eight in there, which tensor cores want; a zero row stays zero to the end.
The layers keep their tensors and names: growth, optimisers and checkpoints see the plain template, as `trace` does.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

MULTIPLE = 8
Reader = tuple[int, Any]  # a node, and its operation on an edge
Pair = tuple[Tensor, Tensor]  # the weights of a depthwise convolution and of the pointwise one behind it


def run_dense(cell: Any, before: Tensor, last: Tensor) -> Tensor:
    """What `GrownCell.forward` computes."""
    states = [cell.inputs[0](before), cell.inputs[1](last)]
    readers = list_readers(cell)
    weights = {name: weigh(name, mine, states[0].dtype) for name, mine in readers.items()}
    heard: list[list[tuple[Any, Tensor]]] = [[] for _ in cell.nodes]  # per node: operations, and what they made
    kept: Tensor | None = None  # the sum of all states whose edges are plain identities
    for number, edges in enumerate(cell.nodes):
        for source in range(number + 1 if number else 0, number + 2):
            if isinstance(edges[source].identity, nn.Identity):
                kept = states[source] if kept is None else kept + states[source]
            active = functional.relu(states[source])
            for name, mine in readers.items():
                if mine[source]:
                    made = make(active, [one for _, one in mine[source]], *weights[name][source])
                    for (node, operation), values in zip(mine[source], made):
                        heard[node].append((operation, values))
        others = [edge.identity(x) for edge, x in zip(edges, states) if not isinstance(edge.identity, nn.Identity)]
        parts = [*others, *([] if kept is None else [kept]), *([read(heard[number])] if heard[number] else [])]
        states.append(sum(parts[1:], parts[0]) / len(edges))
    return torch.cat(states[2:], dim=1)


def list_readers(cell: Any) -> dict[str, list[list[Reader]]]:
    """By operation and by what they read: the ones that are awake, with their nodes."""
    found: dict[str, list[list[Reader]]] = {}
    for number, edges in enumerate(cell.nodes):
        for source, edge in enumerate(edges):
            for name, one in edge.operations.items():
                mine = found.setdefault(name, [[] for _ in cell.nodes[-1]])
                if not one.dormant:
                    check_sizes(one)
                    mine[source].append((number, one))
    return found


def check_sizes(one: Any) -> None:
    """Zeros would hide layers that do not fit, such as those that a `Folding` stands between."""
    made, known, heard = len(one.make.weight), len(one.norm.weight), one.read.weight.shape[1]
    if not made == known == heard:
        raise RuntimeError(f"an operation makes {made} channels, its norm knows {known} and {heard} are read")


def weigh(name: str, readers: list[list[Reader]], dtype: torch.dtype) -> list[tuple[Tensor | None, list[Tensor]]]:
    """Of every source the dense weights of its readers: of their first convolutions together, of their last ones."""
    everyone = [[one for _, one in mine] for mine in readers]
    first: list[Tensor | None] = [None] * len(everyone)
    twice = any(len(one.front) > 1 for mine in everyone for one in mine)
    if twice:
        first[:] = compose([[(one.front[0].weight, one.front[1].weight) for one in mine] for mine in everyone], dtype)
    last = [[(one.front[-1].weight, one.make.weight) for one in mine] for mine in everyone]
    if not twice:  # readers of one source are one convolution from beginning to end
        return [(None, [weight]) for weight in compose(last, dtype, MULTIPLE)]
    alone = iter(compose([[pair] for mine in last for pair in mine], dtype, MULTIPLE))
    return [(front, [next(alone) for _ in mine]) for front, mine in zip(first, everyone)]


def compose(groups: Sequence[Sequence[Pair]], dtype: torch.dtype, multiple: int = 1) -> list[Tensor]:
    """Per group one dense weight (out, in, k, k), its pairs one below the other, each filled up to a multiple of rows.

    Groups without pairs get no rows.
    """
    pairs = [pair for group in groups for pair in group]
    if not pairs:
        return [torch.empty(0)] * len(groups)
    rows = [fill(len(pointwise), multiple) for _, pointwise in pairs]
    depth = torch.cat([deep.transpose(0, 1).expand(count, -1, -1, -1) for (deep, _), count in zip(pairs, rows)])
    weight = (join([pointwise for _, pointwise in pairs], multiple) * depth).to(dtype)
    counts = iter(rows)
    return list(weight.split([sum(next(counts) for _ in group) for group in groups]))


def make(active: Tensor, operations: Sequence[Any], first: Tensor | None, last: Sequence[Tensor]) -> Sequence[Tensor]:
    """What the operations of one kind that read a node make of it, before their norms; widths are filled up."""
    front, end = operations[0].front[0], operations[0].front[-1]
    if first is None:
        made = functional.conv2d(active, last[0], None, front.stride, front.padding, front.dilation)
        return made.split([fill(one.width, MULTIPLE) for one in operations], 1)
    middle = functional.conv2d(active, first, None, front.stride, front.padding)
    middle = functional.relu(normalise(middle, [one.front[2] for one in operations]))
    parts = middle.split(len(first) // len(operations), 1)
    return [functional.conv2d(part, weight, None, 1, end.padding) for part, weight in zip(parts, last)]


def read(heard: Sequence[tuple[Any, Tensor]]) -> Tensor:
    """The sum over all operations of a node, as one linear transform."""
    operations = [one for one, _ in heard]
    values = normalise(torch.cat([made for _, made in heard], 1), [one.norm for one in operations], MULTIPLE)
    weight = join([one.read.weight for one in operations], MULTIPLE, 1)
    return functional.conv2d(operations[0].activation(values), weight)


def normalise(values: Tensor, norms: Sequence[Any], multiple: int = 1) -> Tensor:
    """Batch norms side by side, as one; their running statistics are written back."""
    one = norms[0]
    names = ("running_mean", "running_var", "weight", "bias")
    mean, variance, weight, bias = (join([getattr(norm, name) for norm in norms], multiple) for name in names)
    found = functional.batch_norm(values, mean, variance, weight, bias, one.training, one.momentum, one.eps)
    if one.training:
        sizes = [fill(len(norm.weight), multiple) for norm in norms]
        own = [*(norm.running_mean for norm in norms), *(norm.running_var for norm in norms)]
        pieces = [piece[: len(there)] for there, piece in zip(own, [*mean.split(sizes), *variance.split(sizes)])]
        counters = [norm.num_batches_tracked for norm in norms if norm.num_batches_tracked is not None]
        with torch.no_grad():
            torch._foreach_copy_(own, pieces)
            if counters:
                torch._foreach_add_(counters, 1)
    return found


def join(tensors: Sequence[Tensor], multiple: int, dim: int = 0) -> Tensor:
    """One behind the other, each filled up with zeros to a multiple."""
    lacks = [-one.shape[dim] % multiple for one in tensors]
    if not any(lacks):
        return torch.cat(list(tensors), dim)
    shape = [max(lacks) if d == dim else size for d, size in enumerate(tensors[0].shape)]
    none = tensors[0].new_zeros(shape)
    filled = [(one, none.narrow(dim, 0, lack)) if lack else (one,) for one, lack in zip(tensors, lacks)]
    return torch.cat([part for parts in filled for part in parts], dim)


def fill(size: int, multiple: int) -> int:
    return size + -size % multiple
