"""What the folder of a training tells: the epochs and the growth before it, its own epochs, its checkpoint."""

from __future__ import annotations

import json
from pathlib import Path

from firefly.errors import FireflyError
from firefly.experiments.rows import Row


def write_note(folder: Path, before: int, growth: Row) -> None:
    """Keep what led to a training: the epochs before it, and the growth."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "growth.json").write_text(json.dumps({"before": before, "growth": growth}))


def read_note(folder: Path) -> Row:
    note: Row = json.loads((folder / "growth.json").read_text())
    if "before" not in note:
        raise FireflyError(f"{folder} was begun by an older version, which did not count its epochs: delete it")
    return note


def count_epochs(folder: Path) -> int:
    """Of the training in a folder."""
    return len(json.loads((folder / "fit.json").read_text())["history"]["epochs"])


def latest(folder: Path) -> Path:
    """The checkpoint that a finished training has left."""
    return folder / str(json.loads((folder / "fit.json").read_text())["checkpoint"])
