"""The folder of a master: what was damaged, moved, mixed up or added meanwhile is told, and nothing else is refused."""

import json
import shutil
from pathlib import Path

import pytest
import torch
from nets import EXAMPLE, draw_task, hash_logits, learn_task, make_depthwise, make_vgg
from torch import nn

from firefly.continual import Master, learning
from firefly.continual.store import find_task, read_tasks
from firefly.errors import FireflyError


def learn_and_stop(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Master:
    """A master of one task, whose second one is stopped before it grows."""
    master = Master(make_vgg, EXAMPLE, folder)
    learn_task(master, 0, growths=0)
    with monkeypatch.context() as patch:
        patch.setattr(learning, "grow_round", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            learn_task(master, 1)
    return master


def test_a_task_that_was_learnt_after_another_one_is_refused(tmp_path: Path) -> None:
    """Its lists fit, so that nothing else would tell: its network would have the entries of another master."""
    learn_task(Master(make_vgg, EXAMPLE, tmp_path / "one"), 0, growths=0)
    shutil.copytree(tmp_path / "one", tmp_path / "other")
    for name, number in (("one", 1), ("other", 3)):
        master = Master(make_vgg, EXAMPLE, tmp_path / name)
        learn_task(master, number, pick="none", growths=0), learn_task(master, 2, growths=0)
    shutil.rmtree(tmp_path / "one" / "task-003")
    shutil.copytree(tmp_path / "other" / "task-003", tmp_path / "one" / "task-003")
    with pytest.raises(FireflyError, match=r"task-003 was learnt after another task than that in .*task-002"):
        Master(make_vgg, EXAMPLE, tmp_path / "one")


@pytest.mark.parametrize("text", ["", "[]", '{"na', "\ud800"])
def test_a_damaged_desk_says_what_to_delete(text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    master = learn_and_stop(tmp_path, monkeypatch)
    (tmp_path / "learning" / "network" / "checkpoint.json").write_bytes(text.encode(errors="surrogatepass"))
    with pytest.raises(FireflyError, match=r"altered.*or delete .*learning, to begin 'task 1' anew"):
        learn_task(master, 1)
    shutil.rmtree(tmp_path / "learning")
    learn_task(master, 1)


def test_what_lies_on_the_desk_is_not_taken_up_after_other_tasks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    master = learn_and_stop(tmp_path, monkeypatch)
    model, lists = master.begin(2)
    master.add("added", 2, lists, model, {})
    with pytest.raises(FireflyError, match="interrupted, with another number of tasks before it"):
        learn_task(master, 1)


def test_what_was_trained_with_other_labels_is_not_taken_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nor with the same in another order, of which other images were held out."""
    master = learn_and_stop(tmp_path, monkeypatch)
    images, labels = draw_task(1)
    monkeypatch.setattr("nets.draw_task", lambda *_: (images.flip(0), labels.flip(0)))
    with pytest.raises(FireflyError, match="interrupted, with another order or choice of labels"):
        learn_task(master, 1)


def test_a_task_is_kept_once() -> None:
    master = Master(make_vgg, EXAMPLE)
    learn_task(master, 0, growths=0)
    model, lists = master.begin(2)
    with pytest.raises(FireflyError, match="learnt already"):
        master.add("task 0", 2, lists, model, {})


def test_a_desk_of_any_learnt_task_is_cleared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    master = learn_and_stop(tmp_path, monkeypatch)
    with monkeypatch.context() as patch:
        patch.setattr("firefly.continual.desk.shutil.rmtree", lambda *_, **__: None)  # killed before it is cleared
        learn_task(master, 1)
    model, lists = master.begin(2)
    master.add("added", 2, lists, model, {})
    assert (tmp_path / "learning").exists()
    learn_task(master, 2, growths=0)
    assert list(master) == ["task 0", "task 1", "added", "task 2"] and not (tmp_path / "learning").exists()


@pytest.mark.parametrize("gone", ["master.json", "task-001", "."])
def test_a_folder_that_went_is_told_before_the_training(
    gone: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    master = Master(make_vgg, EXAMPLE, tmp_path / "master")
    learn_task(master, 0, growths=0)
    (tmp_path / "master" / gone).resolve().rename(tmp_path / "moved")
    monkeypatch.setattr(learning, "fit", lambda *_, **__: pytest.fail("it was trained before it was refused"))
    with pytest.raises(FireflyError, match="gone since the master was opened"):
        learn_task(master, 1)
    assert (tmp_path / "master").exists() == (gone != ".")


def test_files_of_other_names_are_no_tasks(tmp_path: Path) -> None:
    learn_task(Master(make_vgg, EXAMPLE, tmp_path), 0, growths=0)
    (tmp_path / "task-notes.txt").write_text("mine")
    shutil.copytree(tmp_path / "task-001", tmp_path / "task-001 (copy)")
    assert list(Master(make_vgg, EXAMPLE, tmp_path)) == ["task 0"]


def test_a_thousand_tasks_are_in_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(1, 1002):
        find_task(tmp_path, number).mkdir()
    monkeypatch.setattr("firefly.continual.store.read_task", lambda folder, number, before: number)
    monkeypatch.setattr("firefly.continual.store.read_checksum", str)
    assert list(read_tasks(tmp_path)) == list(range(1, 1002))


def test_a_head_or_a_type_of_another_make_is_refused(tmp_path: Path) -> None:
    def make_wide(classes: int) -> nn.Module:
        return nn.Sequential(*list(make_depthwise(classes))[:-1], nn.Linear(6 * 64, classes))

    master = Master(make_depthwise, EXAMPLE, tmp_path)
    learn_task(master, 0, growths=0)
    with pytest.raises(FireflyError, match=r"another small network: it differs in 9\.weight;"):
        Master(make_wide, torch.zeros(2, 1, 8, 8), tmp_path)
    with pytest.raises(FireflyError, match="another small network"):
        Master(lambda classes: make_depthwise(classes).double(), EXAMPLE.double(), tmp_path)
    path = tmp_path / "master.json"  # as an older Firefly wrote it
    told = json.loads(path.read_text())
    for tensor in told["blueprint"]["tensors"].values():
        tensor.pop("dtype"), tensor.pop("shape", None)
    path.write_text(json.dumps(told))
    assert hash_logits(Master(make_depthwise, EXAMPLE, tmp_path).network("task 0")) == hash_logits(
        master.network("task 0")
    )
