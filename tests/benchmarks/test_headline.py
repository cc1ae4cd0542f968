"""`benchmarks/headline.py`: the same trials for every network, and the test images only with the best of them."""

import json
import sys
from argparse import Namespace
from dataclasses import replace
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))

import headline
import pytest
from headline import GRID, NETWORKS, Job, choose, is_ready, list_jobs

from firefly.experiments.lineage import Line


def ask(folder: Path, **how: Any) -> Namespace:
    return Namespace(
        **{
            "quick": False,
            "epochs": 200,
            "grid_epochs": 60,
            "seed": 0,
            "seeds": [0, 1, 2],
            "only": None,
            "runs": folder,
            **how,
        }
    )


def make_row(job: Job, accuracy: float) -> dict[str, Any]:
    key = "test_accuracy" if job.test else "held_accuracy"
    config = {"batch": job.batch, "lr": job.lr, "further": job.epochs, "quick": False}
    return {"method": job.network, "seed": job.seed, key: accuracy, "config": config}


def test_every_network_has_the_same_trials_and_grows_first(tmp_path: Path) -> None:
    jobs = list_jobs(ask(tmp_path), [])
    lines, trials = jobs[:3], jobs[3:]
    assert [job.network for job in lines] == ["firefly", "firefly-deeper", "uniform"]
    assert [(job.network, job.batch, job.lr) for job in trials] == [(name, *one) for name in NETWORKS for one in GRID]
    assert not any(job.test for job in jobs)
    assert [is_ready(job) for job in trials] == [job.network == "full" for job in trials]
    assert Job("wider-4", 0, False, ask(tmp_path), 128, 0.1).step == 7
    assert Job("wider-6", 0, False, ask(tmp_path), 128, 0.1).step == 8


def test_the_test_images_wait_for_all_trials_and_see_the_best_setting_only(tmp_path: Path) -> None:
    trials = [job for job in list_jobs(ask(tmp_path), []) if job.batch]
    best = dict(zip(NETWORKS, GRID))
    rows = [make_row(job, 0.9 + 0.01 * ((job.batch, job.lr) == best[job.network])) for job in trials]
    assert all(choose(name, rows) == best[name] for name in NETWORKS)
    assert not any(job.test for job in list_jobs(ask(tmp_path), rows[:-1]))
    assert not any(job.test for job in list_jobs(ask(tmp_path, grid_epochs=90), rows))  # other trials
    assert list_jobs(ask(tmp_path, only="grid"), rows) == []
    final = [job for job in list_jobs(ask(tmp_path), rows) if job.batch]
    assert all(job.test and (job.batch, job.lr) == best[job.network] for job in final) and len(final) == 15
    done = rows + [make_row(job, 0.93) for job in final]
    assert list_jobs(ask(tmp_path), done) == []


def test_the_rounds_go_on_where_they_were_killed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    how = ask(tmp_path, quick=True, jobs=2, data=None, device="cpu", out=tmp_path / "rows.jsonl")
    job, taken, take = Job("firefly", 0, False, how), list[int](), Line.take_step

    def die_at(step: int) -> None:
        def take_or_die(line: Line, state: Any, at: int, write: bool) -> Any:
            taken.append(at)
            if at == step:
                raise KeyboardInterrupt
            return take(line, state, at, write)

        monkeypatch.setattr(Line, "take_step", take_or_die)

    monkeypatch.setattr(headline, "QUICK", replace(headline.QUICK, sizes=(0.0028, 0.0032, 0.0036)))
    monkeypatch.setattr(Job, "step", property(lambda job: 3))
    die_at(3)
    with pytest.raises(KeyboardInterrupt):
        headline.do(job)
    die_at(0)
    headline.do(job)
    told = json.loads((job.find_folder(3) / "rounds.json").read_text())
    assert taken == [1, 2, 3, 2, 3] and told["epochs"] == 4 and len(told["growths"]) == 3
