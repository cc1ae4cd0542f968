"""A master on disk: one folder per task, written once and never touched again.

    master.json     the widths and tensors of the small network, by which the folder knows it again
    task-001/       the first task: its lists and how it was learnt in checkpoint.json; beside it, in safetensors, its
                    private tensors and the entries it owns, in a row for each weight
    task-002/       ...
    learning/       the task that is being learnt: its network, and the folders in which `fit` keeps the training

A task is written to a folder of another name first, and renamed: it is there as a whole, or not at all.
"""

from __future__ import annotations

import json
import os
import secrets
import shutil
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from firefly.checkpoint.archive import hash_json, make_folder, publish, unpack, write
from firefly.checkpoint.forms import check_form
from firefly.continual.ownership import Task
from firefly.errors import FireflyError, first_line

LEARNING = "learning"
FORM = {"name": str, "classes": int, "number": int, "lists": {str: [int]}, "told": dict}

Json = dict[str, Any]


def open_folder(root: Path, blueprint: Json) -> None:
    """Make the folder of a master, or see that it is one of the same small network."""
    path = root / "master.json"
    if path.exists():
        check_blueprint(path, blueprint)
        return
    make_folder(root)
    if any(root.glob("task-*")):
        raise FireflyError(f"{root} holds tasks but no master.json: copy the whole folder, or use another one")
    temporary = root / f"master-{secrets.token_hex(8)}.tmp"
    write(temporary, json.dumps({"schema": 1, "blueprint": blueprint}, indent=1).encode())
    os.replace(temporary, path)


def check_blueprint(path: Path, blueprint: Json) -> None:
    try:
        known = json.loads(path.read_bytes())["blueprint"]
        widths, tensors = known["widths"], known["tensors"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise FireflyError(f"{path} is damaged ({first_line(error)}): restore it, or use another folder") from error
    if hash_json(known) == hash_json(blueprint):
        return
    other = [n for n in {**widths, **blueprint["widths"]} if widths.get(n) != blueprint["widths"].get(n)]
    other += [n for n in {**tensors, **blueprint["tensors"]} if tensors.get(n) != blueprint["tensors"].get(n)]
    raise FireflyError(
        f"{path.parent} is the master of another small network: it differs in {', '.join(other[:5])}; "
        "give the make with which it was begun, or another folder"
    )


def write_task(root: Path, number: int, task: Task) -> None:
    """Add a task's folder, all or nothing."""
    folder = find_task(root, number)
    if folder.exists():
        raise FireflyError(f"{folder} is there already: another process learnt a task meanwhile; open the master anew")
    temporary = root / f".{folder.name}-{secrets.token_hex(8)}"
    tensors = {f"owned/{name}": tensor for name, tensor in task.owned.items()}
    tensors |= {f"private/{name}": tensor for name, tensor in task.private.items()}
    lists = {name: numbers.tolist() for name, numbers in task.lists.items()}
    content = {"name": task.name, "classes": task.classes, "number": number, "lists": lists, "told": task.told}
    try:
        publish(temporary, content, tensors)
        os.rename(temporary, folder)
    except BaseException:
        shutil.rmtree(temporary, ignore_errors=True)
        raise
    flush(root)


def flush(folder: Path) -> None:
    """See that the names in a folder are on the disk, too."""
    with suppress(OSError):  # where folders cannot be opened
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def find_task(root: Path, number: int) -> Path:
    return root / f"task-{number:03d}"


def read_tasks(root: Path) -> Iterator[Task]:
    """The tasks in the order in which they were learnt."""
    number = 1
    while (folder := find_task(root, number)).exists():
        yield read_task(folder, number)
        number += 1
    beyond = sorted(path.name for path in root.glob("task-*") if path.name >= find_task(root, number).name)
    if beyond:
        raise FireflyError(f"{root} holds {beyond[0]} but not task-{number:03d}: a task needs all those before it")


def read_task(folder: Path, number: int) -> Task:
    content, tensors = unpack(folder)
    check_form(content, FORM, f"{folder}: content")
    if content["number"] != number:
        raise FireflyError(f"{folder} is the folder of task {content['number']}: it was renamed; name it as it was")
    parts: dict[str, dict[str, Tensor]] = {"owned": {}, "private": {}}
    for key, tensor in tensors.items():
        sort, _, name = key.partition("/")
        parts[sort][name] = tensor
    lists = {name: torch.tensor(numbers, dtype=torch.long) for name, numbers in content["lists"].items()}
    return Task(content["name"], content["classes"], lists, parts["owned"], parts["private"], content["told"])


def count_bytes(root: Path, number: int) -> int:
    """What a task takes on the disk."""
    return sum(path.stat().st_size for path in find_task(root, number).iterdir())
