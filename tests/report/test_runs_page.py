"""The page of runs: all of them on it, one colour each, and readable on a phone and on a desk."""

import math
import re
from itertools import pairwise
from pathlib import Path
from typing import Any

import chromium
import pytest

from firefly.errors import FireflyError
from firefly.report import charts, svg, widths
from firefly.report.page import describe_choice, hold
from firefly.report.runs import choose_metric, list_points, write_runs

browser = pytest.mark.skipif(chromium.PATH is None, reason="no Chromium")


def make_run(name: str, growths: int = 3, layers: int = 4, **missing: None) -> dict[str, Any]:
    """A run whose layers gain a neuron of each kind in every growth, after every second epoch."""
    names = [f"features.block{k}.convolution_of_some_length" for k in range(layers)]
    made: list[dict[str, Any]] = []
    for number in range(growths):
        size = (4 + 2 * number, 6 + 2 * number)
        made.append(
            {
                "epoch": 2 * number + 2,
                "added": {one: {"split": 1, "new": 1} for one in names},
                "gains": {one: {"split": 0.001 * k, "new": 0.01} for k, one in enumerate(names)},
                "widths": dict.fromkeys(names, size),
                "parameters": (1000 * size[0], 1000 * size[1]),
                "flops": (50_000 * size[0], 50_000 * size[1]),
                "loss_before": 1.0,
                "loss_after": 0.9,
                "predicted": 0.11,
                "candidates": 40,
                "total_gain": 0.2,
                "spent": {"parameters": (1900, 2000)},
                "seconds": {"trace": 1.0},
            }
        )
    epochs = []
    for epoch in range(1, 2 * growths + 3):
        done = sum(growth["epoch"] < epoch for growth in made)
        row = {"epoch": epoch, "loss": 2.0 / epoch, "seconds": 3.0, "parameters": 4000 + 2000 * done}
        row |= {"flops": 200_000 + 100_000 * done, "test_accuracy": 1 - 0.5 / epoch, "test_loss": 1.0 / epoch}
        epochs.append(row | {"grown": any(growth["epoch"] == epoch for growth in made)} | missing)
    return {"name": name, "growths": made, "epochs": epochs, "settings": {"budget": "parameters=2k", "seed": growths}}


def make_page(folder: Path, *runs: dict[str, Any]) -> str:
    return write_runs(folder / "page.html", runs).read_text()


FITS = """(page, view) => ({
  wide: page.documentElement.scrollWidth,
  hidden: [...page.querySelectorAll(".wide")].filter(one => one.scrollWidth > one.clientWidth + 1).length,
  outside: [...page.querySelectorAll("svg text, td, th, p, h1, h2, h3, summary, figcaption")].filter(one => {
    const box = one.getBoundingClientRect()
    const paper = one.closest("svg")?.getBoundingClientRect()
    const [left, right] = paper ? [paper.left, paper.right] : [0, view.innerWidth]
    return box.width && (box.left < left - 1 || box.right > right + 1) }).map(one => one.textContent),
  smallest: Math.min(...[...page.querySelectorAll("svg text")].map(one => one.getBoundingClientRect().height)),
  folded: page.querySelectorAll("details").length, charts: page.querySelectorAll("svg").length,
})"""


@browser
@pytest.mark.parametrize(
    ("wide", "names"), [(375, ["mine"]), (375, ["mine", "the-other", "a_third_one"]), (1280, "ab")]
)
def test_nothing_is_off_the_screen(tmp_path: Path, wide: int, names: list[str]) -> None:
    runs = [make_run(name, growths=3 + 5 * number) for number, name in enumerate(names)]
    told: Any = chromium.ask(make_page(tmp_path, *runs), FITS, tmp_path, wide)
    assert told["wide"] <= wide and told["outside"] == [] and told["hidden"] == 0 and told["smallest"] >= 9
    assert told["charts"] == 4 + 3 * len(runs)  # of all; of each: widths, timeline, gains
    assert told["folded"] == (sum(len(run["growths"]) for run in runs) if len(runs) > 1 else 0)


