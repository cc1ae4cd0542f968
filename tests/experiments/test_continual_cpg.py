"""Prune, pick and grow: what a task owns stays, masks switch older weights, compaction leaves what it should."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import nn

from firefly.continual.blueprint import read_blueprint
from firefly.continual.lock import Held
from firefly.experiments.continual import QUICK
from firefly.experiments.continual import cpg as continual_cpg
from firefly.experiments.continual.classroom import Class
from firefly.experiments.continual.course import Course, list_parts
from firefly.experiments.continual.cpg import Learnt, Picked, Union, prune, rebuild, run_cpg, set_apart, switch

TINY = replace(QUICK, widths=2, epochs=5, first_epochs=2, mask_epochs=1, images=90)


@pytest.fixture
def make_room(tmp_path: Path) -> Callable[[Course], Class]:
    def make(course: Course) -> Class:
        return Class(course, list_parts(course, 3, None)[:3], torch.device("cpu"), tmp_path / "cpg", 3, 3000)

    return make


def test_images_are_set_apart_to_choose_by_where_others_train_on_all(make_room: Callable[[Course], Class]) -> None:
    whole = make_room(replace(TINY, aside=False)).parts
    for part, mine in ((part, set_apart(part, 2)) for part in whole):
        assert part.valid is None and len(mine.valid.labels) == 9
        assert len(mine.train.labels) + 9 == len(part.train.labels) == 90
        assert set_apart(mine, 2) is mine


@pytest.mark.parametrize("goal", [0.0, 1.0])
def test_what_a_task_owns_stays_and_the_size_is_what_they_own(
    goal: float, make_room: Callable[[Course], Class], monkeypatch: pytest.MonkeyPatch
) -> None:
    room, seen = make_room(replace(TINY, until=goal)), list[tuple[Union, Learnt]]()
    settle, images = continual_cpg.settle, torch.rand(3, 1, 14, 14)
    answers: list[torch.Tensor] = []

    def watch(union: Union, number: int, model: Picked, spent: dict[str, int]) -> Learnt:
        task = settle(union, number, model, spent)
        assert torch.allclose(rebuild(union, task).eval()(images), model.eval()(images), atol=1e-6)
        seen.append((union, task))
        answers.append(rebuild(union, task).eval()(images))
        return task

    monkeypatch.setattr(continual_cpg, "settle", watch)
    rows = list(run_cpg(room))
    assert [len(scores) for scores, _, _ in rows] == [1, 2, 3]
    assert all(scores["task 1"] == rows[0][0]["task 1"] for scores, _, _ in rows)
    union = seen[-1][0]
    for (_, task), before in zip(seen, answers):
        assert torch.equal(rebuild(union, task).eval()(images), before)
    buffers = {name for name, _ in rebuild(union, seen[0][1]).named_buffers()}
    private = sum(one.numel() for _, task in seen for name, one in task.private.items() if name not in buffers)
    owned = sum(int(owners.bool().sum()) for owners in union.owners.values())
    assert rows[-1][1] == owned + private <= 3000
    assert set(torch.cat([one.flatten() for one in union.owners.values()]).tolist()) <= {0, 1, 2, 3}
    wide = [more["widths"] for _, _, more in rows]
    assert (wide[0] < wide[-1] == union.most) is (goal == 1)  # it is widened where the goal is missed
    kept = [int((union.owners[name] == 1).sum()) for name in union.owners]
    if not goal:  # every stage of compaction was good enough
        first = [torch.zeros(seen[0][1].used[name].shape) for name in union.owners]
        assert kept == [one.numel() - round(0.95 * one.numel()) for one in first]


def test_tasks_share_what_is_left_of_the_widest_network(make_room: Callable[[Course], Class]) -> None:
    room = make_room(TINY)
    blueprint = read_blueprint(lambda classes: room.make(classes, 2), torch.zeros(2, 1, 14, 14))
    union = Union(room, blueprint, 6)
    union.widen(4, 0)
    whole, free = (9 * width + 2 * 9 * width**2 for width in (6, 4))
    assert union.find_least(5) == pytest.approx(1 - whole / 5 / free)
    assert union.find_least(1) == 0  # the last one may have all
    list(union.owners.values())[1][:, :2] = 1
    assert union.find_least(4) == pytest.approx(1 - (whole - 72) / 4 / (free - 72))


def test_a_mask_switches_weights_and_its_gradient_goes_straight_through() -> None:
    network = nn.Linear(3, 2, bias=False)
    old = torch.tensor([[True, True, False], [False, False, False]])
    model = Picked(network, {"weight": old})
    with torch.no_grad():
        model.masks[0][0, 0] = -0.1
    x = torch.randn(4, 3)
    expected = network.weight.detach().clone()
    expected[0, 0] = 0
    assert torch.allclose(model(x), x @ expected.T)
    assert model.picks["weight"].tolist() == [[False, True, False], [False, False, False]]
    model(x).square().sum().backward()
    assert bool(model.masks[0].grad[0, 0]) and not bool(model.masks[0].grad[1].any())  # what is off may come back
    assert float(model.masks[0].grad.square().mean()) == pytest.approx(1)
    assert not bool(network.weight.grad[0, 0])
    assert switch(torch.tensor([0.2, -0.2])).tolist() == [1, 0]


def test_the_smallest_of_the_free_weights_go_a_few_in_every_epoch() -> None:
    weight = nn.Parameter(torch.tensor([0.1, -5.0, 3.0, 0.2, -0.3, 1.0]))
    owners = torch.tensor([1, 0, 0, 0, 0, 0], dtype=torch.uint8)
    union = Union(None, None, 1, owners={"w": owners})  # type: ignore[arg-type]
    held = [Held(weight, owners == 0, torch.zeros(6))]
    left = []
    for epoch in range(4):
        prune(union, held, 4, (0.0, 0.8), epoch)
        left.append(held[0].free.tolist())
    assert left[-1] == [False, True, False, False, False, False]  # one of five; the first is another task's
    assert [sum(one) for one in left] == [1 if k else 5 - round(5 * 0.8 * (1 - 0.5**3)) for k in range(4)]
