"""The example of docs/gpt.md runs from beginning to end, and its parts are what the page says."""

import importlib.util
import json
from pathlib import Path
from typing import Any

import pytest
import torch

ROOT = Path(__file__).parent.parent


def load_example() -> Any:
    spec = importlib.util.spec_from_file_location("gpt", ROOT / "examples" / "gpt.py")
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_text_ships_with_the_package_and_no_piece_of_it_is_in_both_parts() -> None:
    gpt = load_example()
    text, held, letters = gpt.read_text()
    assert len(text) > 8 * len(held) > 300_000 and 90 < letters < 128
    assert text.max() < letters and held.max() < letters
    (batch,) = gpt.draw(text, 1, seed=0)
    assert torch.equal(batch, gpt.draw(text, 1, seed=0)[0]) and batch.shape == (gpt.BATCH, gpt.CONTEXT + 1)
    even = gpt.make_even(letters, 90_000)
    assert 90_000 <= sum(p.numel() for p in even.parameters()) < 93_000


@pytest.mark.slow
def test_the_example_runs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    load_example().main(["--steps", "12", "--out", str(tmp_path / "gpt.jsonl")])
    rows = [json.loads(line) for line in (tmp_path / "gpt.jsonl").read_text().splitlines()]
    grown, small, even, short, again = rows
    assert capsys.readouterr().out.count("neurons in") == 3
    assert small["parameters"] < grown["parameters"] == again["parameters"] <= even["parameters"] == short["parameters"]
    assert (
        abs(short["teraflops"] - grown["teraflops"]) < even["teraflops"] / 12 and even["teraflops"] < grown["teraflops"]
    )
