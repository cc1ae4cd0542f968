"""`fit` on several ranks trains as one process does, and goes on exactly after a rank was killed.

In float64, as in test_growth_on_ranks.py; the mean loss of an epoch is kept in float32.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import rank_nets as nets
import torch
from crew import GONE, run_ranks
from torch import nn

import firefly
from firefly.training import History, fit

CLOSE = {"rtol": 1e-9, "atol": 1e-9}
EXAMPLE = torch.zeros(2, 6, dtype=torch.float64)
HOW = {"batch": 12, "lr": 0.05, "progress": False, "device": "cpu", "loss": nets.loss, "augment": False}


def make_data(count: int, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    random = torch.Generator().manual_seed(seed)
    inputs = torch.randn(count, 6, generator=random, dtype=torch.float64)
    return inputs, inputs[:, :3].argmax(1)


def train(net: str, epochs: int = 5, **how: Any) -> tuple[Any, ...]:
    """A training with two growths: the tensors at its end, the history, and what was grown."""
    model = nets.MAKERS[net]()
    kinds = [firefly.Split(), firefly.New(4)]
    schedule = firefly.Every(2)
    grower = firefly.Firefly(
        model, EXAMPLE, neighborhood=kinds, budget=firefly.Neurons(2), schedule=schedule, steps=5, evaluate_on=2
    )
    history = fit(model, make_data(50, 0), epochs, test=make_data(17, 1), grower=grower, **HOW, **how)
    added = [growth["added"] for growth in grower.history]
    average = {} if history.average is None else history.average.state_dict()
    return model.state_dict(), average, tell(history), added


def tell(history: History) -> list[Any]:
    return [(row.loss, row.test_accuracy, row.test_loss, row.parameters, row.grown) for row in history.epochs]


def fit_rank(rank: int) -> Any:
    torch.manual_seed(rank)  # the seed of a run does not depend on it
    return [train("mlp", ema=0.9), train("normed")]


@pytest.mark.parametrize("ranks", [2, 3])
def test_ranks_train_as_one_process(ranks: int) -> None:
    everyone = run_ranks(ranks, fit_rank)
    tensors, average, rows, added = train("mlp", ema=0.9)
    assert len(added) == 2
    for plain, normed in everyone:
        torch.testing.assert_close(plain[0], tensors, **CLOSE)
        torch.testing.assert_close(plain[1], average, **CLOSE)
        assert plain[2] == [pytest.approx(row, rel=1e-6) for row in rows] and plain[3] == added
        assert normed[2:] == everyone[0][1][2:]  # each norms its own part: not as one process, and the same on all
        torch.testing.assert_close(normed[0], everyone[0][1][0], rtol=0, atol=0)


# ---- a rank is killed ------------------------------------------------------------------------------------------------


def fit_and_die(rank: int, folder: str, dies: int | None) -> Any:
    def each_epoch(epoch: int, history: History, model: nn.Module) -> None:
        if rank == 1 and epoch == dies:
            os.kill(os.getpid(), signal.SIGKILL)

    return train("normed", 6, checkpoint=folder, each_epoch=each_epoch)


def test_a_run_whose_rank_was_killed_goes_on_exactly(tmp_path: Path) -> None:
    whole = run_ranks(2, fit_and_die, str(tmp_path / "whole"), None)
    first, second = run_ranks(2, fit_and_die, str(tmp_path / "torn"), 4, patience=20)
    assert second == GONE and first[0] == "FireflyError" and "ranks cannot be reached" in first[1]
    assert [path.name for path in (tmp_path / "torn").iterdir()].count("fit.json") == 1
    again = run_ranks(2, fit_and_die, str(tmp_path / "torn"), None)
    for one, other in zip(whole, again):
        torch.testing.assert_close(other[0], one[0], rtol=0, atol=0)
        assert other[2:] == one[2:]
    assert sorted(path.name for path in (tmp_path / "torn").iterdir()) == ["epoch-6", "fit.json"]


# a restart would read the dead processes' addresses in the store: https://github.com/pytorch/pytorch/issues/135712
ALIKE = {"OMP_NUM_THREADS": "1", "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}

SCRIPT = """
import os, signal, sys, torch
sys.path[:0] = {paths!r}
import torch.distributed as dist
from test_fit_on_ranks import train

dist.init_process_group("gloo")
first = os.environ["TORCHELASTIC_RESTART_COUNT"] == "0"

def each_epoch(epoch, history, model):
    if {dies} and first and dist.get_rank() == 1 and epoch == 3:
        os.kill(os.getpid(), signal.SIGKILL)

found = train("normed", 6, checkpoint={folder!r}, each_epoch=each_epoch)
if dist.get_rank() == 0:
    torch.save(found[0], {folder!r} + ".pt")
dist.destroy_process_group()
"""


@pytest.mark.slow
def test_torchrun_restarts_a_killed_run_and_it_ends_the_same(tmp_path: Path) -> None:
    found = []
    for dies in (False, True):
        folder = str(tmp_path / f"run-{dies}")
        script = tmp_path / f"{dies}.py"
        script.write_text(SCRIPT.format(paths=[str(Path(__file__).parent)], folder=folder, dies=dies))
        options = ["--standalone", "--nproc-per-node=2", "--max-restarts=3"]  # torch may abort at the end, too
        command = [sys.executable, "-m", "torch.distributed.run", *options, str(script)]
        done = subprocess.run(command, capture_output=True, text=True, env=os.environ | ALIKE)
        assert done.returncode == 0, done.stderr
        assert bool(re.search("Signal 9|SIGKILL|exitcode: -9", done.stderr)) is dies
        found.append(torch.load(folder + ".pt"))
    torch.testing.assert_close(found[0], found[1], rtol=0, atol=0)


# ---- what is wrong ---------------------------------------------------------------------------------------------------


def go_wrong(rank: int, how: str, folder: str) -> Any:
    if how == "batch":
        return fit(nets.make_mlp(), make_data(50, 0), 1, **HOW | {"batch": 11})
    if how == "recipe":
        return fit(nets.make_mlp(), make_data(50, 0), 1, **HOW | {"lr": 0.1 + rank})
    if how == "folder":
        return fit(nets.make_mlp(), make_data(50, 0), 1, **HOW, checkpoint=folder)
    model = nets.make_mlp()
    loss = HOW["loss"] if rank == 0 else lambda model, batch: nets.loss(model[:3], batch)
    return fit(model, make_data(50, 0), 1, **HOW | {"loss": loss})


WRONG = {
    "batch": r"batch=11 cannot be shared by 2 ranks.*multiple of 2",
    "recipe": r"the ranks differ in fit: .*",
    "folder": r"is no folder to write to",
    "loss": r"the ranks differ in the parameters that the loss depends on",
}


@pytest.mark.parametrize("how", WRONG)
def test_what_is_wrong_is_told_on_every_rank(how: str, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for told in run_ranks(2, go_wrong, how, str(tmp_path / "file")):
        assert told[0] == "FireflyError" and re.search(WRONG[how], told[1]), told
