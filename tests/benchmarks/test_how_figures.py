"""The pictures of docs/how-it-works.md are what the code draws."""

import re
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))

import how_figures


def list_squares(drawn: str) -> list[tuple[str, ...]]:
    return re.findall(r'<rect x="([\d.]+)" y="([\d.]+)" [^>]*class="([^"]+)"', drawn)


@pytest.mark.parametrize("name", ["widths", "candidates"])
def test_the_kept_picture_is_the_one_that_is_drawn(name: str) -> None:
    drawn = getattr(how_figures, f"draw_{name}")()
    kept = (how_figures.FIGURES / f"how-{name}.svg").read_text()
    assert list_squares(drawn) == list_squares(kept) != [], "python benchmarks/how_figures.py"


def test_a_growth_that_is_drawn_splits_and_adds() -> None:
    kept = (how_figures.FIGURES / "how-candidates.svg").read_text()
    kinds = {kind for _, _, kind in list_squares(kept)}
    assert kinds == {how_figures.EXISTING, how_figures.SPLIT, how_figures.NEW}