def test_the_page_needs_nothing_from_outside(tmp_path: Path) -> None:
    page = make_page(tmp_path, make_run("mine"), make_run("other"))
    assert not re.search(r"(?:src|href|url)\s*[=(]|<script|@import|http", page)


def test_charts_have_names_for_those_who_hear_them(tmp_path: Path) -> None:
    page = make_page(tmp_path, make_run("mine"))
    assert page.count("<svg ") == len(re.findall(r'<svg [^>]*role="img" aria-label="[^"]{20,}"', page)) == 7


def test_a_run_has_one_colour_in_all_charts(tmp_path: Path) -> None:
    page = make_page(tmp_path, make_run("mine"), make_run("other"))
    _, mine, other = re.split(r"<h2>How \w+ grew</h2>", page)
    for part, own in ((mine, "s0"), (other, "s1")):
        charts = "".join(re.findall(r"<svg.*?</svg>", part, re.DOTALL))
        assert set(re.findall(r'class="(?:bar|area) (s\d)"', charts)) == {own}
    top = page.partition("<h2>")[0]
    assert {*re.findall(r'name (s\d)"[^>]*>(?:● )?(\w+)<', top)} == {("s0", "mine"), ("s1", "other")}


def test_why_is_told_in_words_and_by_kind(tmp_path: Path) -> None:
    page = make_page(tmp_path, make_run("mine"))
    assert (
        "Chosen were 8 of 40 candidates; the budget: 1,900 of 2,000 parameters. "
        "Their gains add up to 0.11, those of all candidates to 0.2." in page
    )
    assert "features.block3.convolution_of_some_length, split: 0.003" in page
    assert (
        "mine grew 3 times, from 4,000 to 10,000 parameters: test accuracy 93.75\u00a0% after epoch 8, in 27\u00a0s."
        in page
    )


def test_each_size_is_a_point_and_the_last_network_too() -> None:
    run = make_run("mine")
    points = list_points(run, "test_accuracy", several=False)
    assert [point["parameters"] for point in points] == [4000, 6000, 8000, 10_000]
    assert [point["label"] for point in points] == ["epoch 2", "epoch 4", "epoch 6", "epoch 8"]
    assert points[-1]["test_accuracy"] == run["epochs"][-1]["test_accuracy"] and all(point["flops"] for point in points)


def test_without_a_test_the_loss_is_drawn(tmp_path: Path) -> None:
    runs = [make_run("mine"), make_run("other", test_accuracy=None)]
    assert choose_metric(runs[:1]) == "test_accuracy" and choose_metric(runs) == "test_loss"
    said = "Not every run has a test accuracy that is a number, so the charts show the test loss."
    assert said in make_page(tmp_path, *runs) and said not in make_page(tmp_path, *runs[1:])
    none = make_run("none", test_accuracy=None, test_loss=None)
    page = make_page(tmp_path, none)
    assert "Training loss against parameters. Lower and further left is better." in page
    assert (
        page.count("Training loss at the end of each epoch")
        == 2
        == make_page(tmp_path, *runs).count("Training loss at")
    )


def test_an_axis_that_is_bent_is_told(tmp_path: Path) -> None:
    """Accuracies of all epochs stand so that the last ones can be told apart; losses stand as they are."""
    said = "at the end of each epoch. Each halving of the errors takes the same height."
    page = make_page(tmp_path, make_run("mine"))
    assert page.count(said) == page.count("Test accuracy at the end of each epoch") > 0
    assert said not in make_page(tmp_path, make_run("none", test_accuracy=None))


def test_a_run_that_has_not_grown_has_a_page(tmp_path: Path) -> None:
    page = make_page(tmp_path, make_run("mine", growths=0))
    assert "mine has not grown, 4,000 parameters: test accuracy" in page
    assert "How it grew" not in page and "before it grew" not in page and "marks a growth" not in page


