"""The desk at which a task is learnt: a folder that holds the network between two trainings, and those of `fit`.

Whoever is killed finds everything as it was at the last checkpoint; the folders of older tasks are never touched.
"""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Collection, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from firefly.checkpoint.archive import publish, unpack
from firefly.checkpoint.forms import check_form
from firefly.continual.store import LEARNING, check_next
from firefly.errors import FireflyError
from firefly.training.lock import hold

Json = dict[str, Any]
FORM = {"name": str, "classes": int, "lesson": dict, "lists": {str: [int]}, "rounds": [dict], "growths": [dict]}


@dataclass(frozen=True)
class Desk:
    """Where the task is kept meanwhile; nowhere if there is no folder."""

    folder: Path | None
    name: str
    classes: int
    lesson: Json
    before: int  # tasks that were learnt already
    labels: str  # of the images, hashed: whoever mends them, or draws others, begins anew

    def find(self, name: str) -> Path | None:
        """The folder of one training; what another task left half cleared away has other names."""
        told = [self.name, self.classes, self.lesson, self.before, self.labels]
        whose = hashlib.sha256(json.dumps(told, sort_keys=True).encode())
        return None if self.folder is None else self.folder / f"{name}-{whose.hexdigest()[:16]}"

    def save(self, content: Json, tensors: dict[str, Tensor]) -> None:
        if self.folder is not None:
            known = {"name": self.name, "classes": self.classes, "lesson": self.lesson}
            known |= {"before": self.before, "labels": self.labels}
            publish(self.folder / "network", {**known, **content}, tensors)

    def load(self) -> tuple[Json, dict[str, Tensor]] | None:
        """What was saved last, if it was for the same task, to be learnt in the same way."""
        if self.folder is None or not (self.folder / "network" / "checkpoint.json").exists():
            return None
        try:
            content, tensors = unpack(self.folder / "network")
        except FireflyError as error:
            raise FireflyError(f"{error}; or delete {self.folder}, to begin {self.name!r} anew") from error
        check_form(content, FORM, f"{self.folder}: content")
        asked = json.loads(json.dumps(self.lesson))
        other = [key for key in asked if content["lesson"].get(key) != asked[key]]
        other += ["classes"] if content["classes"] != self.classes else []
        other += ["number of tasks before it"] if content.get("before", self.before) != self.before else []
        other += ["order or choice of labels"] if content.get("labels", self.labels) != self.labels else []
        if content["name"] != self.name or other:
            what = f"with another {other[0]}" if content["name"] == self.name else "and is not this one"
            raise FireflyError(
                f"the learning of task {content['name']!r} in {self.folder} was interrupted, {what}: "
                "call learn for it as before, to go on, or delete that folder, to begin anew"
            )
        return content, tensors

    def clear(self) -> None:
        if self.folder is not None:
            shutil.rmtree(self.folder, ignore_errors=True)


@contextmanager
def at_desk(
    root: Path | None, name: str, classes: int, lesson: Json, known: Collection[str], labels: str
) -> Iterator[Desk]:
    """A desk for the next task; one process at a time may sit at it."""
    if root is None:
        yield Desk(None, name, classes, lesson, len(known), labels)
        return
    check_next(root, len(known) + 1)
    with hold(root):
        check_next(root, len(known) + 1)
        for stale in root.glob(".task-*-" + "[0-9a-f]" * 16):  # left by a process that was killed
            shutil.rmtree(stale, ignore_errors=True)
        desk = Desk(root / LEARNING, name, classes, lesson, len(known), labels)
        if find_name(root / LEARNING / "network" / "checkpoint.json") in known:
            desk.clear()  # its folder has been written since
        yield desk


def find_name(path: Path) -> str | None:
    """Of the task that lies on the desk, if one does."""
    with suppress(OSError, ValueError, KeyError, TypeError):
        return str(json.loads(path.read_bytes())["name"])
    return None
