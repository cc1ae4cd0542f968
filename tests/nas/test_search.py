"""A search: every operation can grow, one cell at a time, within its share; stopped and taken up it finds the same."""

from collections.abc import Callable
from dataclasses import replace
from itertools import count
from pathlib import Path

import pytest
import torch

import firefly
from firefly.errors import FireflyError
from firefly.nas import searching as module
from firefly.nas.drawing import draw_genotype, draw_growth
from firefly.nas.growing import CellGrower, Looks, choose, draw_looks, make_budget
from firefly.nas.plan import Plan
from firefly.nas.searching import Searched, find_factor, read_search, search, write_search
from firefly.nas.template import Template, list_operations
from firefly.stages.selection import Ballot
from firefly.training.resident import upload
from firefly.vision.data import Images

PLAN = Plan((4,) * 5, (2,) * 5, (2,) * 5, nodes=1, sweeps=1, every=1, step_one=0.5, score_on=1, batch=8, inputs=2)


def make_images(count: int = 64) -> Images:
    labels = torch.arange(count) % 4
    generator = torch.Generator().manual_seed(0)
    images = torch.rand(count, 1, 8, 8, generator=generator) * 90 + labels[:, None, None, None] * 50
    return Images(images.to(torch.uint8), labels, 4, "mnist")


def make_template(start: int = 2) -> Template:
    torch.manual_seed(0)
    return Template((4,) * 5, start, 4, nodes=1, colours=1)


@pytest.fixture(scope="module")
def anatomy() -> firefly.Anatomy:
    return firefly.trace(make_template(), torch.randn(2, 1, 8, 8))


def retrace(anatomy: firefly.Anatomy) -> Callable[..., firefly.Anatomy]:
    """What `firefly.trace` would find, without its seconds."""
    return lambda model, example: anatomy.resized({path: one.width for path, _, one in list_operations(model)})


def run(folder: Path, anatomy: firefly.Anatomy, pieces: int) -> Searched:
    """A search, stopped after two epochs and taken up again if it is to be in two pieces."""
    clock, told = count(), {"folder": folder, "seed": 1, "device": "cpu", "progress": False}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(firefly, "trace", retrace(anatomy))
        patch.setattr(module.time, "monotonic", lambda: next(clock))
        if pieces == 2:
            assert search(make_images(), PLAN, deadline=1, **told) is None  # type: ignore[arg-type]
        searched = search(make_images(), PLAN, **told)  # type: ignore[arg-type]
    assert searched is not None
    return searched


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory, anatomy: firefly.Anatomy) -> Searched:
    return run(tmp_path_factory.mktemp("pieces"), anatomy, 2)


def test_every_operation_is_a_width_of_its_own(anatomy: firefly.Anatomy) -> None:
    operations = list(list_operations(make_template()))
    assert len(operations) == 5 * 2 * 4
    for path, _, operation in operations:
        assert anatomy[path].pinned is None
        assert anatomy[path].size == operation.width == 2
        assert anatomy[path].makers == (f"{path}.make.weight",)


def test_sleeping_operations_take_no_part() -> None:
    model = make_template(0)
    model(torch.randn(2, 1, 8, 8))
    norms = [
        one for _, _, op in list_operations(model) for one in op.modules() if isinstance(one, torch.nn.BatchNorm2d)
    ]
    assert norms and all(int(norm.num_batches_tracked) == 0 for norm in norms)


def test_growths_take_turns_and_their_share(found: Searched) -> None:
    assert [growth["cell"] for growth in found.growths] == [0, 1, 2, 3, 4]
    before = dict.fromkeys(found.growths[0]["widths"], 2)
    for growth in found.growths:
        more = {path: width - before[path] for path, width in growth["widths"].items()}
        assert all(not number or path.startswith(f"cells.{growth['cell']}.") for path, number in more.items())
        assert 0 < sum(more.values()) <= 8  # a quarter of 16 splits and 16 new ones
        assert sum(more.values()) == growth["split"] + growth["new"]
        assert set(growth["gains"]) == {path for path in more if path.startswith(f"cells.{growth['cell']}.")}
        before = growth["widths"]


@pytest.mark.slow
def test_in_one_piece_it_finds_the_same(found: Searched, anatomy: firefly.Anatomy, tmp_path: Path) -> None:
    whole = run(tmp_path, anatomy, 1)
    assert [growth["widths"] for growth in whole.growths] == [growth["widths"] for growth in found.growths]
    assert whole.genotype == found.genotype


def test_a_search_is_written_and_read(found: Searched, tmp_path: Path) -> None:
    path = write_search(found, tmp_path / "search-1.json")
    again = read_search(path)
    assert (again.plan, again.growths, again.genotype) == (found.plan, found.growths, found.genotype)
    path.write_text("{}")
    with pytest.raises(FireflyError, match="no search that can be read"):
        read_search(path)


def test_pictures_show_every_operation(found: Searched) -> None:
    from xml.etree import ElementTree

    cells, growth = ElementTree.fromstring(draw_genotype(found.genotype)), ElementTree.fromstring(draw_growth(found))
    space = "{http://www.w3.org/2000/svg}"
    arrows = [one.text for group in cells.iter(f"{space}g") if (one := group.find(f"{space}title")) is not None]
    assert arrows == [name for cell in found.genotype.cells for node in cell.nodes for name, _ in node]
    assert len(list(growth.iter(f"{space}polyline"))) == 5 * 4 * (2 + 1)  # per cell and operation: edges, and the mean


