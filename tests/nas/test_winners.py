"""From widths to cells: who wins, where nobody does, which inputs stay; and whether seeds agree."""

import random
from dataclasses import replace

import pytest

from firefly.errors import FireflyError
from firefly.nas.agreement import correlate, measure_agreement
from firefly.nas.operations import SEARCHED
from firefly.nas.plan import Plan
from firefly.nas.winners import Edge, Rival, find_winners, list_rivals, make_genotype, merge

PLAN = Plan(nodes=2, start=(4,) * 5)
EDGES: list[Edge] = [(cell, node, source) for cell in range(5) for node in (2, 3) for source in range(node)]
SEP3, SEP5, DIL3, DIL5 = SEARCHED


def make_edge(*widths: int, gains: tuple[float, ...] = (0.0,) * 4) -> list[Rival]:
    return [Rival(name, 4, width, gain) for name, width, gain in zip(SEARCHED, widths, gains)]


def make_rivals(**special: list[Rival]) -> dict[Edge, list[Rival]]:
    """All edges at their start, but those of the first cell that are named `e23`: node 2... of source 3."""
    found = {edge: make_edge(4, 4, 4, 4) for edge in EDGES}
    return found | {(0, int(name[1]), int(name[2])): edge for name, edge in special.items()}


def test_the_widest_operation_wins() -> None:
    won = find_winners(make_rivals(e20=make_edge(4, 9, 5, 6)), PLAN)
    assert won[0, 2, 0].operation == SEP5


def test_identity_where_nothing_grew_enough() -> None:
    rivals = make_rivals(e20=make_edge(4, 4, 4, 5))  # by 25 %
    assert find_winners(rivals, PLAN)[0, 2, 0].operation == DIL5
    assert find_winners(rivals, replace(PLAN, least=0.3))[0, 2, 0].operation == "skip_connect"
    assert find_winners(rivals, PLAN)[0, 2, 1].operation == "skip_connect"


def test_between_equal_widths_the_gain_decides_and_may_alone() -> None:
    rivals = make_rivals(e20=make_edge(8, 8, 6, 4, gains=(0.1, 0.2, 0.9, 0.0)))
    assert find_winners(rivals, PLAN)[0, 2, 0].operation == SEP5
    assert find_winners(rivals, replace(PLAN, decide="gain"))[0, 2, 0].operation == DIL3


def test_a_node_keeps_its_strongest_inputs() -> None:
    rivals = make_rivals(e30=make_edge(6, 4, 4, 4), e31=make_edge(4, 4, 4, 4), e32=make_edge(4, 4, 12, 4))
    won = find_winners(rivals, PLAN)
    assert make_genotype(won, PLAN).cells[0].nodes[1] == ((SEP3, 0), (DIL3, 2))
    assert len(make_genotype(won, replace(PLAN, inputs=3)).cells[0].nodes[1]) == 3


def test_a_log_is_read_with_the_gains_of_all_growths() -> None:
    path = "cells.3.nodes.1.2.operations.dil_conv_5x5"
    history = [{"widths": {path: 5}, "gains": {path: 0.25}}, {"widths": {path: 7}, "gains": {path: 0.5}}]
    assert list_rivals(history, PLAN) == {(3, 3, 2): [Rival("dil_conv_5x5", 4, 7, 0.75)]}


def draw_search(seed: int) -> dict[Edge, list[Rival]]:
    dice = random.Random(seed)
    return {edge: make_edge(*(dice.randint(4, 30) for _ in SEARCHED)) for edge in EDGES}


def test_equal_searches_agree_and_random_ones_do_not() -> None:
    same = measure_agreement([draw_search(0)] * 3, PLAN, shuffles=200)
    assert same.observed == 1 == pytest.approx(same.width) and same.kappa == 1 and same.p < 0.01
    assert set(same.by_cell) == {1.0} and sum(same.wins.values()) == pytest.approx(1)
    other = measure_agreement([draw_search(seed) for seed in range(10, 16)], PLAN, shuffles=200)
    assert abs(other.observed - other.chance) < 0.12 and other.p > 0.05 and abs(other.width) < 0.2


def test_a_favourite_operation_is_no_agreement_about_places() -> None:
    """Where one operation wins nearly everywhere, chance knows it."""
    first = {edge: make_edge(9, 4, 4, 4) for edge in EDGES}
    second = first | {EDGES[0]: make_edge(4, 9, 4, 4)}
    third = first | {EDGES[5]: make_edge(4, 9, 4, 4)}
    found = measure_agreement([second, third], PLAN, shuffles=200)
    assert found.observed > 0.9 and found.kappa < 0.05 and found.p > 0.5


def test_one_search_has_nothing_to_agree_with() -> None:
    with pytest.raises(FireflyError, match="at least two"):
        measure_agreement([draw_search(0)], PLAN)


def test_correlation() -> None:
    assert correlate([1, 2, 3], [2, 4, 6]) == pytest.approx(1)
    assert correlate([1, 2, 3], [5, 5, 5]) == 0


def test_merged_searches_add_up() -> None:
    one, other = (make_rivals(e20=make_edge(*widths, gains=(0.1,) * 4)) for widths in ((9, 8, 4, 4), (4, 8, 4, 4)))
    together = merge([one, other])
    assert together[0, 2, 0][1] == Rival(SEP5, 8, 16, pytest.approx(0.2))
    assert find_winners(one, PLAN)[0, 2, 0].operation == SEP3
    assert find_winners(together, PLAN)[0, 2, 0].operation == SEP5
    assert measure_agreement([one, other], PLAN, shuffles=10).grown[SEP5] == (pytest.approx(4 / 25), 0.0)
