"""`firefly demo --quick` and the example script."""

import importlib.util
import json
from pathlib import Path

import pytest

from firefly.errors import FireflyError
from firefly.experiments import demo
from firefly.experiments.demo import page as demo_page

ROOT = Path(__file__).parent.parent


def test_the_demo_grows_and_reports(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    page = demo.run(tmp_path / "demo", quick=True)
    text = page.read_text()
    content = json.loads((page.parent / "history.json").read_text())
    assert len(content["growths"]) == 2 and all(growth["added"] for growth in content["growths"])
    grown = [point["parameters"] for point in content["points"] if point["series"] == demo_page.GROWN]
    assert grown == sorted(grown) and len(set(grown)) == 3
    assert text.count("<svg") == 6 and "http" not in text
    assert all(point["flops"] > 0 for point in content["points"]) and "against FLOPs" in text
    printed = capsys.readouterr().out
    assert str(page.resolve()) in printed and "2, 2, 2  (grown, start)" in printed
    last = next(point for point in reversed(content["points"]) if point["series"] == demo_page.GROWN)
    assert f"{last['test_accuracy']:.1%} of 2,000 test images with {last['parameters']:,} parameters" in text


FIXED = [
    {"parameters": 100, "flops": 1000, "test_accuracy": 0.90, "series": demo_page.FIXED, "error": 0.005},
    {"parameters": 10_000, "flops": 100_000, "test_accuracy": 0.94, "series": demo_page.FIXED, "error": 0.005},
]


def test_a_network_is_compared_with_the_line_through_the_fixed_ones() -> None:
    leads = [
        demo_page.find_lead({"parameters": 1000, "flops": flops, "test_accuracy": 0.93}, FIXED, size)
        for flops, size in ((10_000, "parameters"), (10_000, "flops"), (100_000, "flops"), (100_001, "flops"))
    ]
    assert leads[:3] == pytest.approx([1.0, 1.0, -1.0]) and leads[3] is None


@pytest.mark.parametrize(
    ("flops", "said"),
    [
        (3000, "better at equal parameters and better at equal FLOPs"),
        (16_000, "better at equal parameters and about as good at equal FLOPs"),
        (90_000, "better at equal parameters and worse at equal FLOPs"),
        (200_000, "better at equal parameters and not comparable at equal FLOPs"),
    ],
)
def test_the_page_says_what_came_out_whatever_it_is(flops: int, said: str) -> None:
    """The same accuracies, with other FLOPs, are told otherwise."""
    grown = [
        {"series": demo_page.GROWN, "parameters": size, "flops": flops, "test_accuracy": right, "error": 0.005}
        for size, right in ((100, 0.90), (1000, 0.928))
    ]
    text = demo_page.tell(demo.Record(points=grown + FIXED), demo.Demo())
    assert text.startswith(f"In this run the grown networks were, on average, {said}.")  # before all else
    assert "0.8 points above the blue line" in text
    assert ("No fixed network here has as many FLOPs" in text) == (flops > 100_000)


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
