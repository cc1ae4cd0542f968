"""A run in a folder: the user's files stay, no two work there at once, what was stopped goes on exactly."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from test_fit import NEVER, interrupt_after, make_data, make_grower, make_net, same, timeless, train
from torch import nn

from firefly import checkpoint
from firefly.descent import Firefly
from firefly.errors import FireflyError
from firefly.neighborhood.kinds import New, Split
from firefly.schedule import Plateau
from firefly.stages.budget import Neurons
from firefly.training import History, resume
from firefly.training.lock import hold

# ---- what is in the folder -------------------------------------------------------------------------------------------


def list_folder(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_what_a_user_keeps_there_stays(tmp_path: Path) -> None:
    for name in ("epoch-best", "epoch-2", "epoch-77", "epoch-1-0123abcd"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "notes.txt").write_text("mine")
    straight, _ = train(epochs=3)
    train(epochs=3, checkpoint=tmp_path)
    for name in ("epoch-best", "epoch-2", "epoch-77", "epoch-1-0123abcd"):
        assert [path.name for path in (tmp_path / name).iterdir()] == ["notes.txt"]
    assert list_folder(tmp_path) == ["epoch-1-0123abcd", "epoch-2", "epoch-3", "epoch-77", "epoch-best", "fit.json"]
    assert same(train(make_net(seed=9), epochs=3, checkpoint=tmp_path)[0], straight)


def test_a_save_that_fails_leaves_the_one_before(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    straight, expected = train(epochs=3)
    for name in ("replace_file", "delete"):
        calls, whole = [0], getattr(resume, name)

        def fail(*given: Any, calls: list[int] = calls, whole: Any = whole) -> None:
            calls[0] += 1
            if calls[0] == 2:
                raise OSError("the disk is full")
            whole(*given)

        with monkeypatch.context() as patch, pytest.raises(OSError, match="full"):
            patch.setattr(resume, name, fail)
            train(epochs=3, checkpoint=tmp_path / name)
        model, history = train(make_net(seed=9), epochs=3, checkpoint=tmp_path / name)
        assert same(model, straight) and timeless(history) == timeless(expected)
        assert list_folder(tmp_path / name) == ["epoch-3", "fit.json"]


def test_a_folder_of_which_nothing_came_goes(tmp_path: Path) -> None:
    with pytest.raises(FireflyError, match="shape"):
        train(loss=lambda model, batch: model(batch[0]), checkpoint=tmp_path / "run")
    assert not (tmp_path / "run").exists()
    (tmp_path / "file").write_text("")
    with pytest.raises(FireflyError, match="no folder to write to"):
        train(checkpoint=tmp_path / "file")


# ---- one at a time ---------------------------------------------------------------------------------------------------


def test_two_in_one_folder_are_refused(tmp_path: Path) -> None:
    with hold(tmp_path), pytest.raises(FireflyError, match=rf"another fit .*process {os.getpid()} on "):
        train(epochs=1, checkpoint=tmp_path)
    train(epochs=1, checkpoint=tmp_path)
    assert list_folder(tmp_path) == ["epoch-1", "fit.json"]


@pytest.mark.skipif(sys.platform == "win32", reason="it cannot lock")
def test_who_is_killed_lets_go_and_leaves_nothing_behind(tmp_path: Path) -> None:
    train(epochs=2, stop=lambda history: len(history) == 1, checkpoint=tmp_path)
    code = f"""
import sys, time
from firefly.training.lock import hold
with hold({str(tmp_path)!r}) as lock:
    lock.note("epoch-2")
    print("held", flush=True)
    time.sleep(100)
