"""What a search finds (Sec. 3, App. B.3): which operations a cell is made of, as JSON and in the text form of DARTS.

A cell has two inputs, numbered 0 and 1, and nodes from 2 on; a node is the sum of a few operations, each on an input or
an earlier node. A genotype holds either two cells, (normal, reduce), as those of DARTS, or five, one per position:

    cells of the network of 20    1-6      7        8-13     14       15-20
    cells of the genotype         first    second   third    fourth   fifth        (the second and fourth reduce)

DARTS' text has room for one normal and one reduction cell. Five cells are written as three lines: normal and reduce of
the first stage (1 and 2), of the second (3 and 4), and of the last (5; its reduce is 4 again, and not used).
"""

from __future__ import annotations

import ast
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from firefly.errors import FireflyError, first_line
from firefly.nas.operations import OPERATIONS

Edge = tuple[str, int]  # an operation, and what it reads
Nodes = tuple[tuple[Edge, ...], ...]


@dataclass(frozen=True)
class Cell:
    """The operations of every node, and which nodes are joined into the cell's output."""

    nodes: Nodes
    concat: tuple[int, ...] = (2, 3, 4, 5)

    def __post_init__(self) -> None:
        if not self.nodes:
            raise FireflyError("a cell without nodes: give each node's operations, such as (('sep_conv_3x3', 0), ...)")
        for number, node in enumerate(self.nodes, start=2):
            if not node:
                raise FireflyError(f"node {number} of a cell has no operation: it needs one at least")
            for operation, source in node:
                check_edge(operation, source, number)
        last = len(self.nodes) + 1
        if not self.concat or not all(type(one) is int and 2 <= one <= last for one in self.concat):
            raise FireflyError(f"concat={list(self.concat)!r}: the output of this cell joins nodes from 2 to {last}")


def check_edge(operation: Any, source: Any, node: int) -> None:
    if operation not in OPERATIONS:
        raise FireflyError(f"node {node}: there is no operation {operation!r}; known are {', '.join(OPERATIONS)}")
    if type(source) is not int or not 0 <= source < node:
        raise FireflyError(f"node {node} reads {source!r}: it can read the inputs 0 and 1 and nodes before it")


@dataclass(frozen=True)
class Genotype:
    """Two cells, (normal, reduce), or five, one per position of the network."""

    cells: tuple[Cell, ...]
    name: str = ""

    def __post_init__(self) -> None:
        if len(self.cells) not in (2, 5) or not all(isinstance(one, Cell) for one in self.cells):
            raise FireflyError(f"a genotype of {len(self.cells)}: give two cells (normal, reduce) or five, by position")

    def at(self, stage: int) -> Cell:
        """The cell of a stage: 0, 2 and 4 are normal ones, 1 and 3 reduce."""
        return self.cells[stage if len(self.cells) == 5 else stage % 2]

    def __str__(self) -> str:
        """In DARTS' text form; three lines if there are five cells."""
        pairs = [(0, 1)] if len(self.cells) == 2 else [(0, 1), (2, 3), (4, 3)]
        return "\n".join(write_pair(self.cells[normal], self.cells[reduce]) for normal, reduce in pairs)

    @property
    def text(self) -> str:
        """DARTS' text form; nothing where it has no room, since a node has one operation or three."""
        return str(self) if all(len(node) == 2 for cell in self.cells for node in cell.nodes) else ""

    def to_dict(self) -> dict[str, Any]:
        cells = [
            {"nodes": [list(map(list, node)) for node in one.nodes], "concat": list(one.concat)} for one in self.cells
        ]
        return {"name": self.name, "cells": cells}


def write_pair(normal: Cell, reduce: Cell) -> str:
    for cell in (normal, reduce):
        if any(len(node) != 2 for node in cell.nodes):
            raise FireflyError("DARTS' text form has two operations per node: write this genotype as JSON (to_dict)")
    parts = [("normal", normal), ("reduce", reduce)]
    told = (f"{name}={list_edges(cell)!r}, {name}_concat={list(cell.concat)!r}" for name, cell in parts)
    return f"Genotype({', '.join(told)})"


def list_edges(cell: Cell) -> list[Edge]:
    return [edge for node in cell.nodes for edge in node]


