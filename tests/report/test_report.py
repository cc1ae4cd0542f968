"""The report: one page for any run, or an error that says what is missing."""

from pathlib import Path

import pytest
import torch
from torch import nn

import firefly
from firefly import report


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
