"""What the folder of a training tells: the epochs and the growth before it, its own epochs, its checkpoint.

Of several ranks the first one writes and reads, and tells the others.
"""

from __future__ import annotations

import json
import time
from pathlib import Path

from firefly.errors import FireflyError
from firefly.experiments.rows import Row
from firefly.ranks.talk import decide, find_rank


def write_note(folder: Path, before: int, growth: Row) -> None:
    """Keep what led to a training: the epochs before it, and the growth."""
    if find_rank() == 0:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "growth.json").write_text(json.dumps({"before": before, "growth": growth}))


def read_note(folder: Path) -> Row:
    note = read(folder / "growth.json")
    if "before" not in note:
        raise FireflyError(f"{folder} was begun by an older version, which did not count its epochs: delete it")
    return note


def read(path: Path) -> Row:
    note: Row = decide(json.loads(path.read_text()) if find_rank() == 0 else {})
    return note


def is_begun(folder: Path) -> bool:
    """Whether there is a training in the folder, to be taken up."""
    return decide((folder / "fit.json").exists())


def read_epochs(folder: Path) -> list[Row]:
    """Of the training in a folder."""
    epochs: list[Row] = read(folder / "fit.json")["history"]["epochs"]
    return epochs


def is_growth_due(folder: Path) -> bool:
    """Whether the training was stopped between its last epoch and the growth that follows."""
    return bool(read(folder / "fit.json").get("due"))


def latest(folder: Path) -> Path:
    """The checkpoint that a finished training has left."""
    return folder / str(read(folder / "fit.json")["checkpoint"])


def is_late(deadline: float) -> bool:
    """Whether time is up, by the clock of the first rank."""
    return decide(time.monotonic() > deadline)
