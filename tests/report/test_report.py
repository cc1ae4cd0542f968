"""The report: one page for any run, or an error that says what is missing."""

import sys
from itertools import pairwise
from pathlib import Path

import pytest
import torch
from torch import nn

import firefly
from firefly import report
from firefly.report import page, plots


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
    assert "Mine &amp; yours &lt;3" in text and text.count("<img") == 3
    assert {path.name for path in page.parent.glob("*.png")} == {"parameters.png", "widths.png", "epochs.png"}


def test_growths_alone_are_enough(tmp_path: Path) -> None:
    assert "<img" in report.write(tmp_path, [grown()]).read_text()


def test_a_row_without_its_number_is_named(tmp_path: Path) -> None:
    with pytest.raises(firefly.FireflyError, match="parameters"):
        report.write(tmp_path, [], points=[{"series": "mine", "accuracy": 0.5}])


def test_the_table_of_a_growth_says_what_grew() -> None:
    growth = grown()
    text = page.show_growth(2, {**growth, "epoch": 7, "notes": ["a note <here>"]})
    assert "Growth 2, after epoch 7: 2 more neurons, 43 → 63 parameters" in text
    assert '<td class="left">0</td><td>4</td>' in text and "<td>6</td>" in text  # layer 0, from 4 neurons to 6
    assert f"{growth['loss_before']:.4f}" in text and "a note &lt;here&gt;" in text


def test_points_and_epochs_may_have_metrics_of_their_own(tmp_path: Path) -> None:
    points = [{"series": "mine", "parameters": 10, "loss": 0.1234}]
    epochs = [{"series": "mine", "epoch": 1, "held_out_accuracy": 0.5}]
    text = report.write(tmp_path, [], points=points, epochs=epochs, metric="loss", epoch_metric="held_out_accuracy")
    assert "0.1234" in text.read_text() and "Held out accuracy at the end" in text.read_text()


def test_widths_are_followed_through_growths_that_leave_some_out() -> None:
    history = [{"widths": {"a": (2, 5), "b": (3, 3)}}, {"widths": {"b": (3, 9)}}]
    assert plots.track_widths(history) == {"a": [2, 5, 5], "b": [3, 3, 9]}
    assert plots.draw_widths(history).startswith(b"\x89PNG")


def test_labels_are_moved_apart_in_their_order() -> None:
    places = plots.spread([0.0, 0.01, 0.5, 0.02], 0.1)
    ordered = [places[k] for k in (0, 1, 3, 2)]
    assert all(above - below >= 0.1 - 1e-6 for below, above in pairwise(ordered))
    assert plots.spread([0.0, 1.0], 0.1) == [0.0, 1.0]


def test_without_matplotlib_it_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(firefly.FireflyError, match=r"pip install firefly-descent\[report\]"):
        report.write(tmp_path, [grown()])


def test_a_folder_that_cannot_be_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(firefly.FireflyError, match="file"):
        report.prepare(tmp_path / "file")