def test_a_kind_has_one_shade_on_a_page_and_stands_below_where_it_is_drawn(tmp_path: Path) -> None:
    one, other = make_run("mine"), make_run("other")
    for growth in other["growths"]:  # a method that adds brand-new neurons only
        growth["added"] = {name: {"new": 2} for name in growth["added"]}
        growth["gains"] = {name: {"new": 0.02} for name in growth["gains"]}
    page = make_page(tmp_path, one, other)
    shades = re.findall(r'class="(kind\d)"/><text [^>]*>(\w+)<', page)
    assert shades == [("kind0", "split"), ("kind1", "new"), ("kind1", "new")]


def test_a_growth_that_adds_nothing_is_no_growth(tmp_path: Path) -> None:
    run = make_run("mine")
    for growth in run["growths"]:
        growth |= {"parameters": (4000, 4000), "added": {}, "gains": {}}
    assert "mine has not grown, " in make_page(tmp_path, run)


@pytest.mark.parametrize(
    ("seconds", "said"), [(8.6, "9 s"), (59.6, "1 min 0 s"), (125, "2 min 5 s"), (12_000, "3 h 20 min")]
)
def test_time_is_told_as_people_do(seconds: float, said: str) -> None:
    assert svg.spell_time(seconds) == said


def test_numbers_of_an_axis_do_not_touch() -> None:
    axis = svg.Axis(700, 5500, 54, 404, math.log)
    drawn = svg.draw_x(axis, svg.tick_log(700, 5500), 0, 100, "Parameters", svg.shorten)
    found = re.findall(r'<text x="([\d.]+)"[^>]*>([\d,]+)<', drawn)
    ends = [(float(x) - 3.5 * len(text), float(x) + 3.5 * len(text)) for x, text in found]
    assert len(ends) >= 4 and all(left[1] < right[0] for left, right in pairwise(ends))


@pytest.mark.parametrize("growths", [1, 6, 7, 20])
def test_all_growths_and_gains_are_drawn(growths: int) -> None:
    history = make_run("mine", growths)["growths"]
    chart = widths.draw_gains(history)
    assert chart.count('y="') and [f">{k + 1}<" in chart for k in range(growths)] == [True] * growths
    assert len(re.findall(r'<rect[^>]*class="kind1"><title>', chart)) == 4 * growths  # what is new, in each width
    high = float(re.search(r'viewBox="0 0 420 (\d+)"', chart)[1])  # type: ignore[index]
    for x, y, wide in re.findall(r'<rect x="([\d.]+)" y="([\d.]+)" width="([\d.]+)"', chart):
        assert float(x) + float(wide) <= 420 and float(y) < high


def test_the_timeline_steps_where_it_grew() -> None:
    history = [{"epoch": 2, "widths": {"a": (2, 4)}, "added": {}}, {"epoch": 6, "widths": {"a": (4, 8)}, "added": {}}]
    chart = widths.draw_timeline(history, last=8)
    (line,) = re.findall(r'<polygon points="([^"]+)"', chart)
    places = [tuple(map(float, place.split(","))) for place in line.split()]
    foot, left, right = places[0][1], places[0][0], places[-1][0]
    shares = [(round((x - left) / (right - left), 2), round((foot - y) / 16, 2)) for x, y in places[1:-1]]
    assert shares == [(0, 0.25), (0.25, 0.25), (0.25, 0.5), (0.75, 0.5), (0.75, 1), (1, 1)]


def test_a_page_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for path in (tmp_path / "file" / "page.html", tmp_path, tmp_path / "nul\0byte", tmp_path / ("x" * 5000)):
        with pytest.raises(FireflyError, match="another file with --html"):
            write_runs(path, [make_run("mine")])


def test_numbers_that_are_not_finite_are_not_drawn(tmp_path: Path) -> None:
    run = make_run("mine", test_accuracy=None)
    run["epochs"][0]["test_loss"] = math.inf
    assert "Training loss against parameters" in make_page(tmp_path, run)
    run["epochs"][0]["loss"] = math.nan
    with pytest.raises(FireflyError, match="no number in common"):
        make_page(tmp_path, run)


def test_what_runs_differ_in_comes_first_and_their_widths_stand_side_by_side(tmp_path: Path) -> None:
    page = make_page(tmp_path, make_run("mine", 2), make_run("other", 5))
    assert page.index(">seed<") < page.index(">budget<")
    row = re.search(r"Neurons at the end.*?block0.*?</td><td>(\d+)</td><td>(\d+)</td>", page, re.DOTALL)
    assert row is not None and row.groups() == ("8", "14")


