"""`firefly demo --quick` and the example script."""

import importlib.util
import json
from pathlib import Path

import pytest

from firefly.errors import FireflyError
from firefly.experiments import demo, demo_page

ROOT = Path(__file__).parent.parent


def test_the_demo_grows_and_reports(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    page = demo.run(tmp_path / "demo", quick=True)
    text = page.read_text()
    content = json.loads((page.parent / "history.json").read_text())
    assert len(content["growths"]) == 2 and all(growth["added"] for growth in content["growths"])
    grown = [point["parameters"] for point in content["points"] if point["series"] == demo_page.GROWN]
    assert grown == sorted(grown) and len(set(grown)) == 3
    assert "<img" in text and "http" not in text.replace("http://www.w3.org", "")
    printed = capsys.readouterr().out
    assert str(page.resolve()) in printed and "2, 2, 2  (grown, start)" in printed
    last = next(point for point in reversed(content["points"]) if point["series"] == demo_page.GROWN)
    assert f"{last['test_accuracy']:.1%} with {last['parameters']:,} parameters" in text


def test_a_network_is_compared_with_the_line_through_the_fixed_ones() -> None:
    fixed = [{"parameters": 100, "test_accuracy": 0.90}, {"parameters": 10_000, "test_accuracy": 0.94}]
    said = [demo_page.compare({"parameters": 1000, "test_accuracy": right}, fixed) for right in (0.93, 0.92, 0.90)]
    assert said == ["1.0 points above the blue line", "on the blue line", "2.0 points below the blue line"]


def test_a_copy_goes_its_own_way() -> None:
    one = demo.start("one", 2, demo.Demo(), seed=0)
    two = demo.copy_together(one)
    weight = two["model"].conv1.weight
    assert weight is two["optimizer"].param_groups[0]["params"][0]
    weight.data.zero_()
    assert one.model.conv1.weight.abs().sum() > 0


def test_the_demo_needs_enough_epochs(tmp_path: Path) -> None:
    with pytest.raises(FireflyError, match="epochs"):
        demo.run(tmp_path, epochs=1)


def test_the_example_learns(capsys: pytest.CaptureFixture[str]) -> None:
    spec = importlib.util.spec_from_file_location("plain_loop", ROOT / "examples" / "plain_loop.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    assert module.main(epochs=5, images=2000) > 0.5
    out = capsys.readouterr().out
    assert out.count("neurons in") >= 2 and "test accuracy" in out
