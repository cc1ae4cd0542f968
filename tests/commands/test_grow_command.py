"""`firefly grow` as a user types it: it grows, goes on exactly after a kill, and previews without a trace."""

import io
import json
import math
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

import firefly
from firefly.checkpoint.archive import read
from firefly.cli import main

MINE = '''
"""A model and data of a user's; the data hangs in an epoch that the environment names."""
import os
import time
from pathlib import Path

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def make_model():
    return nn.Sequential(nn.Linear(6, 3), nn.BatchNorm1d(3), nn.ReLU(), nn.Dropout(0.2), nn.Linear(3, 3))


class Hanging(DataLoader):
    epoch = -1  # whoever looks at the first batches beforehand counts, too

    def __iter__(self):
        Hanging.epoch += 1
        for number, batch in enumerate(super().__iter__()):
            if number == 1 and str(Hanging.epoch) == os.environ.get("HANG_IN"):
                Path("hangs").touch()
                time.sleep(100)
            yield batch


def make_loaders():
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(96, 6, generator=generator)
    y = (x[:, 0] * x[:, 1] > 0).long() + (x[:, 2] > 1)
    return Hanging(TensorDataset(x, y), 16, shuffle=True), DataLoader(TensorDataset(x, y), 48)
'''
OUTSIDE = os.environ | {"PYTHONPATH": str(Path(firefly.__file__).parents[1])}
WORDS = ["grow", "mine_here:make_model", "--data", "mine_here:make_loaders", "--budget", "neurons=2"]
WORDS += ["--every", "2", "--epochs", "6", "--steps", "3"]


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "mine_here.py").write_text(MINE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.delitem(sys.modules, "mine_here", raising=False)
    return tmp_path


def read_lines(folder: Path) -> list[dict[str, object]]:
    """The journal without what takes time."""
    rows = [json.loads(line) for line in (folder / "history.jsonl").read_text().splitlines()]
    return [{key: value for key, value in row.items() if key != "seconds"} for row in rows]


def read_weights(folder: Path) -> dict[str, torch.Tensor]:
    name = json.loads((folder / "fit.json").read_text())["checkpoint"]
    _, tensors = read(folder / name)
    return {key: tensor for key, tensor in tensors.items() if not key.startswith("rng")}


def same(one: Path, other: Path) -> bool:
    mine, theirs = read_weights(one), read_weights(other)
    return mine.keys() == theirs.keys() and all(torch.equal(mine[key], theirs[key]) for key in mine)


def test_a_run_killed_in_an_epoch_ends_as_one_that_was_not(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*WORDS, "--out", "whole", "--quiet"]) == 0
    said = capsys.readouterr().out
    assert "it grows 2 times, by at most neurons=2 each" in said and "test accuracy" in said

    command = [sys.executable, "-m", "firefly", *WORDS, "--out", "killed", "--quiet"]
    other = subprocess.Popen(command, env=OUTSIDE | {"HANG_IN": "5"}, stdout=subprocess.DEVNULL)
    try:
        deadline = time.monotonic() + 120
        while not (here / "hangs").exists() and other.poll() is None and time.monotonic() < deadline:
            time.sleep(0.05)
        assert other.poll() is None and (here / "hangs").exists()
    finally:
        other.send_signal(signal.SIGKILL)
        other.wait()
    whole = read_lines(here / "whole")
    before = read_lines(here / "killed")
    assert 3 <= len(before) < len(whole) and before == whole[: len(before)]  # it had grown, and had not ended
    with (here / "killed" / "history.jsonl").open("a") as file:
        file.write('{"event": "epo')  # half a line

    assert main([*WORDS, "--out", "killed", "--quiet"]) == 0
    assert "goes on after epoch" in capsys.readouterr().out
    assert same(here / "whole", here / "killed") and read_lines(here / "killed") == whole


def test_the_journal_tells_of_epochs_and_growths(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*WORDS, "--out", "run", "--quiet"]) == 0
    rows = read_lines(here / "run")
    assert [row["event"] for row in rows] == ["epoch", "epoch", "growth"] * 2 + ["epoch"] * 2
    epochs = [row for row in rows if row["event"] == "epoch"]
    cosine = [0.05 * (1 + math.cos(math.pi * k / 6)) for k in range(6)]
    assert [row["lr"] for row in epochs] == pytest.approx(cosine)
    sizes = [(row["parameters"], row["flops"]) for row in epochs]
    growths = [row for row in rows if row["event"] == "growth"]
    for growth, (before, after) in zip(growths, ((1, 2), (3, 4))):
        assert (growth["parameters"], growth["flops"]) == tuple(list(pair) for pair in zip(sizes[before], sizes[after]))
    assert all(0 <= row["test_accuracy"] <= 1 for row in rows if row["event"] == "epoch")
    capsys.readouterr()
    assert main([*WORDS, "--out", "run", "--quiet", "--lr", "0.1"]) == 0  # what it is anyway
    assert "is finished" in capsys.readouterr().out and read_lines(here / "run") == rows
    assert main([*WORDS, "--out", "run", "--lr", "0.5"]) == 2
    assert "was made with lr=0.1, this call has 0.5" in capsys.readouterr().err


