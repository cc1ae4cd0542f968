"""Stop anywhere, go on exactly: the folder in which `fit` keeps a run.

`fit.json` holds the recipe and the history, and names the checkpoint folder beside it that belongs to them
(`firefly.load` reads it too). Replacing that one small file is the only moment that counts, so whoever is killed at any
time finds the weights and the history of the same epoch. Checkpoints that `fit.json` no longer needs, and only those,
are deleted: whatever else is in the folder is not ours.
"""

from __future__ import annotations

import json
import os
import re
import secrets
import shutil
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Literal

from torch import nn
from torch.optim import Optimizer

from firefly import checkpoint
from firefly.checkpoint.archive import hash_json, write
from firefly.errors import FireflyError, first_line
from firefly.ranks.talk import decide, together
from firefly.surgery.guard import unbroken
from firefly.training.growing import Grower
from firefly.training.history import Epoch, History
from firefly.training.lock import Lock
from firefly.training.recipe import FIXED, Recipe

OURS = re.compile(r"epoch-\d+(-[0-9a-f]{8})?")  # the name of a checkpoint
GIVEN = ("images", "optimizer", "data", "test", "grow_on", "grower")  # with the recipe, to `fit`; as `fit` tells them
Json = dict[str, Any]
Pending = Literal["nothing", "question", "growth"]  # to be done after the last epoch: ask the grower, or let it grow


@dataclass(frozen=True, eq=False)
class Trained:
    """All that a training changes."""

    model: nn.Module
    optimizer: Optimizer
    grower: Grower | None = None
    average: nn.Module | None = None


def save_run(lock: Lock, trained: Trained, history: History, recipe: Json, pending: Pending) -> None:
    """Keep the state after the last epoch of `history`, and what is still to be done then."""
    if not lock.writes:
        return
    root, old = lock.folder, lock.current
    current = choose_name(root, len(history))
    lock.note(current.name)
    try:
        checkpoint.save(current, trained.model, optimizer=trained.optimizer, grower=trained.grower)
        if trained.average is not None:
            checkpoint.save(current / "average", trained.average)
        content: Json = {"checkpoint": current.name, "replaces": old}
        content |= {"asked": pending != "question", "due": pending == "growth"}
        content |= {"recipe": recipe, "history": history.to_dict()}
        with unbroken():  # else the one before might stay for ever
            replace_file(root / "fit.json", content | {"checksum": hash_json(content)})
            lock.current = current.name
            lock.note(None)
            delete(root, old)
    except BaseException:
        if (read_run(root) or {}).get("checkpoint") != current.name:
            delete(root, current.name)
        raise


def choose_name(root: Path, epoch: int) -> Path:
    """A folder that is not there yet: it may be a user's."""
    path = root / f"epoch-{epoch}"
    return path if not path.exists() else root / f"{path.name}-{secrets.token_hex(4)}"


def replace_file(path: Path, content: Json) -> None:
    """Write the JSON, through to the disk, in one atomic moment."""
    temporary = path.with_name(f"{path.name}-{secrets.token_hex(8)}.tmp")
    try:
        write(temporary, json.dumps(content, indent=1).encode())
        os.replace(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def delete(root: Path, name: Any) -> None:
    """A checkpoint that `fit` made and needs no more."""
    if isinstance(name, str) and OURS.fullmatch(name):
        shutil.rmtree(root / name, ignore_errors=True)


def load_run(
    lock: Lock, recipe: Json, trained: Trained, fixed: tuple[str, ...] = (*FIXED, *GIVEN)
) -> tuple[History, Pending]:
    """Bring all that was trained to where the run in the folder stopped: its history, and what was still to be done.

    The history is empty if there is no run. What of the recipe is `fixed` must be the same as then.
    """
    with together():
        content = find_run(lock, recipe, fixed) if lock.writes else None
    content = decide(content)
    if content is None:
        return History(), "nothing"
    folder = lock.folder / content["checkpoint"]
    with together():
        if trained.average is not None:
            checkpoint.load(folder / "average", trained.average)
        checkpoint.load(folder, trained.model, optimizer=trained.optimizer, grower=trained.grower)
    return content["history"], content["pending"]


def find_run(lock: Lock, recipe: Json, fixed: tuple[str, ...]) -> Json | None:
    """What `fit.json` says, of a run with this recipe; what a killed process left behind is cleared away."""
    content = read_run(lock.folder)
    name = content["checkpoint"] if content else None
    for leftover in (lock.unfinished, content["replaces"] if content else None):
        if leftover != name:
            delete(lock.folder, leftover)
    for leftover in lock.folder.glob("fit.json-" + "[0-9a-f]" * 16 + ".tmp"):
        leftover.unlink(missing_ok=True)
    if content is not None:
        lock.current = name
        check_recipe(lock.folder, content["recipe"], recipe, fixed)
    return content


def check_recipe(folder: Path, made: Json, recipe: Json, fixed: tuple[str, ...]) -> None:
    """Refuse to go on with another recipe; what an older Firefly did not know had its default, or may be anything."""
    usual = {field.name: field.default for field in fields(Recipe)}
    for key in fixed:
        before, now = made.get(key, usual.get(key)), json.loads(json.dumps(recipe.get(key)))
        if before != now and (key in made or key in usual):
            if isinstance(before, dict) and isinstance(now, dict):  # of a grower, the first setting that is another
                part = next(one for one in {**before, **now} if before.get(one) != now.get(one))
                key, before, now = f"{key} {part}", before.get(part), now.get(part)
            raise FireflyError(
                f"the run in {folder} was made with {key}={before!r}, this call has {now!r}: use the same, to go on "
                "exactly, or another folder, to start anew"
            )


def read_run(folder: Path) -> Json | None:
    """What `fit.json` says, checked: {checkpoint, replaces, pending, recipe, history}; None if there is no run."""
    path = folder / "fit.json"
    try:
        text = path.read_bytes()
    except FileNotFoundError:
        return None
    except OSError as error:
        raise FireflyError(f"{path} cannot be read: {error}") from error
    try:
        content = json.loads(text)
        checksum = content.pop("checksum", None)
        if checksum is not None and checksum != hash_json(content):  # Firefly 0.1 wrote none
            raise ValueError("its checksum differs")
        return read_content(content)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise FireflyError(f"{path} is damaged ({first_line(error)}): delete the folder to start again") from error


def read_content(content: Json) -> Json:
    """The parts of a run, each of its kind."""
    name, recipe, history = content["checkpoint"], content["recipe"], History.from_dict(content["history"])
    if not (isinstance(name, str) and OURS.fullmatch(name)):
        raise ValueError(f"checkpoint {name!r}")
    if not isinstance(recipe, dict):
        raise TypeError("recipe")
    for number, row in enumerate(history.epochs, start=1):
        if not is_epoch(row, number):
            raise ValueError(f"epoch {number}")
    pending = "growth" if content.get("due") else "nothing" if content.get("asked", True) else "question"
    told = {"replaces": content.get("replaces"), "pending": pending}
    return {"checkpoint": name, "recipe": recipe, "history": history, **told}


def is_epoch(row: Epoch, number: int) -> bool:
    """Whether what was read is a row of a history, and the one that belongs there."""
    numbers = [row.loss, row.lr, row.seconds, *(x for x in (row.test_accuracy, row.test_loss) if x is not None)]
    plain = all(type(value) in (int, float) for value in numbers) and type(row.grown) is bool
    return plain and type(row.parameters) is int and row.epoch == number
