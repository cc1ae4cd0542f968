"""The command line: what each command says, and how it fails."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

import firefly
from firefly.cli import main

ROOT = Path(__file__).parent.parent


def test_help_teaches_and_needs_no_torch(capsys: pytest.CaptureFixture[str]) -> None:
    for words in (
        ["--help"],
        ["demo", "--help"],
        ["reproduce", "--help"],
        ["widths", "--help"],
        ["data", "get", "--help"],
    ):
        with pytest.raises(SystemExit) as end:
            main(words)
        assert end.value.code == 0 and "firefly" in capsys.readouterr().out


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["--version"])
    assert firefly.__version__ in capsys.readouterr().out


def test_widths_of_a_model(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["widths", "firefly.vision.models:vgg16", "--shape", "2,3,32,32"]) == 0
    assert "13 of 14 widths can grow" in capsys.readouterr().out


@pytest.mark.parametrize(
    "words",
    [
        ["widths", "firefly.vision.models:nothing", "--shape", "2,3,32,32"],
        ["widths", "firefly.vision.models:vgg16", "--shape", "2,5,32,32"],
        ["data", "get", "imagenet", "--data", "nowhere"],
        ["report", "no-such-file.jsonl"],
    ],
)
def test_errors_are_one_line_and_code_2(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    try:
        code = main(words)
    except SystemExit as end:  # argparse refuses some of it itself
        code = end.code
    assert code == 2
    assert "Traceback" not in capsys.readouterr().err


def test_report_draws_the_toy(tmp_path: Path) -> None:
    assert main(["report", str(ROOT / "results" / "toy.jsonl"), "--out", str(tmp_path)]) == 0
    assert any(path.suffix == ".png" and path.stat().st_size > 10_000 for path in tmp_path.rglob("*"))


def test_every_result_line_is_json_with_its_experiment_and_device() -> None:
    for path in (ROOT / "results").glob("*.jsonl"):
        for line in path.read_text().splitlines():
            row = json.loads(line)
            assert row.get("experiment") or row.get("benchmark")
            assert row["device"]


def test_the_module_runs() -> None:
    done = subprocess.run([sys.executable, "-m", "firefly", "--version"], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0 and firefly.__version__ in done.stdout
