"""The short campaign, a few dozen interrupts, kills and altered files; `benchmarks/campaign.py` is the long one."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

CAMPAIGN = Path(__file__).parents[1] / "benchmarks" / "campaign.py"


@pytest.mark.parametrize("attack", ["interrupts=30", "kills=6", "checkpoints=60", "archives=30"])
def test_nothing_is_torn_or_lost_or_fails_without_words(attack: str) -> None:
    command = [sys.executable, str(CAMPAIGN), "--attack", attack, "--seed", "7"]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=280)
    assert done.returncode == 0, done.stderr
    row = json.loads(done.stdout.splitlines()[-1])
    assert row["tried"] == int(attack.partition("=")[2])
    assert (row["changed"], row["lost"], row["raw"]) == (0, 0, 0), row["notes"]
