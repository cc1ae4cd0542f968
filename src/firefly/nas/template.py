"""The network that is grown in a search (Sec. 3, App. B.3): five cells in which all operations compete on every edge.

An edge is the identity plus the operations, side by side. Each operation is one of DARTS' blocks whose last convolution
grows, its norm, an activation, and a linear transform to the channels of the edge:

    edge(x) = x + Σ_o read_o(relu(norm(make_o(front_o(relu(x))))))         the width of operation o: rows of make_o

Without that last activation, on which the paper is silent, a split would be worth exactly nothing. A node is the mean
of its edges. With `start=0` the operations begin asleep: an edge is the identity until a growth wakes one of them, and
a sleeping operation costs nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional

from firefly.errors import FireflyError
from firefly.nas.dense import run_dense
from firefly.nas.operations import SEARCHED, Halve, convolve, fit_channels, make_front, skip
from firefly.surgery.residual import Residual

CHANNELS = (16, 32, 32, 64, 64)  # of the edges of each cell
START = (4, 8, 8, 16, 16)  # of the operations
REDUCE = (1, 3)  # the cells that halve the image


class Operation(Residual):
    """An operation of an edge; its hidden width is what grows, and may be 0. There is no identity in it."""

    def __init__(self, name: str, channels: int, stride: int, width: int) -> None:
        super().__init__(channels, kernel=1)
        kernel, dilation, repeats = SEARCHED[name]
        self.front = nn.Sequential(*make_front(kernel, dilation, repeats, channels, stride))
        if width:
            self.make, self.norm, self.read = (
                convolve(channels, width),
                nn.BatchNorm2d(width),
                convolve(width, channels),
            )

    @property
    def width(self) -> int:
        return int(self.make.weight.shape[0])

    def forward(self, x: Tensor) -> Tensor:
        return self.read(self.activation(self.norm(self.make(self.front(x)))))


class Rivals(nn.Module):
    """An edge: the identity and its operations."""

    def __init__(self, channels: int, stride: int, width: int) -> None:
        super().__init__()
        self.identity = skip(channels, stride)
        self.operations = nn.ModuleDict({name: Operation(name, channels, stride, width) for name in SEARCHED})

    def forward(self, x: Tensor, active: Tensor) -> Tensor:
        """`active`: x after the activation, which all operations of all edges from there begin with."""
        total = self.identity(x)
        for operation in self.operations.values():
            if not operation.dormant:
                total = total + operation(active)
        return total


class GrownCell(nn.Module):
    """A cell with all of its edges."""

    def __init__(
        self, sizes: tuple[int, int], channels: int, width: int, nodes: int, reduce: bool, shrunk: bool
    ) -> None:
        super().__init__()
        first = Halve(sizes[0], channels) if shrunk else fit_channels(sizes[0], channels)
        self.inputs = nn.ModuleList([first, fit_channels(sizes[1], channels)])
        self.nodes = nn.ModuleList()
        for number in range(nodes):
            strides = [2 if reduce and source < 2 else 1 for source in range(2 + number)]
            self.nodes.append(nn.ModuleList(Rivals(channels, stride, width) for stride in strides))

    def forward(self, before: Tensor, last: Tensor, dense: bool = False) -> Tensor:
        if dense:
            return run_dense(self, before, last)
        states = [self.inputs[0](before), self.inputs[1](last)]
        active = [functional.relu(state) for state in states]
        for node in self.nodes:
            values = [edge(x, relu) for edge, x, relu in zip(node, states, active)]  # type: ignore[call-overload]
            states.append(sum(values[1:], values[0]) / len(values))
            active.append(functional.relu(states[-1]))
        return torch.cat(states[2:], dim=1)


class Template(nn.Module):
    """The network of a search: a stem, the cells, global average pooling and a linear head.

    With `dense` its cells compute the same in few large kernels (`dense.py`); a trace needs the plain ones.
    """

    def __init__(
        self,
        channels: Sequence[int] = CHANNELS,
        start: Sequence[int] | int = START,
        classes: int = 10,
        nodes: int = 4,
        colours: int = 3,
        dense: bool = False,
    ) -> None:
        super().__init__()
        self.dense = dense
        widths = [start] * len(channels) if isinstance(start, int) else list(start)
        check_sizes(channels, widths, nodes)
        stem = 3 * channels[0]
        self.stem = nn.Sequential(nn.Conv2d(colours, stem, 3, padding=1, bias=False), nn.BatchNorm2d(stem))
        self.cells = nn.ModuleList()
        sizes, shrunk = (stem, stem), False
        for number, (wide, width) in enumerate(zip(channels, widths)):
            self.cells.append(GrownCell(sizes, wide, width, nodes, number in REDUCE, shrunk))
            sizes, shrunk = (sizes[1], nodes * wide), number in REDUCE
        self.head = nn.Linear(sizes[1], classes)

    def forward(self, images: Tensor) -> Tensor:
        before = last = self.stem(images)
        for cell in self.cells:
            before, last = last, cell(before, last, self.dense)
        return self.head(functional.adaptive_avg_pool2d(last, 1).flatten(1))


def check_sizes(channels: Sequence[int], widths: Sequence[int], nodes: int) -> None:
    if len(channels) != 5 or len(widths) != 5 or any(type(one) is not int or one < 2 for one in channels):
        raise FireflyError(
            f"channels={list(channels)}, start={list(widths)}: give five of each, one per cell, channels from 2 up"
        )
    if any(type(one) is not int or one < 0 for one in widths) or type(nodes) is not int or nodes < 1:
        raise FireflyError(f"start={list(widths)}, nodes={nodes}: give whole numbers; start=0 lets operations sleep")


@dataclass(frozen=True)
class Place:
    """Where an operation stands: its cell (the first is 0), its node (the first is 2), what it reads, its name."""

    cell: int
    node: int
    source: int
    operation: str


def list_operations(model: Template) -> Iterator[tuple[str, Place, Operation]]:
    """Every operation, with its path in the model."""
    for cell, block in enumerate(model.cells):
        for node, edges in enumerate(block.nodes):  # type: ignore[arg-type]
            for source, edge in enumerate(edges):
                for name, operation in edge.operations.items():
                    path = f"cells.{cell}.nodes.{node}.{source}.operations.{name}"
                    yield path, Place(cell, node + 2, source, name), operation
