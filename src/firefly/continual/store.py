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

from firefly.checkpoint.archive import make_folder, publish, unpack, write
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
        widths, tensors = dict(known["widths"]), {name: dict(told) for name, told in known["tensors"].items()}
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise FireflyError(f"{path} is damaged ({first_line(error)}): restore it, or use another folder") from error
    other = [n for n in {**widths, **blueprint["widths"]} if widths.get(n) != blueprint["widths"].get(n)]
    for name in {**tensors, **blueprint["tensors"]}:
        here, there = blueprint["tensors"].get(name, {}), tensors.get(name)
        if there != {key: value for key, value in here.items() if key in (there or {})}:  # an older Firefly told less
            other.append(name)
    if not other:
        return
    raise FireflyError(
        f"{path.parent} is the master of another small network: it differs in {', '.join(other[:5])}; "
        "give the make with which it was begun, or another folder"
    )


def write_task(root: Path, number: int, task: Task) -> None:
    """Add a task's folder, all or nothing."""
    check_next(root, number)
    folder = find_task(root, number)
    temporary = root / f".{folder.name}-{secrets.token_hex(8)}"
    tensors = {f"owned/{name}": tensor for name, tensor in task.owned.items()}
    tensors |= {f"private/{name}": tensor for name, tensor in task.private.items()}
    lists = {name: numbers.tolist() for name, numbers in task.lists.items()}
    content = {"name": task.name, "classes": task.classes, "number": number, "lists": lists, "told": task.told}
    content |= {"after": read_checksum(find_task(root, number - 1))} if number > 1 else {}
    try:
        publish(temporary, content, tensors)
        os.rename(temporary, folder)
    except BaseException:
        shutil.rmtree(temporary, ignore_errors=True)
        raise
    flush(root)


def check_next(root: Path, number: int) -> None:
    """See that the folder holds the master still, and all tasks but this next one."""
    if find_task(root, number).exists():
        raise FireflyError(f"{root}: another process has learnt a task meanwhile: open the master anew")
    for path in (root / "master.json", *([find_task(root, number - 1)] if number > 1 else [])):
        if not path.exists():
            raise FireflyError(f"{path} is gone since the master was opened: put it back, or open the master anew")


def read_checksum(folder: Path) -> str:
    """Of a task: the next one says that it was learnt after this one, and no other."""
    return str(json.loads((folder / "checkpoint.json").read_bytes())["checksum"])


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
    number, before = 1, ""
    while (folder := find_task(root, number)).exists():
        task = read_task(folder, number, before)
        before = read_checksum(folder)
        yield task
        number += 1
    beyond = sorted(int(path.name[5:]) for path in root.glob("task-*") if path.name[5:].isdecimal())
    if beyond and beyond[-1] > number:
        other = find_task(root, beyond[-1]).name
        raise FireflyError(f"{root} holds {other} but not task-{number:03d}: a task needs all those before it")


def read_task(folder: Path, number: int, before: str) -> Task:
    """A task, if it was learnt after the one of this checksum; folders of an older Firefly do not say."""
    content, tensors = unpack(folder)
    check_form(content, FORM, f"{folder}: content")
    if content["number"] != number:
        raise FireflyError(f"{folder} is the folder of task {content['number']}: it was renamed; name it as it was")
    if content.get("after", before) != before:
        raise FireflyError(
            f"{folder} was learnt after another task than that in {find_task(folder.parent, number - 1)}: "
            "they are of different masters; copy whole ones"
        )
    parts: dict[str, dict[str, Tensor]] = {"owned": {}, "private": {}}
    for key, tensor in tensors.items():
        sort, _, name = key.partition("/")
        parts[sort][name] = tensor
    lists = {name: torch.tensor(numbers, dtype=torch.long) for name, numbers in content["lists"].items()}
    return Task(content["name"], content["classes"], lists, parts["owned"], parts["private"], content["told"])


def count_bytes(root: Path, number: int) -> int:
    """What a task takes on the disk."""
    return sum(path.stat().st_size for path in find_task(root, number).iterdir())
