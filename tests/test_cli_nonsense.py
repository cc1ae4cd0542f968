"""The command line given nonsense: one line on stderr, exit code 2, never a traceback."""

import json
from pathlib import Path

import pytest

from firefly.cli import main

RESULTS = Path(__file__).parent.parent / "results"
MODELS = """
import sys
import torch


def raises():
    raise KeyError("inner")


def leaves():
    sys.exit(0)


def fake():
    return type("Fake", (), {"named_parameters": list})()


def breaks():
    class Breaks(torch.nn.Module):
        def forward(self, x):
            raise KeyError("forward")

    return Breaks()


value = 5
fine = lambda: torch.nn.Linear(3, 4)
"""


@pytest.fixture
def here(tmp_path, monkeypatch):
    """A folder with modules, a file where a folder should be, and nothing else."""
    (tmp_path / "odd_models.py").write_text(MODELS)
    (tmp_path / "odd_import.py").write_text("raise RuntimeError('at import')")
    (tmp_path / "odd_syntax.py").write_text("def (:")
    (tmp_path / "odd_exit.py").write_text("raise SystemExit(3)")
    (tmp_path / "a-file").write_text("text")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def refuse(words, capsys, said=""):
    try:
        code = main(words)
    except SystemExit as end:
        code = end.code
    printed = capsys.readouterr()
    assert code == 2 and said in printed.err and "Traceback" not in printed.err
    last = printed.err.strip().splitlines()[-1]
    assert last.startswith("firefly") and printed.out == ""
    return last


def write_rows(path, rows):
    path.write_text("\n".join(map(json.dumps, rows)))
    return str(path)


MODEL_ADDRESSES = [
    ".x:y",
    "..odd_models:fine",
    "x",
    ":",
    "::",
    ":a",
    "a:",
    "a:b:c",
    "a..b:c",
    "odd_import:x",
    "odd_syntax:x",
    "odd_exit:x",
    "odd_models:raises",
    "odd_models:leaves",
    "odd_models:value",
    "odd_models:fake",
    "odd_models:breaks",
    "odd_models:fine.x",
    "odd_models:__dict__",
    "os:getcwd",
    "odd-models:fine",
    "5:5",
    "builtins:nothing",
]


@pytest.mark.parametrize("address", [*MODEL_ADDRESSES, "a b:c", "", " "])
def test_what_names_no_model(here, capsys, address):
    last = refuse(["widths", address, "--shape", "2,3"], capsys)
    assert address.split(":")[0] in last or "does not run" in last


SHAPES = [
    "",
    ",",
    "2,,3",
    "x",
    "2,3.5",
    "-1,3",
    "0,3",
    "²,3",
    "9" * 30,
    "9" * 5000,
    "9" * 15 + "," + "9" * 15,
    "1e3",
    "2;3",
]


@pytest.mark.parametrize("shape", SHAPES, ids=lambda shape: shape[:12])
def test_what_is_no_shape(here, capsys, shape):
    refuse(["widths", "odd_models:fine", "--shape", shape], capsys, "--shape")


@pytest.mark.parametrize(
    "words",
    [
        [],
        ["nonsense"],
        ["--nonsense"],
        ["widths"],
        ["widths", "odd_models:fine"],
        ["widths", "odd_models:fine", "--shape", "2,3", "--dtype", "complex"],
        ["data"],
        ["data", "put"],
        ["data", "get"],
        ["data", "get", ""],
        ["data", "get", ".."],
        ["data", "get", "imagenet"],
        ["data", "get", "mnist", "--data", "a-file"],
        ["data", "get", "mnist", "--data", "a-file/inside"],
        ["data", "get", "mnist", "--data", "nul\0byte"],
        ["demo", "extra"],
        ["demo", "--epochs", "0"],
        ["demo", "--epochs", "-3", "--quick"],
        ["demo", "--epochs", "many"],
        ["demo", "--seed", "-1"],
        ["demo", "--seed", "9" * 30],
        ["demo", "--seed", "1.5"],
        ["demo", "--out", "a-file"],
        ["demo", "--out", "a-file/inside"],
        ["demo", "--out", "nul\0byte"],
        ["demo", "--out", "x" * 5000],
        ["reproduce"],
        ["reproduce", "nothing"],
        ["reproduce", "toy", "extra"],
        ["reproduce", "toy", "--truths", "0"],
        ["reproduce", "toy", "--truths", "-2"],
        ["reproduce", "toy", "--truths", "1", "--out", "a-file"],
        ["reproduce", "toy", "--truths", "1", "--out", "."],
        ["reproduce", "wider-vgg19", "--data", "nowhere"],
        ["reproduce", "wider-vgg19", "--set", "lr"],
        ["reproduce", "wider-vgg19", "--set", "lr=low"],
        ["reproduce", "wider-vgg19", "--methods", "luck"],
        ["reproduce", "wider-vgg19", "--device", "quantum"],
        ["reproduce", "deeper", "--dataset", "imagenet"],
        ["reproduce", "deeper", "--data", "a-file"],
        ["report"],
        ["report", "."],
        ["report", "nothing.jsonl"],
        ["report", "a-file"],
        ["report", "x" * 5000],
        ["report", str(RESULTS / "growth-seconds.jsonl")],
    ],
    ids=lambda words: " ".join(words)[:50].replace("\0", "0"),
)
def test_nonsense_is_refused_in_words(here, capsys, words):
    refuse(words, capsys)


@pytest.mark.parametrize("out", ["a-file", "a-file/inside", "/dev/null/inside", "x" * 5000], ids=lambda out: out[:20])
def test_a_figure_that_cannot_be_written(here, capsys, out):
    first = json.loads((RESULTS / "toy.jsonl").read_text().splitlines()[0])
    refuse(["report", write_rows(here / "toy.jsonl", [first]), "--out", out], capsys, "--out")


@pytest.mark.parametrize(
    "content", ["", "5", "[]", "{}", '{"experiment": 5}', '{"experiment": "x"}', "{", "[" * 99_999, "\udcff"]
)
def test_files_that_hold_no_results(here, capsys, content):
    (here / "odd.jsonl").write_bytes(content.encode(errors="surrogateescape"))
    refuse(["report", "odd.jsonl"], capsys)


@pytest.mark.parametrize("experiment", ["toy", "wider-vgg19", "deeper-mnist"])
def test_rows_that_lack_something_or_have_something_else(here, capsys, monkeypatch, experiment):
    """Whatever is done to the values of a row, there is a table or a line that says what is wrong."""
    monkeypatch.setattr("matplotlib.figure.Figure.savefig", lambda *_, **__: None)  # it takes its time
    rows = [json.loads(line) for line in (RESULTS / f"{experiment}.jsonl").read_text().splitlines()[:3]]
    refused = 0
    for key in rows[0].keys() - {"experiment"}:
        lacking = [{**rows[0]}, *rows[1:]]
        del lacking[0][key]
        for changed in (lacking, *([{**rows[0], key: odd}, *rows[1:]] for odd in (None, "x", [], {}, -1, 1e999))):
            code = main(["report", write_rows(here / "odd.jsonl", changed), "--out", str(here)])
            printed = capsys.readouterr()
            assert code in (0, 2) and (code == 0 or (printed.err.count("\n") == 1 and printed.out == ""))
            assert code == 0 or key in printed.err
            refused += code == 2
    assert refused > 15
