"""The report: one page for any run, or an error that says what is missing."""

import math
import sys
from itertools import pairwise
from pathlib import Path
from xml.etree import ElementTree

import pytest
import torch
from torch import nn

import firefly
from firefly import report
from firefly.report import charts, page, svg, widths


def grown() -> dict[str, object]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 4), nn.ReLU(), nn.Linear(4, 3))
    batch = (torch.randn(32, 6), torch.randint(0, 3, (32,)))

    def loss(model: nn.Module, batch: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
        return nn.functional.cross_entropy(model(batch[0]), batch[1])

    return firefly.grow(model, loss, [batch], example=batch[0], budget=firefly.Neurons(2), steps=5).to_dict()


def test_a_page_of_ones_own_run(tmp_path: Path) -> None:
    points = [{"series": "mine", "parameters": 10 * k, "accuracy": 0.5 + k / 10, "label": str(k)} for k in (1, 2, 3)]
    epochs = [{"series": "mine", "epoch": k, "accuracy": 0.5 + k / 10} for k in (1, 2, 3)]
    page = report.write(tmp_path / "run", [grown()], points=points, epochs=epochs, title="Mine & yours <3")
    text = page.read_text()
    assert "Mine &amp; yours &lt;3" in text and text.count("<svg") == 4
    charts = {path.name: path.read_text() for path in page.parent.glob("*.svg")}
    assert charts.keys() == {"parameters.svg", "widths.svg", "epochs.svg", "gains.svg"}
    for chart in charts.values():
        assert ElementTree.fromstring(chart).tag == "{http://www.w3.org/2000/svg}svg"


def test_points_with_flops_have_a_second_chart(tmp_path: Path) -> None:
    points = [{"series": "mine", "parameters": 10**k, "flops": 10 ** (k + 3), "accuracy": 0.5} for k in (1, 2, 3)]
    text = report.write(tmp_path, [], points=points).read_text()
    assert text.count("<svg") == 2 and "Accuracy against FLOPs." in text and "100 k</td>" in text
    text = report.write(
        tmp_path, [], points=[*points, {"series": "mine", "parameters": 5, "accuracy": 0.1}]
    ).read_text()
    assert text.count("<svg") == 1  # one of them has none


def test_growths_alone_are_enough(tmp_path: Path) -> None:
    assert "<svg" in report.write(tmp_path, [grown()]).read_text()


def test_a_row_without_its_number_is_named(tmp_path: Path) -> None:
    with pytest.raises(firefly.FireflyError, match="parameters"):
        report.write(tmp_path, [], points=[{"series": "mine", "accuracy": 0.5}])


def test_the_table_of_a_growth_says_what_grew() -> None:
    growth = grown()
    text = page.show_growth(2, {**growth, "epoch": 7, "notes": ["a note <here>"]})
    assert "Growth 2, after epoch 7: 2 more neurons, 43 → 63 parameters" in text
    assert '<td class="left">0</td><td>4</td>' in text and "<td>6</td>" in text  # layer 0, from 4 neurons to 6
    assert f"{growth['loss_before']:.4f}" in text and "A note &lt;here&gt;." in text


def test_points_and_epochs_may_have_metrics_of_their_own(tmp_path: Path) -> None:
    points = [{"series": "mine", "parameters": 10, "loss": 0.1234}]
    epochs = [{"series": "mine", "epoch": 1, "held_out_accuracy": 0.5}]
    text = report.write(tmp_path, [], points=points, epochs=epochs, metric="loss", epoch_metric="held_out_accuracy")
    assert "0.1234" in text.read_text() and "Held-out accuracy at the end" in text.read_text()


def test_widths_are_followed_through_growths_that_leave_some_out() -> None:
    history = [{"widths": {"a": (2, 5), "b": (3, 3)}}, {"widths": {"b": (3, 9)}}]
    assert widths.track_widths(history) == {"a": [2, 5, 5], "b": [3, 3, 9]}
    assert widths.draw_widths(history).count("<rect") == 2 + 2 + 3  # parts of both bars, and the legend


def test_labels_are_moved_apart_in_their_order() -> None:
    places = svg.spread([0.0, 0.01, 0.5, 0.02], 0.1)
    ordered = [places[k] for k in (0, 1, 3, 2)]
    assert all(above - below >= 0.1 - 1e-6 for below, above in pairwise(ordered))
    assert svg.spread([0.0, 1.0], 0.1) == [0.0, 1.0]


def test_it_needs_no_matplotlib(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    assert report.write(tmp_path, [grown()]).exists()


@pytest.mark.parametrize("value", [math.nan, math.inf, None, "many", -3, 0])
def test_a_number_that_cannot_be_drawn_is_named(tmp_path: Path, value: object) -> None:
    for key in ("parameters", "flops"):
        point = {"series": "mine", "parameters": 10, "flops": 10, "accuracy": 0.5, key: value}
        with pytest.raises(firefly.FireflyError, match=rf"points\[0\]: {key}="):
            report.write(tmp_path, [], points=[point])


@pytest.mark.parametrize(("low", "high"), [(0.0, 1.0), (0.8731, 0.9785), (3.0, 4000.0), (-2e-5, 1e-5), (1.0, 1.0)])
def test_ticks_are_few_and_inside(low: float, high: float) -> None:
    ticks = svg.tick(low, high)
    assert len(ticks) <= 6 and all(low - 1e-9 <= one <= high + 1e-9 for one in ticks)
    assert low == high or len(ticks) >= 2


def test_numbers_are_short() -> None:
    told = [svg.shorten(value) for value in (7, 9_999, 12_345, 304_000, 1_234_567, 20_035_018, 3.1e9)]
    assert told == ["7", "9,999", "12.3 k", "304 k", "1.23 M", "20 M", "3.1 G"]


def test_kinds_go_by_name() -> None:
    growth = {**grown(), "added": {"0": {"graft": 3, "split": 1}}}
    assert "<th>graft</th><th>split</th>" in page.show_growth(1, growth)


def test_a_folder_that_cannot_be_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(firefly.FireflyError, match="file"):
        report.prepare(tmp_path / "file")


def test_labels_of_points_do_not_cover_marks_or_one_another() -> None:
    names = ("3 growths", "17 channels", "2 growths")
    points = [{"series": str(k), "label": name} for k, name in enumerate(names)]
    marks = [(380.0, 50.0), (384.0, 41.0), (340.0, 66.0)]
    parts = charts.label_marks(points, marks, {"0": 0, "1": 1, "2": 2})
    places = [tuple(map(float, (part.split('"')[1], part.split('"')[3]))) for part in parts]
    boxes = [(x, x + svg.LETTER * len(name), y - 11, y + 4) for (x, y), name in zip(places, names)]
    others = [(x - 4, x + 4, y - 4, y + 4) for x, y in marks]
    assert all(charts.overlap(box, mark) == 0 for box in boxes for mark in others)
    assert all(charts.overlap(one, other) == 0 for k, one in enumerate(boxes) for other in boxes[:k])
    assert all(box[0] >= 0 and box[1] <= svg.WIDE for box in boxes)
