"""New neurons that locked ones cannot hear (`listen=False`): their entries are 0 for ever, and nobody counts them."""

from pathlib import Path

import pytest
import torch
from nets import EXAMPLE, NETS, RECIPE, draw_task, hash_logits, learn_task
from recount import recount

import firefly
from firefly.continual import Master
from firefly.continual.ownership import find_heard
from firefly.errors import FireflyError
from firefly.tensors import Layout, Run

HOW = {"neighborhood": [firefly.Unlock(), firefly.New(2)], "budget": firefly.Neurons(8), "rank": "magnitude"}


@pytest.mark.parametrize("name", ["resnet", "depthwise"])
def test_locked_neurons_are_deaf_to_new_ones_and_later_tasks_leave_it_so(name: str, tmp_path: Path) -> None:
    master = Master(NETS[name], EXAMPLE, tmp_path)
    learn_task(master, 0)
    born = dict(master.born)
    learn_task(master, 1, listen=False, growths=2, **HOW)
    task, model = master["task 1"], master.network("task 1")
    answers = hash_logits(model)
    assert sum(task.unheard.values()) > 0
    silent = 0
    for key, layout in master.blueprint.shared.items():
        entries = model.get_parameter(key).detach()
        heard = find_heard(layout, task.lists, born, task.unheard).expand(entries.shape)
        silent += int((~heard).sum())
        assert not bool(entries[~heard].any())
        assert bool(entries[heard].any())
    assert silent > 0
    learn_task(master, 2)  # one that listens
    again = Master(NETS[name], EXAMPLE, tmp_path)
    assert hash_logits(master.network("task 1")) == hash_logits(again.network("task 1")) == answers
    assert recount(tmp_path)["union"] == again.parameters == master.parameters


def test_it_is_smaller_by_what_is_not_heard_and_copies_are_heard() -> None:
    masters = []
    for listen in (True, False):
        master = Master(NETS["mlp"], EXAMPLE)
        learn_task(master, 0)
        learn_task(master, 1, listen=listen, **HOW)
        masters.append(master)
    hears, deaf = masters
    growth = deaf["task 1"].told["growths"][0]["added"]
    assert growth == hears["task 1"].told["growths"][0]["added"]  # the same neurons are chosen
    first, second = (name for name in deaf.born)  # the second width reads the first
    copies, new = growth[first].get("unlock", 0), growth[first].get("new", 0)
    old = int((deaf["task 1"].lists[second] < len(deaf["task 0"].lists[second])).sum())
    assert copies > 0 and new > 0 and old > 0
    assert hears.count("task 1") - deaf.count("task 1") == old * new


def test_what_is_not_heard_is_held_at_zero() -> None:
    master = Master(NETS["vgg"], EXAMPLE)
    learn_task(master, 0)
    lists, two = {name: torch.arange(size + 2) for name, size in master.born.items()}, dict.fromkeys(master.born, 2)
    held = master.hold(master.begin(3)[0], lists, two)
    (one,) = (one for one in held if one.kept.shape[0] == len(lists["4"]))
    rows, columns = (master.born[name] for name in ("4", "0"))
    assert not bool(one.free[:rows].any()) and bool(one.free[rows:].all())
    assert bool(one.kept[:rows, :columns].any()) and not bool(one.kept[:rows, columns:].any())


def test_what_listen_may_be() -> None:
    with pytest.raises(FireflyError, match=r"listen='no': give True or False"):
        Master(NETS["mlp"], EXAMPLE).learn("x", draw_task(0), classes=3, recipe=RECIPE, listen="no")  # type: ignore[arg-type]
    lists = {"a": torch.tensor([0, 3]), "b": torch.tensor([1, 4, 2])}
    layout = Layout("w", ((Run("a", 0),), (Run("b", 0, 2),)), ("makes", "reads"))
    heard = find_heard(layout, lists, {"a": 3, "b": 3}, {"b": 1})
    assert heard.tolist() == [[True] * 4 + [False] * 2, [True] * 6]
