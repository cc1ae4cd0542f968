"""The page as a browser shows it: on a phone, on paper light and dark; skipped where there is no Chromium."""

import re
from pathlib import Path

import chromium
import pytest

from firefly import report

browser = pytest.mark.skipif(chromium.PATH is None, reason="no Chromium")

GROWTH = {
    "added": {"features.12.convolution": {"split": 12, "new": 1024, "unlock": 3}, "head": {}},
    "widths": {"features.12.convolution": (1024, 2063), "a_layer_with_a_rather_long_name.residual.make": (0, 12)},
    "gains": {"features.12.convolution": {"split": 0.00123, "new": 0.0456}},
    "parameters": (1_234_567, 12_345_678),
    "flops": (123_456_789, 1_234_567_890),
    "loss_before": 1.25,
    "loss_after": 1.125,
    "epoch": 3,
    "notes": ["a_note_without_any_place_to_break_" * 5],
}
POINTS = [
    {
        "series": series,
        "label": f"{k} growths",
        "parameters": 10**k,
        "flops": 10 ** (k + 2),
        "accuracy": right,
        "error": 0.01,
    }
    for series, rights in (("grown by Firefly", (0.5, 0.9, 0.97)), ("the same width everywhere", (0.4, 0.93, 0.98)))
    for k, right in enumerate(rights, start=3)
]
EPOCHS = [
    {"series": series, "epoch": epoch, "accuracy": 1 - 0.9 / (1 + number + epoch)}
    for number, series in enumerate(("grown by Firefly", "another", "the same width everywhere"))
    for epoch in range(1, 12)
]


@pytest.fixture
def page(tmp_path: Path) -> str:
    settings = {"network": "a setting that takes many words " * 4, "long": "x" * 200}
    path = report.write(
        tmp_path / "run", [GROWTH, GROWTH], points=POINTS, epochs=EPOCHS, settings=settings, text="Text."
    )
    return path.read_text()


FITS = """(page, view) => ({
  wide: page.documentElement.scrollWidth, view: view.innerWidth,
  hidden: [...page.querySelectorAll(".wide")].filter(one => one.scrollWidth > one.clientWidth + 1).length,
  outside: [...page.querySelectorAll("svg text, td, th, p, h1, h2, h3, figcaption")].filter(one => {
    const box = one.getBoundingClientRect()
    return box.width && (box.left < -1 || box.right > view.innerWidth + 1) }).map(one => one.textContent),
  smallest: Math.min(...[...page.querySelectorAll("svg text")].map(one => one.getBoundingClientRect().height)),
})"""


@browser
@pytest.mark.parametrize("wide", [375, 390, 1280])
def test_nothing_is_off_the_screen(tmp_path: Path, page: str, wide: int) -> None:
    told = chromium.ask(page, FITS, tmp_path, wide)
    assert told["view"] == wide and told["wide"] <= wide and told["outside"] == [] and told["hidden"] == 0
    assert told["smallest"] >= 9  # pixels from the top of a letter to its foot


COLOURS = """(page, view) => {
  const colour = (one, key) => view.getComputedStyle(one)[key]
  const lines = [...page.querySelectorAll("polyline")].map(one => colour(one, "stroke"))
  return {paper: colour(page.body, "backgroundColor"), text: colour(page.querySelector("svg text"), "fill"),
    charts: [...page.querySelectorAll("svg")].map(one => colour(one, "backgroundColor")), lines}
}"""


@browser
def test_charts_follow_the_theme(tmp_path: Path, page: str) -> None:
    light, dark = (chromium.ask(page, COLOURS, tmp_path, dark=dark) for dark in (False, True))
    assert light["paper"] == "rgb(255, 255, 255)" and dark["paper"] == "rgb(23, 23, 26)"
    assert set(dark["charts"]) == {"rgba(0, 0, 0, 0)"}  # the paper shows through
    assert all(one != other for one, other in zip(light["lines"], dark["lines"]))
    assert len(set(light["lines"])) == len(set(dark["lines"])) == 3  # series


def test_a_series_has_one_colour_in_all_charts(page: str) -> None:
    """The words of a series have the class of its lines, the same in each chart."""
    named = {}
    for chart in re.findall(r"<svg.*?</svg>", page, re.DOTALL):
        for number, name in re.findall(r'class="name s(\d)"[^>]*>(?:● )?([^<]+)<', chart):
            named.setdefault(name, set()).add(number)
    series = ("grown by Firefly", "another", "the same width everywhere")
    assert [len(named[one]) for one in series] == [1, 1, 1] and len({*map(min, (named[one] for one in series))}) == 3


def test_the_page_needs_nothing_from_outside(page: str) -> None:
    assert not re.search(r"(?:src|href|url)\s*[=(]|<script|@import", page)


def test_the_whole_of_every_training_is_drawn(page: str) -> None:
    """No point of a line lies outside its chart."""
    for chart in re.findall(r"<svg.*?</svg>", page, re.DOTALL):
        high = float(re.search(r'viewBox="0 0 420 (\d+)"', chart)[1])
        for line in re.findall(r'points="([^"]+)"', chart):
            places = [tuple(map(float, place.split(","))) for place in line.split()]
            assert all(0 <= x <= 420 and 0 <= y <= high - 40 for x, y in places)
