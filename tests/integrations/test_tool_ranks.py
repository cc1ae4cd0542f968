"""Accelerate and the Hugging Face Trainer on two ranks: they grow alike, and go on averaging every gradient."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from checkpoint.runs import same

HERE = Path(__file__).parent


@pytest.mark.slow
@pytest.mark.parametrize("tool", ["accelerate", "transformers"])
def test_two_ranks_grow_and_train_as_one(tmp_path, tool):
    pytest.importorskip(tool)
    paths = os.pathsep.join([str(HERE.parent), str(HERE), os.environ.get("PYTHONPATH", "")])
    environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": paths}
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    command += [str(HERE / "tool_ranks.py"), tool, str(tmp_path)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=280)
    assert done.returncode == 0, done.stdout + done.stderr
    (growths, one), (_, other) = (torch.load(tmp_path / f"{rank}.pt") for rank in (0, 1))
    assert growths >= 2
    weights = [name for name in one if "running" not in name]  # each rank has statistics of its own batches
    assert all(same(one[name], other[name]) for name in weights)
