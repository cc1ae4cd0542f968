"""The commands on several ranks: `firefly grow` is as one process, an experiment writes each row once."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from crew import run_ranks
from safetensors.torch import load_file

from firefly.cli import main
from firefly.experiments import options, wider
from firefly.experiments.setting import Place, Setting, World
from firefly.vision.data import Images

HERE = Path(__file__).parent
GROW = [
    "grow",
    "user_code:make_model",
    "--data",
    "user_code:make_loaders",
    "--loss",
    "user_code:loss",
    "--device",
    "cpu",
]
GROW += ["--budget", "neurons=2", "--every", "2", "--epochs", "5", "--steps", "4", "--quiet", "--out"]
ALIKE = {"OMP_NUM_THREADS": "1", "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "0", "PYTHONPATH": os.pathsep.join(sys.path)}


def grow_on_rank(rank: int, folder: str) -> int:
    os.environ["RANKS"] = "2"
    return main([*GROW, folder])


def read_run(folder: Path) -> tuple[Any, dict[str, torch.Tensor]]:
    rows = [json.loads(line) for line in (folder / "history.jsonl").read_text().splitlines()]
    return [(row["event"], row["epoch"], row.get("added")) for row in rows], read_weights(folder)


def read_weights(folder: Path) -> dict[str, torch.Tensor]:
    kept = folder / json.loads((folder / "fit.json").read_text())["checkpoint"]
    return load_file(next(kept.glob("*.safetensors")))


def test_firefly_grow_on_two_ranks_is_as_one_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(HERE))
    assert run_ranks(2, grow_on_rank, str(tmp_path / "two")) == [0, 0]
    assert main([*GROW, str(tmp_path / "one")]) == 0
    (rows, weights), (told, other) = read_run(tmp_path / "one"), read_run(tmp_path / "two")
    assert told == rows and len(rows) == 7
    torch.testing.assert_close(other, weights, rtol=1e-9, atol=1e-9)


@pytest.mark.slow
def test_torchrun_restarts_firefly_grow_and_it_ends_the_same(tmp_path: Path) -> None:
    found = []
    for dies in ("", "1"):
        folder = tmp_path / f"run{dies}"
        options = ["--standalone", "--nproc-per-node=2", "--max-restarts=1", "-m", "firefly"]
        command = [sys.executable, "-m", "torch.distributed.run", *options, *GROW, str(folder)]
        told = os.environ | ALIKE | {"RANKS": "2", "DIES": dies}
        done = subprocess.run(command, capture_output=True, text=True, env=told, cwd=HERE)
        assert done.returncode == 0, done.stderr
        assert ("exitcode: -9" in done.stderr) is bool(dies) and done.stdout.count("now: firefly show") == 1
        found.append(read_weights(folder))
    torch.testing.assert_close(found[0], found[1], rtol=0, atol=0)


# ---- an experiment ---------------------------------------------------------------------------------------------------


def make_images(number: int) -> Images:
    images = torch.randint(0, 255, (number, 3, 8, 8), generator=torch.Generator().manual_seed(number))
    return Images(images.to(torch.uint8), torch.arange(number) % 3, 3, "cifar10")


def make_net(widths: Any) -> torch.nn.Module:
    size = 16 if widths == "full" else widths
    body = [torch.nn.Conv2d(3, size, 3, 4), torch.nn.BatchNorm2d(size), torch.nn.ReLU(), torch.nn.Flatten()]
    return torch.nn.Sequential(*body, torch.nn.Linear(4 * size, 3))


def measure(rank: int, folder: str) -> list[bool]:
    place = Place(torch.device("cpu"), Path(folder) / "runs", Path(folder) / "results.jsonl", say=lambda text: None)
    world = World("wider-vgg19", make_net, 4, make_images(48), make_images(30), place, report=(0.6,))
    setting = Setting(sizes=(0.4, 0.6), epochs=1, long=1, batch=16, lr=0.01, steps=2, candidates=4, child=1)
    late = replace(world, place=replace(place, deadline=-float(rank == 0)))  # only the first rank's clock says so
    done = [wider.measure(late, setting, "firefly", 0)]
    return [*done, *(wider.measure(world, setting, method, 0) for method in ("firefly", "nash", "firefly", "full"))]


def test_an_experiment_on_two_ranks_writes_each_row_once(tmp_path: Path) -> None:
    assert run_ranks(2, measure, str(tmp_path)) == [[False, True, True, True, True]] * 2
    found = options.read_rows(tmp_path / "results.jsonl")
    assert all(row["ranks"] == 2 for row in found)
    rows = [(row["method"], row["step"], row["final"]) for row in found]
    steps = [(1, False), (2, False), (2, True)]
    grown = [(method, *step) for method in ("firefly", "nash") for step in steps]
    assert rows == [("start", 0, False), *grown, ("full", 2, True)]
