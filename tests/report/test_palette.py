"""One colour and one label per method, wherever it is drawn."""

import json
from pathlib import Path

import matplotlib.figure
import pytest
from matplotlib.colors import to_hex

from firefly.cli import find_experiment
from firefly.report import palette

RESULTS = Path(__file__).parents[2] / "results"


def test_every_method_has_a_label_and_a_colour_of_its_own() -> None:
    assert palette.LABELS.keys() == palette.COLOURS.keys()
    assert len({*palette.LABELS.values()}) == len({*palette.COLOURS.values()}) == len(palette.LABELS)


def test_every_measured_method_is_known() -> None:
    for path in RESULTS.glob("*.jsonl"):
        rows = [json.loads(line) for line in path.read_text().splitlines()]
        assert {row["method"] for row in rows if "experiment" in row and "method" in row} <= palette.LABELS.keys(), path


def test_an_unknown_method_keeps_its_colour_and_name() -> None:
    assert palette.find_colour("mine") == palette.find_colour("mine") and palette.name_method("mine") == "mine"


@pytest.mark.parametrize("name", ["toy", "wider-vgg19", "deeper-mnist"])
def test_figures_draw_a_method_in_its_colour(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    drawn = []
    monkeypatch.setattr(matplotlib.figure.Figure, "savefig", lambda figure, *_, **__: drawn.append(figure))
    rows = [json.loads(line) for line in (RESULTS / f"{name}.jsonl").read_text().splitlines()]
    find_experiment(name).plot(rows, tmp_path / "figure.png")
    labels = {label: palette.COLOURS[method] for method, label in palette.LABELS.items()}
    labels |= {"Scratch": palette.COLOURS["scratch"], "m' = 5": palette.FRONT}
    found = 0
    for axes in drawn[0].axes:
        for bars, label in zip(*axes.get_legend_handles_labels()):
            known = [colour for one, colour in labels.items() if label == one or label.startswith(f"{one},")]
            if known and hasattr(bars, "lines"):
                assert to_hex(bars.lines[0].get_color()).lower() == known[0].lower(), label
                found += 1
    assert found > 1
