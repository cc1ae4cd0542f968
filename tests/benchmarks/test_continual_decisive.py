"""`benchmarks/continual_decisive.py`: every method has its line, sizes are waited for, what was stopped goes on."""

import os
import signal
import sys
import threading
import time
from argparse import Namespace
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))

from continual_decisive import PHASES, Job, is_measured, is_ready, list_jobs, main, read_arguments, run_job

from firefly.experiments.continual import plain
from firefly.experiments.continual.methods import METHODS
from firefly.experiments.rows import append, read_rows


def ask(folder: Path, *words: str) -> Namespace:
    return read_arguments([*words, "--runs", str(folder), "--device", "cpu"])


def test_every_method_is_measured_and_choices_are_made_on_held_out_images(tmp_path: Path) -> None:
    reported = {line.split()[0] for phase in ("test", "rest") for line in PHASES[phase]}
    assert reported == set(METHODS) - {"firefly-mask", "random"}  # a mask is the setting of all
    for phase in PHASES:
        jobs = list_jobs(ask(tmp_path, phase, "--set", "lr=0.3"))
        assert {job.seed for job in jobs} == ({100} if phase == "held-out" else {0, 1, 2})
        assert all(job.course.held_out is (phase == "held-out") for job in jobs)
        assert all(job.course.lr == 0.3 for job in jobs if "lr=" not in job.words)
    assert all("=" not in line for phase in ("test", "rest") for line in PHASES[phase])
    with pytest.raises(SystemExit):
        ask(tmp_path, "test", "--lines", "fireflies")


def test_who_is_as_large_as_firefly_waits_for_it(tmp_path: Path) -> None:
    how = ask(tmp_path, "held-out", "--quick")
    ours, sized = Job("firefly", 100, how), Job("ewc strength=7.0", 100, how)
    assert is_ready(ours) and not is_ready(sized) and not is_measured(ours)
    row = {"experiment": "continual", "method": "firefly", "seed": 100, "step": 4, "final": False, "parameters": 900}
    append(how.out, {**row, "config": plain(ours.course)})
    assert not is_ready(sized)
    append(how.out, {**row, "final": True, "config": plain(ours.course)})
    assert is_ready(sized) and is_measured(ours) and not is_measured(sized)
    assert not is_ready(Job("ewc lr=0.3", 100, how)) and not is_ready(Job("ewc", 101, how))


def test_what_was_stopped_goes_on(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    how = ask(tmp_path, "test", "--quick", "--lines", "individual", "--seeds", "3")
    (job,) = list_jobs(how)

    def end_time_after_a_task() -> None:
        while not (how.out.exists() and how.out.read_bytes().endswith(b"\n")):  # a whole row
            time.sleep(0.001)
        os.kill(os.getpid(), signal.SIGALRM)

    watch = threading.Thread(target=end_time_after_a_task, daemon=True)
    watch.start()
    assert run_job(job) == "stopped" and not is_measured(job)
    watch.join()
    assert read_rows(how.out)
    assert run_job(job) == "done" and is_measured(job)
    rows = read_rows(how.out)
    assert [row["step"] for row in rows] == list(range(5)) and rows[-1]["final"]
    main(["test", "--quick", "--lines", "individual", "--seeds", "3", "--runs", str(tmp_path)])
    assert read_rows(how.out) == rows and "all is measured" in capsys.readouterr().out