def test_images_of_gains_are_none_of_step_one() -> None:
    data = upload((torch.arange(64.0), torch.arange(64)), torch.device("cpu"))
    looks = draw_looks(data, PLAN, 0, 0)
    seen, held = ({int(x) for batch in part for x in batch[0]} for part in looks)
    assert not seen & held and len(seen) + len(held) == 64
    assert {len(batch[0]) for batch in looks.batches} == {8} and {len(batch[0]) for batch in looks.held} == {32}
    both = draw_looks(data, replace(PLAN, unseen=False), 0, 0)
    assert {int(x) for batch in both.batches for x in batch[0]} == set(range(64))


def test_both_readings_of_a_quarter() -> None:
    assert make_budget(PLAN, 0, [2] * 8).limits is not None
    of = {
        reading: make_budget(replace(PLAN, share_of=reading), 0, [2] * 8).count for reading in ("candidates", "neurons")
    }  # type: ignore[attr-defined]
    assert of == {"candidates": 8, "neurons": 4}
    asleep = make_budget(replace(PLAN, share_of="neurons"), 0, [0] * 8)
    assert asleep.count == 4  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("worth", "picks"),
    [
        ("neuron", {"sep": 1, "dil": 1}),  # the two best, wherever they are
        ("operation", {"dil": 2}),  # the better operation, whole
    ],
)
def test_what_candidates_are_ranked_by(anatomy: firefly.Anatomy, worth: str, picks: dict[str, int]) -> None:
    base = "cells.0.nodes.0.0.operations"
    keys = {f"{base}.sep_conv_3x3": torch.tensor([3.0, -1.0]), f"{base}.dil_conv_3x3": torch.tensor([2.0, 1.9])}
    ones = {name: torch.ones(2, dtype=torch.long) for name in keys}
    ballot = Ballot(anatomy, firefly.Neurons(2), keys, keys, {name: one > 0 for name, one in ones.items()}, ones)
    gains: dict[str, float] = {}
    chosen = choose(ballot, worth, gains)
    assert {name.split(".")[-1][:3]: len(slots) for name, slots in chosen.slots.items()} == picks
    assert gains == {f"{base}.sep_conv_3x3": 3.0, f"{base}.dil_conv_3x3": 3.9}


def test_a_channel_costs_the_same_in_all_operations_of_a_cell(anatomy: firefly.Anatomy) -> None:
    """So a ranking per parameter or per FLOP is the ranking by gain."""
    sizes = anatomy.sizes()
    names = [name for name in sizes if name.count(".") == 6 and ".operations." in name]
    for cell in range(5):
        mine = [name for name in names if name.startswith(f"cells.{cell}.")]
        more = [{**sizes, name: sizes[name] + 1} for name in mine]
        assert len(mine) >= 4 and len({(anatomy.parameters(one), anatomy.flops(one)) for one in more}) == 1


def test_asleep_operations_wake_up() -> None:
    plan = replace(PLAN, asleep=True)
    model, data = make_template(0), make_images(32)
    resident = upload(data, torch.device("cpu"))
    looks: Looks = draw_looks(resident, plan, 0, 0)
    grower = CellGrower(model, plan, looks.batches[0][0][:2])
    images = looks.batches[0][0]
    before = model.train()(images)
    growth = grower.grow(module.make_loss(torch.device("cpu")), looks)
    assert growth.woken and all(name.startswith("cells.0.") for name in growth.woken)
    assert not torch.equal(model(images), before)
    assert all(op.width != 1 for _, _, op in list_operations(model))


@pytest.mark.parametrize(
    "how",
    [
        {"worth": "luck"},
        {"start": (1, 2)},
        {"every": 0},
        {"keep": 0.0},
        {"keep": float("inf")},
        {"least": float("nan")},
        {"decide": "dice"},
    ],
)
def test_plans_are_checked(how: dict[str, object]) -> None:
    with pytest.raises(FireflyError, match=next(iter(how))):
        Plan(**how)  # type: ignore[arg-type]


def test_tables_tell_the_readings_of_the_paper_apart() -> None:
    plans = [Plan(), Plan(asleep=True, worth="operation"), Plan(share_of="neurons"), Plan(decide="gain")]
    assert [plan.title for plan in plans] == [
        "firefly",
        "firefly-asleep-operation",
        "firefly-neurons",
        "firefly-gain",
    ]


def test_the_learning_rate_falls_before_every_growth() -> None:
    plan = replace(PLAN, every=4)
    assert [find_factor(plan, float(4 * number)) for number in range(6)] == [1.0] * 6  # five rounds, and the last epoch
    assert all(find_factor(plan, 4 * number + 3.99) < 1e-4 for number in range(5))
    assert find_factor(plan, 20.99) < 1e-3


def test_ten_growths_take_a_hundred_epochs() -> None:
    plan = Plan()
    assert plan.growths == 10
    assert plan.growths * (plan.every + plan.step_one) == 100
