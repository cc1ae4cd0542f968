"""The command line: what each command says, and how it fails."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import firefly
from firefly.cli import main

ROOT = Path(__file__).parent.parent


def test_help_teaches_with_an_example(capsys: pytest.CaptureFixture[str]) -> None:
    for words in (
        ["--help"],
        ["demo", "--help"],
        ["grow", "--help"],
        ["show", "--help"],
        ["export", "--help"],
        ["reproduce", "--help"],
        ["report", "--help"],
        ["widths", "--help"],
        ["data", "get", "--help"],
    ):
        with pytest.raises(SystemExit) as end:
            main(words)
        command = " ".join(["firefly", *words[:-1]])
        assert end.value.code == 0 and f"\n  {command} " in capsys.readouterr().out  # an indented line to copy


@pytest.mark.parametrize(
    "command", ["", "demo", "grow", "widths", "show", "export", "nas", "reproduce", "report", "data"]
)
def test_help_fits_a_terminal(
    command: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    with pytest.raises(SystemExit):
        main([*command.split(), "--help"])
    assert [line for line in capsys.readouterr().out.splitlines() if len(line) > 80] == []


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["--version"])
    assert firefly.__version__ in capsys.readouterr().out


def test_widths_of_a_model(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["widths", "firefly.vision.models:vgg16", "--shape", "2,3,32,32"]) == 0
    assert "13 of 14 widths can grow" in capsys.readouterr().out


def test_widths_finds_a_model_of_the_present_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "tokens_here.py").write_text(
        "from torch import nn\n\n\ndef make():\n    return nn.Sequential(nn.Embedding(9, 5), nn.Linear(5, 4))\n"
        "\n\ndef text():\n    return 'a model'\n"
    )
    monkeypatch.chdir(tmp_path)
    assert main(["widths", "tokens_here:make", "--shape", "2,7", "--dtype", "int64"]) == 0
    assert "1 of 2 widths can grow, 5 neurons" in capsys.readouterr().out
    assert main(["widths", "tokens_here:text", "--shape", "2,7"]) == 2
    assert "must return an nn.Module, not str" in capsys.readouterr().err
    assert "" not in sys.path


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["widths", "firefly.vision.models:nothing", "--shape", "2,3,32,32"], "nothing"),
        (["widths", "no_such_module:make", "--shape", "2,3,32,32"], "no_such_module"),
        (["widths", "firefly.vision.models", "--shape", "2,3,32,32"], "MODULE:FUNCTION"),
        (["widths", "firefly.vision.models:build_vgg", "--shape", "2,3,32,32"], "without arguments"),
        (["widths", "firefly.vision.models:vgg16", "--shape", "2,5,32,32"], "does not run"),
        (["data", "get", "imagenet", "--data", "nowhere"], "imagenet"),
        (["report", "no-such-file.jsonl"], "no-such-file.jsonl"),
        (["report", __file__], "one JSON object per line"),
        (["reproduce", "nothing"], "toy"),
        (["demo", "--epochs", "1"], "--epochs 1"),
    ],
)
def test_errors_are_one_line_and_code_2(words: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(words) == 2
    printed = capsys.readouterr()
    assert printed.out == "" and printed.err.count("\n") == 1
    assert printed.err.startswith("firefly: ") and said in printed.err


@pytest.mark.parametrize("words", [["widths", "a:b", "--shape", "2,x"], ["widths", "a:b", "--shape", "0,3"], []])
def test_a_wrong_command_line_is_refused(words: list[str]) -> None:
    with pytest.raises(SystemExit) as end:
        main(words)
    assert end.value.code == 2


def test_ctrl_c_ends_quietly(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def interrupt(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("firefly.experiments.demo.run", interrupt)
    assert main(["demo"]) == 130
    assert capsys.readouterr().err == ""


def test_reproduce_hands_its_options_to_the_experiment(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    seen = []
    monkeypatch.setattr("firefly.experiments.toy.run", lambda args: seen.append(args))
    assert main(["reproduce", "toy", "--full", "--truths", "2"]) == 0
    assert seen[0].full and seen[0].truths == 2
    with pytest.raises(SystemExit):
        main(["reproduce", "toy", "--help"])
    assert "--truths" in capsys.readouterr().out


def test_report_draws_the_toy(tmp_path: Path) -> None:
    assert main(["report", str(ROOT / "results" / "toy.jsonl"), "--out", str(tmp_path)]) == 0
    assert any(path.suffix == ".png" and path.stat().st_size > 10_000 for path in tmp_path.rglob("*"))


def test_test_images_and_held_out_ones_stand_in_tables_apart(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    files = [str(ROOT / "results" / f"{name}.jsonl") for name in ("deeper-mnist", "demo-epsilon", "versus-gromo")]
    rows = [json.loads(line) for line in Path(files[0]).read_text().splitlines()]
    for row in rows:
        row["held_accuracy"] = row.pop("test_accuracy") / 2
    (tmp_path / "held.jsonl").write_text("\n".join(map(json.dumps, rows)))
    assert main(["report", *files, str(tmp_path / "held.jsonl"), "--out", str(tmp_path)]) == 0
    printed = capsys.readouterr()
    tests, held = printed.out.split("\ndeeper-mnist-held-out:\n")
    assert "99.6" in tests and "49.8" not in tests and "49.8" in held
    assert {"deeper-mnist.png", "deeper-mnist-held-out.png"} <= {path.name for path in tmp_path.iterdir()}
    assert "networks of demo-epsilon, versus-gromo: left out" in printed.err


def test_every_result_line_is_json_with_its_experiment_and_device() -> None:
    for path in (ROOT / "results").glob("*.jsonl"):
        for line in path.read_text().splitlines():
            row = json.loads(line)
            assert row.get("experiment") or row.get("benchmark")
            assert row["device"]


def test_a_reader_that_has_seen_enough_is_no_error() -> None:
    read, write = os.pipe()
    os.close(read)
    words = ["widths", "firefly.vision.models:vgg16", "--shape", "2,3,32,32"]
    command = [sys.executable, "-m", "firefly", *words]
    done = subprocess.run(command, stdout=write, stderr=subprocess.PIPE, text=True, timeout=120)
    os.close(write)
    assert done.returncode == 141 and done.stderr == ""


def test_the_module_runs() -> None:
    done = subprocess.run([sys.executable, "-m", "firefly", "--version"], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0 and firefly.__version__ in done.stdout


def test_letters_that_a_terminal_lacks_are_no_error() -> None:
    """An old one knows no Greek: θ in a help, ± in a table."""
    command = [sys.executable, "-m", "firefly", "reproduce", "toy", "--help"]
    environment = os.environ | {"PYTHONIOENCODING": "ascii"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0 and "?" in done.stdout and done.stderr == ""
