"""Genotypes: what is written is read again, in both forms; nonsense is refused in words; nothing is ever run."""

import json
from pathlib import Path

import pytest

from firefly.errors import FireflyError
from firefly.nas import Cell, Genotype, draw_random, find_known, permute, read_genotype
from firefly.nas.known import TEXTS, make_plain

GOOD = TEXTS["darts-v2"]


@pytest.mark.parametrize("genotype", [find_known("p-darts"), draw_random(3), draw_random(1, cells=2), make_plain(2)])
def test_what_is_written_is_read_again(genotype: Genotype, tmp_path: Path) -> None:
    assert read_genotype(str(genotype)).cells == genotype.cells
    assert read_genotype(json.dumps(genotype.to_dict())) == genotype
    path = tmp_path / "found.json"
    path.write_text(json.dumps(genotype.to_dict()))
    assert read_genotype(path) == genotype == read_genotype(str(path))


def test_five_cells_are_three_lines_of_darts() -> None:
    genotype = draw_random(0)
    first, second, third = (read_genotype(line).cells for line in str(genotype).splitlines())
    assert (*first, *second, third[0]) == genotype.cells
    assert third[1] == genotype.cells[3]


def test_as_darts_prints_it() -> None:
    text = GOOD.replace("[2, 3, 4, 5]", "range(2, 6)")
    assert read_genotype(f"DARTS_V2 = {text}").cells == find_known("darts-v2").cells


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "holds 0 genotypes"),
        ("print('hello')", "not Genotype"),
        ("Genotype(normal=__import__('os').listdir('.'))", "does not read"),
        ("Genotype(normal=[('sep_conv_3x3', 0)], normal_concat=[2], reduce=[], reduce_concat=[2])", "1 operations"),
        (GOOD.replace("normal_concat", "concat"), "normal_concat"),
        (GOOD.replace("dil_conv_3x3", "dil_conv_9x9"), "dil_conv_9x9"),
        (GOOD.replace("('dil_conv_3x3', 2)", "('dil_conv_3x3', 5)"), "node 5 reads 5"),
        (GOOD.replace("[2, 3, 4, 5]", "[2, 9]"), "from 2 to 5"),
        (GOOD.replace("[2, 3, 4, 5]", "range(1000000000000)"), "from 2 to 5"),  # and no memory is filled with it
        ('{"cells": 3}', "does not read"),
        ('{"cells": []}', "a genotype of 0"),
        ("{", "not JSON"),
        ("nowhere.json", "cannot be read"),
    ],
)
def test_nonsense_is_refused(text: str, said: str) -> None:
    with pytest.raises(FireflyError, match=said):
        read_genotype(text)


def test_more_than_two_operations_have_no_text() -> None:
    cell = Cell(((("sep_conv_3x3", 0), ("skip_connect", 1), ("dil_conv_3x3", 0)),), (2,))
    genotype = Genotype((cell, cell))
    assert read_genotype(genotype.to_dict()) == genotype
    with pytest.raises(FireflyError, match="two operations per node"):
        str(genotype)


def test_random_cells_follow_their_seed() -> None:
    assert draw_random(1) == draw_random(1) != draw_random(2)


def test_permuted_cells_have_the_same_edges_and_operations() -> None:
    genotype = draw_random(4)
    other = permute(genotype, 0)
    assert other.cells != genotype.cells
    for before, after in zip(genotype.cells, other.cells):
        edges = [edge for node in before.nodes for edge in node], [edge for node in after.nodes for edge in node]
        assert [source for _, source in edges[0]] == [source for _, source in edges[1]]
        assert sorted(name for name, _ in edges[0]) == sorted(name for name, _ in edges[1])


def test_permuted_cells_are_others() -> None:
    """Also where half of the shuffles of two operations leave them as they are."""
    cell = Cell(((("sep_conv_3x3", 0), ("skip_connect", 1)),), (2,))
    alike = Cell(((("skip_connect", 0), ("skip_connect", 1)),), (2,))
    for seed in range(8):
        mixed, same = permute(Genotype((cell, alike)), seed).cells
        assert mixed != cell and same == alike


def test_a_file_of_text_that_ends_like_a_name_or_begins_with_a_mark(tmp_path: Path) -> None:
    path = tmp_path / "loop.txt"
    path.write_text(str(path))
    with pytest.raises(FireflyError):
        read_genotype(path)
    path.write_text("\ufeff" + str(find_known("darts-v2")))
    assert read_genotype(path).cells == find_known("darts-v2").cells
