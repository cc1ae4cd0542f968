"""`benchmarks/nas_probe.py`: growing finds the operation that a task needs."""

import sys
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))

from nas_probe import ABLE, draw, probe, table


def test_only_the_other_class_has_copies() -> None:
    images, labels = draw(8, torch.Generator().manual_seed(0))
    equal = (images[..., 8:] == images[..., :-8]).float().mean((1, 2, 3))
    assert equal[labels == 0].mean() < 0.55 and equal[labels == 1].mean() > 0.8


def test_growing_finds_who_can_help() -> None:
    got = probe(8, seed=1, start=0, anneal=True, worth="neuron")
    assert sum(got[name] for name in ABLE[8]) == sum(got.values()) == 8


def test_the_table_tells_the_worst() -> None:
    rows = [{"way": "awake", "able": share} for share in (1.0, 0.5)]
    assert "75 ± 25 %   worst 50 %   (2 growths)" in table(rows)
