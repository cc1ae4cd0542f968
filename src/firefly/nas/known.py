"""Published cells, and those that a searched one has to beat: random ones, its own permuted, plain ones."""

from __future__ import annotations

import random
from collections.abc import Sequence

from firefly.errors import FireflyError
from firefly.nas.genotype import Cell, Edge, Genotype, read_text
from firefly.nas.operations import IDENTITY, SEARCHED

ALL = "[2, 3, 4, 5]"
TEXTS = {  # of CIFAR-10, as their authors published them
    "darts-v1": f"""Genotype(normal=[
        ('sep_conv_3x3', 1), ('sep_conv_3x3', 0), ('skip_connect', 0), ('sep_conv_3x3', 1),
        ('skip_connect', 0), ('sep_conv_3x3', 1), ('sep_conv_3x3', 0), ('skip_connect', 2)], normal_concat={ALL},
        reduce=[('max_pool_3x3', 0), ('max_pool_3x3', 1), ('skip_connect', 2), ('max_pool_3x3', 0),
        ('max_pool_3x3', 0), ('skip_connect', 2), ('skip_connect', 2), ('avg_pool_3x3', 0)], reduce_concat={ALL})""",
    "darts-v2": f"""Genotype(normal=[
        ('sep_conv_3x3', 0), ('sep_conv_3x3', 1), ('sep_conv_3x3', 0), ('sep_conv_3x3', 1),
        ('sep_conv_3x3', 1), ('skip_connect', 0), ('skip_connect', 0), ('dil_conv_3x3', 2)], normal_concat={ALL},
        reduce=[('max_pool_3x3', 0), ('max_pool_3x3', 1), ('skip_connect', 2), ('max_pool_3x3', 1),
        ('max_pool_3x3', 0), ('skip_connect', 2), ('skip_connect', 2), ('max_pool_3x3', 1)], reduce_concat={ALL})""",
    "pc-darts": f"""Genotype(normal=[
        ('sep_conv_3x3', 1), ('skip_connect', 0), ('sep_conv_3x3', 0), ('dil_conv_3x3', 1),
        ('sep_conv_5x5', 0), ('sep_conv_3x3', 1), ('avg_pool_3x3', 0), ('dil_conv_3x3', 1)], normal_concat={ALL},
        reduce=[('sep_conv_5x5', 1), ('max_pool_3x3', 0), ('sep_conv_5x5', 1), ('sep_conv_5x5', 2),
        ('sep_conv_3x3', 0), ('sep_conv_3x3', 3), ('sep_conv_3x3', 1), ('sep_conv_3x3', 2)], reduce_concat={ALL})""",
    "p-darts": f"""Genotype(normal=[
        ('skip_connect', 0), ('dil_conv_3x3', 1), ('skip_connect', 0), ('sep_conv_3x3', 1),
        ('sep_conv_3x3', 1), ('sep_conv_3x3', 3), ('sep_conv_3x3', 0), ('dil_conv_5x5', 4)], normal_concat={ALL},
        reduce=[('avg_pool_3x3', 0), ('sep_conv_5x5', 1), ('sep_conv_3x3', 0), ('dil_conv_5x5', 2),
        ('max_pool_3x3', 0), ('dil_conv_3x3', 1), ('dil_conv_3x3', 1), ('dil_conv_5x5', 3)], reduce_concat={ALL})""",
}


def find_known(name: str) -> Genotype:
    """A published genotype, or `plain`: SepConv 3 x 3 and identity only."""
    if name == "plain":
        return make_plain()
    if name not in TEXTS:
        raise FireflyError(f"there is no known genotype {name!r}: known are {', '.join((*TEXTS, 'plain'))}")
    return read_text(TEXTS[name], name)


def make_plain(nodes: int = 4) -> Genotype:
    """SepConv 3 x 3 on the cell's last input and identity from the other one, in every node."""
    cell = Cell((((IDENTITY, 0), ("sep_conv_3x3", 1)),) * nodes, tuple(range(2, 2 + nodes)))
    return Genotype((cell, cell), "plain")


def draw_random(seed: int, cells: int = 5, nodes: int = 4, operations: Sequence[str] = ()) -> Genotype:
    """Random operations (those of the search and identity) on two random inputs of every node."""
    dice, names = random.Random(f"cells {seed}"), list(operations) or [*SEARCHED, IDENTITY]
    made = []
    for _ in range(cells):
        picks = [sorted(dice.sample(range(2 + node), 2)) for node in range(nodes)]
        made.append(
            Cell(
                tuple(tuple((dice.choice(names), source) for source in pick) for pick in picks),
                tuple(range(2, 2 + nodes)),
            )
        )
    return Genotype(tuple(made), f"random-{seed}")


def permute(genotype: Genotype, seed: int) -> Genotype:
    """The same edges and as many of each operation in every cell, but the operations on other edges."""
    dice = random.Random(f"permuted {seed}")
    return Genotype(tuple(permute_cell(cell, dice) for cell in genotype.cells), f"{genotype.name}-permuted-{seed}")


def permute_cell(cell: Cell, dice: random.Random) -> Cell:
    names = [name for node in cell.nodes for name, _ in node]
    mixed = list(names)
    while mixed == names and len(set(names)) > 1:  # the same cell would be no other
        dice.shuffle(mixed)
    drawn = iter(mixed)
    nodes: list[tuple[Edge, ...]] = [tuple((next(drawn), source) for _, source in node) for node in cell.nodes]
    return Cell(tuple(nodes), cell.concat)
