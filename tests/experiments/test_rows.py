"""A row says what it was measured with, and how long its network was trained, counted and not computed."""

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest
import torch

from firefly.errors import FireflyError
from firefly.experiments import notes, options, versions
from firefly.experiments.rows import append
from firefly.experiments.versions import find_commit, list_versions


def test_every_row_carries_its_versions(tmp_path: Path) -> None:
    path = tmp_path / "results" / "rows.jsonl"
    append(path, {"method": "one"})
    append(path, {"method": "two"}, {"method": "three"})
    append(path, {"method": "four", "versions": {"timm": "1.0"}})
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    assert [row["method"] for row in rows] == ["one", "two", "three", "four"]
    assert rows.pop()["versions"] == {"timm": "1.0", **rows[0]["versions"]}
    for row in rows:
        assert row["versions"].keys() == {"firefly", "commit", "torch", "cuda", "cudnn"}
        assert row["versions"]["torch"] == torch.__version__ and row["versions"]["cuda"] == torch.version.cuda


def git(folder: Path, *words: str) -> str:
    who = ["-c", "user.name=a", "-c", "user.email=a@b.c"]
    return subprocess.run(["git", "-C", str(folder), *who, *words], capture_output=True, text=True, check=True).stdout


def test_the_commit_is_that_of_the_checkout_and_changes_show(tmp_path: Path) -> None:
    package = tmp_path / "src" / "firefly"
    package.mkdir(parents=True)
    assert find_commit(package) is None  # installed, not checked out
    (package / "code.py").write_text("1")
    git(tmp_path, "init", "-q")
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "-qm", "first")
    commit = git(tmp_path, "rev-parse", "HEAD")[:12]
    assert find_commit(package) == commit
    (tmp_path / "notes.txt").write_text("beside the code")
    assert find_commit(package) == commit
    (package / "code.py").write_text("2")
    assert find_commit(package) == f"{commit}+"
    other = tmp_path / "lib" / "firefly"
    other.mkdir(parents=True)
    assert find_commit(other) is None  # in somebody's checkout, but not of ours


def test_without_git_there_is_no_commit(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def missing(*given: Any, **named: Any) -> None:
        raise FileNotFoundError("git")

    monkeypatch.setattr(versions.subprocess, "run", missing)
    assert find_commit(tmp_path) is None
    list_versions.cache_clear()
    assert list_versions()["commit"] is None and list_versions()["torch"]
    list_versions.cache_clear()


def test_what_an_older_version_did_not_count_is_refused(tmp_path: Path) -> None:
    notes.write_note(tmp_path, 7, {"growth_seconds": 1.0})
    assert notes.read_note(tmp_path) == {"before": 7, "growth": {"growth_seconds": 1.0}}
    (tmp_path / "growth.json").write_text(json.dumps({"growth_seconds": 1.0}))
    with pytest.raises(FireflyError, match="older version"):
        notes.read_note(tmp_path)


def test_a_copy_without_history_is_told_its_commit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(versions, "find_commit", lambda package: None)
    monkeypatch.setenv("FIREFLY_COMMIT", "abc123")
    list_versions.cache_clear()
    assert list_versions()["commit"] == "abc123"
    list_versions.cache_clear()


@pytest.mark.parametrize("cut", [1, 2, 40, 10_000])
def test_a_row_that_was_cut_short_is_written_anew(cut: int, tmp_path: Path) -> None:
    """A process that is killed as it writes leaves a piece of a row, or one without the end of its line."""
    path = tmp_path / "results.jsonl"
    rows = [{"experiment": "some", "step": step} for step in range(3)]
    append(path, *rows)
    whole = path.read_bytes()
    lines = whole.splitlines(keepends=True)
    path.write_bytes(b"".join(lines[:2]) + lines[2][: max(1, len(lines[2]) - cut)])
    left = options.read_rows(path)
    assert [row["step"] for row in left] == [0, 1, 2][: 3 if cut == 1 else 2]
    append(path, *rows[len(left) :], {"experiment": "some", "step": 3})
    assert [row["step"] for row in options.read_rows(path)] == [0, 1, 2, 3] and path.read_bytes().startswith(whole)


def test_a_file_that_holds_no_rows_is_not_taken_for_one_that_was_cut(tmp_path: Path) -> None:
    path = tmp_path / "notes.txt"
    path.write_text("mine")
    with pytest.raises(FireflyError, match="not a results file"):
        options.read_rows(path)