def test_a_preview_changes_nothing_and_is_what_the_first_growth_looks_like(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (here / "runs" / "mine").mkdir(parents=True)
    (here / "runs" / "mine" / "fit.json").write_text("of another run")  # not asked for
    assert main([*WORDS, "--preview", "--quiet"]) == 0
    (here / "runs" / "mine" / "fit.json").unlink()
    said = capsys.readouterr().out
    assert "1 of 2 widths can grow" in said and "+2 neurons in 1 of 1 widths" in said
    assert sorted(path.name for path in here.iterdir() if path.name != "__pycache__") == ["mine_here.py", "runs"]
    assert list((here / "runs" / "mine").iterdir()) == []


def test_a_preview_of_a_run_starts_from_its_weights(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*WORDS, "--out", "run", "--quiet"]) == 0
    kept = {path: path.read_bytes() for path in (here / "run").rglob("*") if path.is_file()}
    assert main([*WORDS, "--out", "run", "--preview", "--quiet"]) == 0
    said = capsys.readouterr().out
    assert "after epoch 6 of run would now grow" in said and "0           7" in said
    assert main([*WORDS, "--budget", "neurons=1", "--every", "1", "--out", "run", "--preview", "--quiet"]) == 0
    said = capsys.readouterr().out  # another budget: what would come if ...
    assert "after epoch 6 of run would now grow" in said and "+1 neuron in 1 of 1 widths" in said
    assert kept == {path: path.read_bytes() for path in (here / "run").rglob("*") if path.is_file()}


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_on_a_terminal_a_growth_begins_a_line(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = Terminal()
    monkeypatch.setattr(sys, "stdout", terminal)
    monkeypatch.setattr(sys, "stderr", terminal)
    assert main([*WORDS, "--out", "run"]) == 0
    lines = [line.rpartition("\x1b[K")[2] for line in terminal.getvalue().splitlines()]
    assert [line.split(",")[0] for line in lines if "growth " in line] == ["growth 1", "growth 2"]
    assert any(line.startswith("epoch 6/6") for line in lines)


def test_a_checkpoint_of_the_run_is_an_ordinary_one(here: Path) -> None:
    assert main([*WORDS, "--out", "run", "--quiet"]) == 0
    from mine_here import make_model  # type: ignore[import-not-found]

    model = firefly.load(here / "run" / "epoch-6", make_model())
    assert model[0].out_features == 7
    again = firefly.load("run", make_model())  # the run itself: its last one
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), again.parameters(), strict=True))
    for text in ("{", "[]", "{}", '{"checkpoint": 5}'):
        (here / "run" / "fit.json").write_text(text)
        with pytest.raises(firefly.FireflyError, match=r"fit\.json names no checkpoint"):
            firefly.load("run", make_model())


@pytest.mark.parametrize("more", [["--optimizer", "adam", "--deepen"], ["--method", "gradmax", "--new", "2"]])
def test_other_ways_to_train_and_grow_go_on_exactly_too(here: Path, more: list[str]) -> None:
    words = [*WORDS, *more, "--quiet", "--out"]
    assert main([*words, "whole"]) == 0
    from mine_here import Hanging

    def stop(*_: object) -> None:
        raise KeyboardInterrupt

    Hanging.epoch = -1
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HANG_IN", "4")
        patch.setattr("mine_here.time.sleep", stop)
        assert main([*words, "stopped"]) == 130
    assert main([*words, "stopped"]) == 0
    assert same(here / "whole", here / "stopped") and read_lines(here / "whole") == read_lines(here / "stopped")


@pytest.mark.slow
def test_kills_at_any_moment(here: Path) -> None:
    assert main([*WORDS, "--out", "whole", "--quiet"]) == 0
    luck = random.Random(0)
    for _ in range(4):
        begin_and_kill(here / "killed", luck.uniform(0.0, 0.5))
    assert main([*WORDS, "--out", "killed", "--quiet"]) == 0
    assert same(here / "whole", here / "killed") and read_lines(here / "whole") == read_lines(here / "killed")
    assert sorted(path.name for path in (here / "killed").iterdir()) == ["epoch-6", "fit.json", "history.jsonl"]


def begin_and_kill(folder: Path, after: float) -> None:
    """Kill the command so many seconds after it took its folder."""
    lock = folder / "fit.lock"
    command = [sys.executable, "-m", "firefly", *WORDS, "--out", folder.name, "--quiet"]
    other = subprocess.Popen(command, env=OUTSIDE, stdout=subprocess.DEVNULL)
    while other.poll() is None and not (lock.exists() and f'"pid": {other.pid},' in lock.read_text()):
        time.sleep(0.01)
    time.sleep(after)
    other.kill()
    other.wait()
