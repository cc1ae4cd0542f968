"""`firefly report RUN...`: a page of what the folders hold, or a line that says what they lack."""

import json
from pathlib import Path

import pytest
from torch import nn

import firefly
from firefly.cli import main

CODE = """
import torch
from torch import nn

make_model = lambda: nn.Sequential(nn.Linear(4, 3), nn.ReLU(), nn.Linear(3, 3))
x = torch.randn(64, 4, generator=torch.Generator().manual_seed(0))
make_loaders = lambda: [(x[:32], torch.arange(32) % 3), (x[32:], torch.arange(32) % 3)]
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two runs, and a folder of the same name elsewhere."""
    place = tmp_path_factory.mktemp("reported")
    (place / "reported_here.py").write_text(CODE)
    words = ["grow", "reported_here:make_model", "--data", "reported_here:make_loaders", "--every", "1"]
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(place)
        for seed, out in enumerate(("one", "two", "other/one")):
            more = ["--epochs", "3", "--steps", "2", "--seed", str(seed), "--out", out, "--quiet"]
            assert main([*words, *more, "--budget", "neurons=2"]) == 0
    return place


def test_a_page_says_what_the_journal_says(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["report", str(folder / "one")]) == 0
    assert str(folder / "one" / "report.html") in capsys.readouterr().out
    page = (folder / "one" / "report.html").read_text().replace("<wbr>", "")
    for line in (folder / "one" / "history.jsonl").read_text().splitlines():
        row = json.loads(line)
        if row["event"] == "growth":
            before, after = row["parameters"]
            assert f"after epoch {row['epoch']}: " in page and f"{before:,} → {after:,} parameters" in page
    assert (
        "reported_here:make_model" in page
        and "seed" in page
        and "neurons=2" in page
        and "Training loss against FLOPs." in page
    )


def test_the_page_goes_where_it_is_wanted(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["report", str(folder / "two"), "--html"]) == 0
    assert str(folder / "two" / "report.html") in capsys.readouterr().out
    assert main(["report", str(folder / "one"), "--out", str(tmp_path / "new")]) == 0
    assert [path.name for path in (tmp_path / "new").iterdir()] == ["report.html"]


def test_several_runs_stand_side_by_side(folder: Path, tmp_path: Path) -> None:
    names = ["one", "two"]
    assert main(["report", *(str(folder / name) for name in names), "--html", str(tmp_path / "new" / "both.html")]) == 0
    page = (tmp_path / "new" / "both.html").read_text()
    assert all(f"How {name} grew" in page for name in names)
    assert main(["report", *(str(folder / name) for name in ("one", "other/one")), "--html", str(tmp_path / "c")]) == 0
    assert f"How {folder / 'other/one'} grew" in (tmp_path / "c").read_text()  # the same name twice: whole paths


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["one", "one"], "the same run is named twice"),
        (["one", "nothing"], "'nothing' is no folder"),
        (["one/history.jsonl"], "give its folder, firefly report one"),
        (["one", "reported_here.py"], "'reported_here.py' is no folder"),
        (["."], "holds no run"),
        (["one", "--html", "."], "--html"),
        (["one", "--html", "reported_here.py/page.html"], "--html"),
        (["reported_here.py", "--html", "page.html"], "is no folder"),
        (["checkpoint"], "a checkpoint without a history"),
    ],
)
def test_what_is_no_page(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], words: list[str], said: str
) -> None:
    monkeypatch.chdir(folder)
    firefly.save("checkpoint", nn.Linear(2, 2))
    assert main(["report", *words]) == 2
    printed = capsys.readouterr()
    assert said in printed.err and printed.err.count("\n") == 1 and printed.out == ""