"""
    other = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    try:
        assert other.stdout is not None and other.stdout.readline() == "held\n"
        with pytest.raises(FireflyError, match=f"process {other.pid} on "):
            train(epochs=2, checkpoint=tmp_path)
    finally:
        other.kill()
        other.communicate()
    (tmp_path / "epoch-2").mkdir()  # it was writing that
    assert same(train(epochs=2, checkpoint=tmp_path)[0], train(epochs=2)[0])
    assert list_folder(tmp_path) == ["epoch-2", "fit.json"]


# ---- fit.json --------------------------------------------------------------------------------------------------------


def test_the_recipe_is_kept(tmp_path: Path) -> None:
    train(epochs=1, checkpoint=tmp_path, lr=0.03, stop=lambda history: False)
    recipe = json.loads((tmp_path / "fit.json").read_text())["recipe"]
    assert recipe["lr"] == 0.03 and recipe["stop"] == "a function" and recipe["loss"] is None
    assert recipe["device"] == "cpu" and recipe["precision"] == "float32" and recipe["images"] == 192


@pytest.mark.parametrize(
    "damage",
    [
        lambda text: text[:-20],
        lambda text: text.replace('"lr": 0.05', '"lr": 0.06', 1),
        lambda text: text.replace('"epoch": 1', '"epoch": 2', 1),
        lambda text: "[" * 100_000,
        lambda text: "[]",
        lambda text: "null",
        lambda text: '{"checkpoint": "../epoch-1", "recipe": {}, "history": {"epochs": []}}',
        lambda text: '{"checkpoint": "epoch-1", "recipe": 3, "history": {"epochs": []}}',
        lambda text: '{"checkpoint": "epoch-1", "recipe": {}, "history": {"epochs": [{"epoch": 1}]}}',
        lambda text: '{"checkpoint": "epoch-1", "recipe": {}, "history": {"epochs": 3}}',
    ],
)
def test_an_altered_file_is_refused(tmp_path: Path, damage: Any) -> None:
    train(epochs=1, checkpoint=tmp_path)
    path = tmp_path / "fit.json"
    path.write_text(damage(path.read_text()))
    with pytest.raises(FireflyError, match=r"fit\.json is damaged"):
        train(epochs=1, checkpoint=tmp_path)
    assert (tmp_path / "epoch-1").is_dir()


def test_an_interrupt_while_the_lock_is_given_back_leaves_nothing_locked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt), hold(tmp_path):
        patch.setattr(Path, "unlink", interrupt)
    with hold(tmp_path):
        assert list_folder(tmp_path) == ["fit.lock"]


def test_a_lock_that_names_nonsense_deletes_nothing(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "epoch-1").mkdir()
    for number, writing in enumerate([["epoch-1"], "../epoch-1", 3, "/", "epoch-best"], start=1):
        (tmp_path / "run" / "epoch-best").mkdir(exist_ok=True)
        (tmp_path / "run" / "fit.lock").write_text(json.dumps({"pid": "x", "writing": writing}))
        train(epochs=5, stop=lambda history, number=number: len(history) == number, checkpoint=tmp_path / "run")
        assert list_folder(tmp_path) == ["epoch-1", "run"]
        assert list_folder(tmp_path / "run") == [f"epoch-{number}", "epoch-best", "fit.json"]


def test_a_run_of_the_first_version_goes_on(tmp_path: Path) -> None:
    straight, expected = train(epochs=4)
    train(epochs=4, stop=lambda history: len(history) == 2, checkpoint=tmp_path)
    content = json.loads((tmp_path / "fit.json").read_text())
    known = ("epochs", "batch", "schedule", "augment", "precision", "seed", "label_smoothing", "images", "optimizer")
    old = {"checkpoint": content["checkpoint"], "recipe": {key: content["recipe"][key] for key in known}}
    (tmp_path / "fit.json").write_text(json.dumps(old | {"history": content["history"]}))
    with pytest.raises(FireflyError, match="made with cutout=0, this call has 2"):
        train(epochs=4, checkpoint=tmp_path, cutout=2)
    model, history = train(make_net(seed=9), epochs=4, checkpoint=tmp_path)
    assert same(model, straight) and timeless(history) == timeless(expected)


# ---- exactly ---------------------------------------------------------------------------------------------------------

OPTIMIZERS: dict[str, Any] = {
    "SGD": lambda p: torch.optim.SGD(p, 0.05, 0.9),
    "dampened": lambda p: torch.optim.SGD(p, 0.05, 0.9, dampening=0.5),
    "Adam": lambda p: torch.optim.Adam(p, 0.01),
    "NAdam": lambda p: torch.optim.NAdam(p, 0.01),
    "RAdam": lambda p: torch.optim.RAdam(p, 0.01),
    "ASGD": lambda p: torch.optim.ASGD(p, 0.05, t0=3),
    "Rprop": lambda p: torch.optim.Rprop(p, 0.01),
    "Adagrad": lambda p: torch.optim.Adagrad(p, 0.01),
    "Adadelta": lambda p: torch.optim.Adadelta(p, 0.5),
    "Adamax": lambda p: torch.optim.Adamax(p, 0.01),
    "RMSprop": lambda p: torch.optim.RMSprop(p, 0.01, momentum=0.9, centered=True),
}


@pytest.mark.parametrize("calls", [3, 8])
@pytest.mark.parametrize("kind", OPTIMIZERS)
def test_every_optimizer_resumes_exactly(tmp_path: Path, kind: str, calls: int) -> None:
    """Interrupted in the first epoch, in which its state is born, or in the second."""

    def go(seed: int = 1, **how: Any) -> tuple[nn.Module, History]:
        model = make_net(seed)
        return train(model, epochs=2, optimizer=OPTIMIZERS[kind](model.parameters()), **how)

    straight, expected = go()
    with pytest.raises(KeyboardInterrupt):
        go(loss=interrupt_after(calls), checkpoint=tmp_path)
    resumed, history = go(seed=99, checkpoint=tmp_path, loss=interrupt_after(NEVER))
    assert same(straight, resumed) and timeless(history) == timeless(expected)


def test_dampened_momentum_is_that_of_torch() -> None:
    """The first step of a buffer that is there, and zero, would be shorter."""
    one, other = make_net(dropout=0.0), make_net(dropout=0.0)
    how: dict[str, Any] = {"epochs": 1, "batch": 192, "schedule": "constant", "augment": False}
    train(one, optimizer=torch.optim.SGD(one.parameters(), 0.05, 0.9, dampening=0.5), **how)
    train(other, optimizer=torch.optim.SGD(other.parameters(), 0.05), **how)
    assert same(one, other)


@pytest.mark.parametrize("schedule", ["every", "plateau"])
def test_a_growth_due_when_it_stops_is_not_lost(tmp_path: Path, schedule: str) -> None:
    def make(seed: int = 1) -> tuple[nn.Module, Firefly]:
        model = make_net(seed, dropout=0.0)
        if schedule == "every":
            return model, make_grower(model)
        kinds, when = (Split(), New(3)), Plateau(1, threshold=10.0)  # never much better: due in every second epoch
        return model, Firefly(
            model, torch.zeros(2, 3, 8, 8), neighborhood=kinds, budget=Neurons(3), schedule=when, steps=2
        )

    straight, grower = make()
    _, expected = train(straight, epochs=5, grower=grower)
    assert [row.grown for row in expected.epochs] == [False, True, False, True, False]
    for after in (1, 2, 3, 4):
        model, grower = make()
        told = {"epochs": 5, "checkpoint": tmp_path / str(after)}
        _, part = train(model, grower=grower, stop=lambda history, after=after: len(history) == after, **told)
        assert len(part) == after and not part[-1].grown
        _, part = train(model, grower=grower, stop=lambda history, after=after: len(history) >= after, **told)
        assert len(part) == after and not part[-1].grown  # over at once
        model, grower = make(seed=99)
        _, history = train(model, grower=grower, **told)
        assert same(straight, model) and timeless(history) == timeless(expected) and len(grower.history) == 2


def test_a_checkpoint_of_a_run_is_an_ordinary_one(tmp_path: Path) -> None:
    model, _ = train(epochs=2, checkpoint=tmp_path)
    assert same(checkpoint.load(tmp_path / "epoch-2", make_net(seed=5)), model)
    train(epochs=2, checkpoint=tmp_path, test=make_data(30))  # finished: nothing is evaluated any more