# ---- reading ---------------------------------------------------------------------------------------------------------


def read_genotype(given: Any, name: str = "") -> Genotype:
    """A genotype from a `Genotype`, DARTS' text, a dict as `to_dict` makes it, or a file of either."""
    if isinstance(given, Genotype):
        return given
    if isinstance(given, Mapping):
        return read_dict(given, name)
    if isinstance(given, Path) or (isinstance(given, str) and given.strip().endswith((".json", ".txt"))):
        return read_file(Path(given))
    if not isinstance(given, str):
        raise FireflyError(f"a genotype cannot be read from a {type(given).__name__}: give its text, dict or file")
    return read_dict(load_json(given), name) if given.lstrip().startswith("{") else read_text(given, name)


def read_file(path: Path) -> Genotype:
    try:
        text = path.read_text(encoding="utf-8-sig")
        return read_dict(load_json(text), path.stem) if text.lstrip().startswith("{") else read_text(text, path.stem)
    except (OSError, UnicodeDecodeError) as error:
        raise FireflyError(f"{path}: the genotype cannot be read: {first_line(error)}") from error


def load_json(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise FireflyError(f"the genotype is not JSON: {first_line(error)}") from error


def read_dict(content: Mapping[str, Any], name: str = "") -> Genotype:
    try:
        cells = tuple(
            Cell(
                tuple(tuple((operation, source) for operation, source in node) for node in one["nodes"]),
                tuple(one["concat"]),
            )
            for one in content["cells"]
        )
        return Genotype(cells, str(content.get("name", "")) or name)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise FireflyError(
            f"the genotype does not read ({type(error).__name__}: {first_line(error)}): it is "
            '{"cells": [{"nodes": [[["sep_conv_3x3", 0], ...], ...], "concat": [2, 3, 4, 5]}, ...]}'
        ) from error


def read_text(text: str, name: str = "") -> Genotype:
    """DARTS' `Genotype(normal=[...], normal_concat=..., reduce=[...], reduce_concat=...)`, once or three times."""
    try:
        body = ast.parse(text.strip()).body
        calls = [find_call(node) for node in body]
        pairs = [(read_cell(call, "normal"), read_cell(call, "reduce")) for call in calls]
    except (SyntaxError, ValueError, KeyError, TypeError, RecursionError, MemoryError) as error:
        raise FireflyError(
            f"the genotype does not read ({type(error).__name__}: {first_line(error)}): write "
            "Genotype(normal=[('sep_conv_3x3', 0), ...], normal_concat=[2, 3, 4, 5], reduce=[...], reduce_concat=[...])"
        ) from error
    if len(pairs) == 3:
        return Genotype((*pairs[0], *pairs[1], pairs[2][0]), name)
    if len(pairs) != 1:
        raise FireflyError(f"the text holds {len(pairs)} genotypes: give one, or the three lines of five cells")
    return Genotype(pairs[0], name)


def find_call(node: ast.stmt) -> dict[str, ast.expr]:
    """The arguments of `Genotype(...)`, perhaps behind `NAME =`; nothing is run."""
    value = node.value if isinstance(node, (ast.Expr, ast.Assign)) else None
    if not isinstance(value, ast.Call) or getattr(value.func, "id", None) != "Genotype" or value.args:
        raise ValueError("it is not Genotype(...)")
    return {str(keyword.arg): keyword.value for keyword in value.keywords}


def read_cell(call: dict[str, ast.expr], kind: str) -> Cell:
    edges = [(operation, source) for operation, source in ast.literal_eval(call[kind])]
    if len(edges) % 2:
        raise ValueError(f"{kind} has {len(edges)} operations, not two for every node")
    nodes = tuple((edges[k], edges[k + 1]) for k in range(0, len(edges), 2))
    return Cell(nodes, tuple(read_numbers(call[f"{kind}_concat"])))


def read_numbers(node: ast.expr) -> list[int]:
    """[2, 3, 4, 5], or range(2, 6), which DARTS' own code prints."""
    if isinstance(node, ast.Call) and getattr(node.func, "id", None) == "range":
        return list(range(*(int(ast.literal_eval(one)) for one in node.args))[:100])
    return list(ast.literal_eval(node))
