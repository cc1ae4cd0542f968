"""The short campaign, a few dozen interrupts, kills and altered files; `benchmarks/campaign.py` is the long one."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).parents[1] / "benchmarks"


@pytest.mark.parametrize("attack", ["interrupts=30", "kills=6", "checkpoints=60", "archives=30"])
def test_nothing_is_torn_or_lost_or_fails_without_words(attack: str) -> None:
    command = [sys.executable, str(BENCHMARKS / "campaign.py"), "--only", attack, "--seed", "7"]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=280)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == "0 models changed, 0 runs lost, 0 raw exceptions", done.stdout