def test_much_is_folded_and_a_method_without_gains_has_none(tmp_path: Path) -> None:
    run = make_run("mine", growths=3, layers=30)
    assert make_page(tmp_path, run).count("<details>") == 3 and "<em>gain</em>" in make_page(tmp_path, run)
    for growth in run["growths"]:
        growth |= {"gains": {}, "total_gain": 0.0}
    page = make_page(tmp_path, run)
    assert "<th>gain" not in page and "Their gains" not in page and "<em>gain" not in page


def test_gains_of_all_may_be_less_than_of_the_chosen() -> None:
    (growth,) = make_run("mine", growths=1)["growths"]
    (told,) = describe_choice(growth | {"total_gain": -0.5}, 8)
    assert told.endswith("add up to 0.11, those of all candidates to −0.5, since some would raise the loss.")


@pytest.mark.parametrize(
    ("low", "high"), [(1600, 9000), (23e3, 91e3), (1e3, 1e7), (75, 135), (800, 19e3), (6698, 19229)]
)
def test_an_axis_of_sizes_has_ticks_enough(low: float, high: float) -> None:
    ticks = svg.tick_log(low, high)
    assert 3 <= len(ticks) <= 8 and ticks == sorted(ticks) and low <= ticks[0] and ticks[-1] <= high


def test_a_single_epoch_is_seen() -> None:
    chart = charts.draw_epochs([{"series": "mine", "epoch": 1, "loss": 1.0}], [], {"mine": 0}, "loss")
    assert "<title>mine: epoch 1</title>" in chart


def test_a_run_that_was_stopped_says_so(tmp_path: Path) -> None:
    run = make_run("mine")
    run["settings"]["epochs"] = 20
    assert "after epoch 8 of 20, in" in make_page(tmp_path, run)


def test_more_runs_than_are_told_are_counted(tmp_path: Path) -> None:
    assert "2 more stand in the table." in make_page(tmp_path, *(make_run(f"run-{k}", growths=1) for k in range(8)))


LONG = [
    *(f"encoder_of_text.layer.{k}.{part}" for k in (1, 11, 21) for part in ("attention.query", "dense_projection_out")),
    *(f"{k}x{'y' * 30}" for k in (1, 2)),
    "a/b/a/b",
]


def test_no_two_layers_are_called_the_same() -> None:
    labels = svg.tell_apart(LONG)
    assert len({*labels.values()}) == len(labels) == len(LONG) and max(map(len, labels.values())) <= 20
    assert labels[LONG[5]] == "…21…projection_out"  # whole numbers, though 1, 11 and 21 end alike
    assert labels["a/b/a/b"] == "a/b/a/b"
    history = [{"widths": dict.fromkeys(LONG, (2, 4)), "added": {}, "gains": {}, "epoch": 1}]
    for chart in (widths.draw_widths(history), widths.draw_timeline(history, 2), widths.draw_gains(history)):
        assert {*labels.values()} <= {*re.findall(r">([^<>]+)</text>", chart)}


def test_numbers_do_not_end_a_line_at_their_sign() -> None:
    assert hold("-2.6e-06") == "−2.6e−06"


def test_long_names_stay_in_the_chart() -> None:
    long = "runs/a/very_long_name_of_a_folder/with.something_at_its_end"
    assert svg.cut(long) == "…at_its_end"
    assert svg.cut("feature_extractor_layers.0.conv1") == "…layers.0.conv1" and svg.cut("x" * 30) == "…" + "x" * 19
    epochs = [{"series": long, "epoch": k, "loss": 1 / k} for k in (1, 2)]
    chart = charts.draw_epochs(epochs, [], {long: 0}, "loss")
    x, name = re.search(r'<text x="([\d.]+)"[^>]*class="name s0"[^>]*>([^<]+)<', chart).groups()  # type: ignore[union-attr]
    assert float(x) + 6.9 * len(name) <= svg.WIDE
