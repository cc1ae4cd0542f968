"""`benchmarks/nas_time.py`: the fastest form of a step is written down; one that fails is left out; nas.sh reads it."""

import random
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from firefly.errors import FireflyError
from firefly.experiments.nas import read_loop

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))
import nas_time


@pytest.mark.parametrize("job", nas_time.TIMED)
def test_a_step_is_timed(job: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nas_time, "STEPS", 1)
    monkeypatch.setattr(nas_time, "EPOCHS", 2)
    how = read_loop(["dense=true", "precision=float32", "channels_last=false"])
    assert 0 < nas_time.TIMED[job](how, "quick", 4, torch.device("cpu")) < 60


def test_the_fastest_form_is_written_down(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def pretend(how: dict[str, object], size: str, batch: int | None, device: torch.device) -> float:
        if how["precision"] == "float32":
            raise FireflyError("the loss became nan") if how["dense"] else RuntimeError("out of memory")
        return 0.25 if how["dense"] and not how["channels_last"] else 0.5

    monkeypatch.setattr(nas_time, "TIMED", {"search": pretend, "evaluate": pretend})
    monkeypatch.setattr(sys, "argv", ["nas_time.py", "--quick", "--device", "cpu", "--out", str(tmp_path)])
    nas_time.main()
    told = "dense=true precision=bf16 channels_last=false\n"
    assert (tmp_path / "fast-search").read_text() == (tmp_path / "fast-evaluate").read_text() == told
    assert len((tmp_path / "times.jsonl").read_text().splitlines()) == 2 * 4


def test_the_script_passes_the_form_on(tmp_path: Path) -> None:
    """With a stand-in for Python that tells what it was called with."""
    python, runs = tmp_path / "python", tmp_path / "runs"
    runs.mkdir()
    python.write_text('#!/bin/sh\necho "$@"\n')
    python.chmod(0o755)
    (runs / "fast-search").write_text("dense=true precision=bf16\n")
    script = Path(__file__).parents[2] / "benchmarks" / "nas.sh"
    settings = {"PATH": "/usr/bin:/bin", "PYTHON": str(python), "RUNS": str(runs), "SEEDS": "7", "SEARCH": "--asleep"}
    settings |= {"ARCHIVE": str(tmp_path / "all.tgz"), "ROWS": str(tmp_path / "rows.jsonl")}
    told = subprocess.run(["bash", script, "search"], env=settings, capture_output=True, text=True, check=True).stdout
    assert told.startswith("[7] -m firefly nas search --seeds 7 --asleep --runs")
    assert told.rstrip().endswith("--fit dense=true precision=bf16") and f"--out {tmp_path}/rows.jsonl" in told


def test_what_is_under_way_is_packed_in_parts_and_unpacked(tmp_path: Path) -> None:
    runs, script = tmp_path / "runs", Path(__file__).parents[2] / "benchmarks" / "nas.sh"
    (runs / "evaluations").mkdir(parents=True)
    (runs / "evaluations" / "weights").write_bytes(data := random.Random(0).randbytes(16 * 2**20))
    settings = {"PATH": "/usr/bin:/bin", "PYTHON": "true", "RUNS": str(runs), "ARCHIVE": str(tmp_path / "all.tgz")}
    subprocess.run(["bash", script, "time"], env=settings, check=True)
    parts = sorted(path.name for path in tmp_path.glob("all*"))
    assert parts == ["all.tgz.00", "all.tgz.01"]
    shutil.rmtree(runs)
    subprocess.run(["bash", script, "time"], env=settings, check=True)
    assert (runs / "evaluations" / "weights").read_bytes() == data
    shutil.rmtree(runs)
    (tmp_path / "all.tgz.01").unlink()
    told = subprocess.run(["bash", script, "time"], env=settings, check=True, capture_output=True, text=True).stdout
    assert "begun anew" in told and not any(runs.iterdir())


def test_the_evaluation_waits_for_the_searches_of_this_plan(tmp_path: Path) -> None:
    """With a stand-in for Python that has searched seed 0 by one plan only."""
    python, runs = tmp_path / "python", tmp_path / "runs"
    runs.mkdir()
    (runs / "search-10.json").touch()
    plan = '*"--seeds 0 --set sweeps=3"*'
    python.write_text(f'#!/bin/bash\n[[ "$*" != *"--minutes 0" || "$*" == {plan} ]] || echo time is up\necho "$@"\n')
    python.chmod(0o755)
    script = Path(__file__).parents[2] / "benchmarks" / "nas.sh"
    settings = {"PATH": "/usr/bin:/bin", "PYTHON": str(python), "RUNS": str(runs), "SEEDS": "0", "FIT": "dense=true"}
    for search, searched in (("", False), ("--asleep", False), ("--set sweeps=3", True)):
        how = settings | {"SEARCH": search}
        told = subprocess.run(["bash", script], env=how, capture_output=True, text=True, check=True).stdout
        assert ("nas evaluate" in told, "[0] -m firefly nas search" in told) == (searched, not searched)
