"""`firefly nas`: from a search to a table, on digits; genotypes by name; the size that all networks have."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from firefly.cli import main
from firefly.errors import FireflyError
from firefly.experiments.nas_evaluate import NEAR, Entry, Trial, find_channels, read_entry
from firefly.experiments.nas_table import compare, table
from firefly.experiments.rows import count
from firefly.nas import Network, draw_random, find_known

TINY = ["nodes=1", "images=64", "batch=8", "channels=[4,4,4,4,4]", "every=1", "step_one=0.5"]


def test_from_a_search_to_a_table(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    runs = str(tmp_path / "runs")
    assert main(["nas", "search", "--quick", "--asleep", "--runs", runs, "--fit", "dense=true", "--set", *TINY]) == 0
    (path,) = Path(runs).glob("search-*.json")
    assert path.with_suffix(".txt").read_text().startswith("Genotype(normal=[(")
    assert {one.name for one in Path(runs).glob("*.svg")} == {f"{path.stem}-cells.svg", f"{path.stem}-growth.svg"}
    words = [
        "nas",
        "evaluate",
        str(path),
        f"permuted:{path}",
        "random-0",
        "--quick",
        "--runs",
        runs,
        "--fit",
        "dense=true",
    ]
    assert main([*words, "--set", "epochs=1", "images=64", "channels=4"]) == 0
    rows = [json.loads(line) for line in (Path(runs) / "results.jsonl").read_text().splitlines()]
    assert [row["method"] for row in rows] == ["search", "firefly-asleep", "permuted", "random"]
    assert [row["final"] for row in rows] == [False, True, True, True]
    assert rows[1]["parameters"] == rows[2]["parameters"]
    assert "Firefly lower by" in capsys.readouterr().out
    assert main([*words, "--set", "epochs=1", "images=64", "channels=4"]) == 0  # nothing is done twice
    assert len((Path(runs) / "results.jsonl").read_text().splitlines()) == 4
    assert main(["report", str(Path(runs) / "results.jsonl")]) == 0


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["evaluate", "--quick", "--runs", "nowhere"], "no searches in nowhere"),
        (["evaluate", "--quick", "darts-v9"], "darts-v9"),
        (["evaluate", "--quick", "plain", "--part", "3/2"], "--part 3/2"),
        (["agreement", "--runs", "nowhere"], "0 searches"),
        (["search", "--quick", "--set", "worth=luck"], "worth='luck'"),
        (["search", "--quick", "--set", "batch=400"], "batch=400 with 512 images"),
        (["search", "--quick", "--fit", "speed=high"], "--fit speed=high"),
        (["search", "--quick", "--fit", "precision=fp8"], "precision=bf16|float32"),
    ],
)
def test_nonsense_is_refused(words: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["nas", *words]) == 2
    assert said in capsys.readouterr().err


def test_without_time_nothing_is_begun(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["nas", "search", "--quick", "--runs", str(tmp_path), "--minutes", "0"]) == 0
    assert "time is up" in capsys.readouterr().out and not list(tmp_path.glob("search-*"))


def test_genotypes_by_name(tmp_path: Path) -> None:
    assert read_entry("random-3").genotype == draw_random(3)
    assert read_entry("darts-v2").method == "darts"
    path = tmp_path / "mine.txt"
    path.write_text(str(draw_random(1)))
    assert read_entry(str(path)).method == "mine" and read_entry(str(path)).genotype.cells == draw_random(1).cells
    found = replace(draw_random(1), name="firefly-operation-7")
    (tmp_path / "search-7.json").write_text(json.dumps({"genotype": found.to_dict()}))
    assert read_entry(str(tmp_path / "search-7.json")) == Entry("firefly-operation", found)
    permuted = [read_entry(f"permuted:{path}@{seed}") for seed in (1, 2)]
    assert permuted[0].method == "permuted" and permuted[0].genotype.cells != permuted[1].genotype.cells


@pytest.mark.parametrize("name", ["random-0", "random-1", "plain", "pc-darts", "darts-v2"])
def test_all_networks_have_one_size(name: str) -> None:
    genotype, trial = read_entry(name).genotype, Trial(cells=5)
    channels = find_channels(genotype, trial, 10, 3)
    with torch.device("meta"):
        size = count(Network(find_known("darts-v2"), 5, trial.channels))
        assert abs(count(Network(genotype, 5, channels)) / size - 1) <= NEAR
    assert name != "darts-v2" or channels == trial.channels


def test_sizes_that_cannot_be_met_are_told() -> None:
    with pytest.raises(FireflyError, match="use more channels"):
        find_channels(draw_random(0), Trial(cells=3, channels=3), 10, 3)


def make_row(method: str, name: str, seed: int, accuracy: float) -> dict[str, Any]:
    told = {"method": method, "seed": seed, "test_accuracy": accuracy, "genotype": {"cells": [name]}}
    return told | {"final": True, "dataset": "cifar10", "epochs": 60, "parameters": 1000, "config": {"cells": 8}}


def test_the_table_counts_cells_not_seeds() -> None:
    """Two trainings of one cell are one value: the error of a method is over its cells."""
    rows = [make_row("firefly", "a", seed, 0.9 + 0.02 * seed) for seed in (0, 1)] + [make_row("firefly", "b", 0, 0.93)]
    rows += [make_row("random", "c", 0, 0.80), make_row("random", "d", 0, 0.82)]
    lines = table(rows).splitlines()
    assert "8.00 ± 1.00" in lines[2] and lines[2].split()[1:3] == ["2", "3"]
    assert "19.00 ± 1.00" in lines[3] and "+11.00 (+7.8 s.e.)" in lines[3]
    assert compare([8.0], [9.0]) == "+1.00"


def test_searches_are_told_from_their_rows(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    results = Path(__file__).parents[2] / "results" / "nas-quick.jsonl"
    assert main(["report", str(results), "--out", str(tmp_path)]) == 0
    told = capsys.readouterr().out
    assert "searches of firefly, seeds 0, 1, 2" in told and "kappa 0.03, p = 0.34" in told
    assert (tmp_path / "nas.png").exists()
