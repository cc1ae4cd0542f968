"""A checkpoint as a folder: one JSON and one safetensors file, replaced in one atomic moment, checked when read."""

import hashlib
import json
import os
import secrets
import sys
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from functools import partial
from importlib import metadata
from pathlib import Path

import safetensors.torch
import torch

from firefly.checkpoint.forms import CONTENT, HEAD, OPTIMIZER, check_form
from firefly.checkpoint.packing import Json, Tensors, copy_out, revive
from firefly.errors import FireflyError, first_line
from firefly.surgery.guard import interruptible, unbroken

SCHEMA = 1


def publish(folder: Path, content: Json, tensors: Tensors) -> None:
    """Write the tensors, then the JSON that names them, and only then remove what was there before."""
    token = secrets.token_hex(8)
    file, temporary = folder / f"tensors-{token}.safetensors", folder / f"checkpoint-{token}.tmp"
    data = safetensors.torch.save({key: copy_out(key, tensor) for key, tensor in tensors.items()})
    # safetensors is always contiguous, so the memory format (channels-last, say) is kept as strides
    strides = {key: torch.empty_like(tensor, device="meta").stride() for key, tensor in tensors.items()}
    content = {"schema": SCHEMA, "firefly": find_version(), "torch": str(torch.__version__)} | content
    content |= {"file": file.name, "sha256": hashlib.sha256(data).hexdigest(), "strides": strides}
    content |= {"checksum": hash_json(content)}
    make_folder(folder)
    with interruptible(), Lock(folder, alone=True):
        with ExitStack() as undo:
            for one in (file, temporary):
                undo.callback(one.unlink, missing_ok=True)
            write(file, data)
            write(temporary, json.dumps(content, indent=1).encode())
            undo.pop_all()
        with unbroken():
            os.replace(temporary, folder / "checkpoint.json")
            for pattern in ("tensors-*.safetensors", "checkpoint-*.tmp"):
                for stale in folder.glob(pattern.replace("*", "[0-9a-f]" * 16)):
                    if stale != file:
                        stale.unlink(missing_ok=True)


def make_folder(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except (FileExistsError, NotADirectoryError) as error:
        raise FireflyError(f"{folder} cannot be a folder, as there is a file: give another place to save to") from error


def write(path: Path, data: bytes) -> None:
    """Write a file through to the disk."""
    with path.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


class Lock:
    """Inside the block no other process saves here nor, if `alone`, loads; one that is killed lets go."""

    descriptor: int | None = None

    def __init__(self, folder: Path, alone: bool) -> None:
        if sys.platform != "win32":
            import fcntl

            self.descriptor = os.open(folder, os.O_RDONLY)
            with suppress(OSError):  # some network file systems cannot lock
                fcntl.flock(self.descriptor, fcntl.LOCK_EX if alone else fcntl.LOCK_SH)

    def __enter__(self) -> None:
        """It is held from the start, since one may have to wait for it and an interrupt must come then."""

    def __exit__(self, *error: object) -> None:
        descriptor, self.descriptor = self.descriptor, None
        if descriptor is not None and sys.platform != "win32":
            import fcntl

            with suppress(OSError):  # closing alone would not let go if a worker was forked meanwhile
                fcntl.flock(descriptor, fcntl.LOCK_UN)
            os.close(descriptor)

    __del__ = __exit__


def read(folder: Path) -> tuple[Json, Tensors]:
    """The JSON of a checkpoint and its tensors in the memory format they had, if both are whole."""
    content, tensors = unpack(folder)
    for name in ("deeper", "history"):
        content.setdefault(name, [])
    path = folder / "checkpoint.json"
    check_form(content, CONTENT, f"{path}: content")
    for kind, form in (("optimizer", OPTIMIZER), ("grower", object)):
        if content.setdefault(kind, None) is not None:
            check_form(content[kind], form, f"{path}: {kind}")
    return content, tensors


def unpack(folder: Path) -> tuple[Json, Tensors]:
    """The same for a folder of any content that `publish` wrote."""
    path = folder / "checkpoint.json"
    if not path.is_file():
        missing = "checkpoint.json in the folder" if folder.is_dir() else "folder"
        raise FireflyError(f"no {missing} {folder}: give a folder that firefly.save wrote")
    with interruptible(), Lock(folder, alone=False):
        text = path.read_bytes()
        head = check_json(path, text)
        file = folder / head["file"]
        if not file.is_file():
            raise FireflyError(f"{file} is missing: copy the whole checkpoint folder, or load another one")
        data = file.read_bytes()
    if hashlib.sha256(data).hexdigest() != head["sha256"]:
        raise FireflyError(f"{file} is truncated or altered (its hash differs): load another checkpoint")
    tensors = read_tensors(file, data, head["strides"])
    return json.loads(text, object_hook=partial(revive, tensors=tensors)), tensors


def check_json(path: Path, text: bytes) -> Json:
    """The JSON of a checkpoint as it is written, if this Firefly can read it and nothing in it was altered."""
    try:
        content = json.loads(text)
        schema, checksum = content["schema"], content.pop("checksum", None)
        intact = checksum == hash_json(content)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise FireflyError(f"{path} is truncated or altered (not our JSON): load another checkpoint") from error
    if type(schema) is int and schema > SCHEMA:
        raise FireflyError(f"{path} was written by a newer Firefly (schema {schema}), this one reads {SCHEMA}: upgrade")
    if not intact or type(schema) is not int:
        raise FireflyError(f"{path} is truncated or altered (its checksum differs): load another checkpoint")
    check_form(content, HEAD, f"{path}: content")
    return content


def hash_json(content: Json) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def read_tensors(file: Path, data: bytes, strides: dict[str, list[int]]) -> Tensors:
    """The tensors of a file in the memory format they had."""
    try:
        flat = safetensors.torch.load(data)
    except Exception as error:
        raise FireflyError(f"{file} holds no safetensors ({first_line(error)}): load another checkpoint") from error
    if wrong := [key for key, tensor in flat.items() if not is_dense(tensor.shape, strides.get(key))]:
        raise FireflyError(f"{file}: {wrong[0]!r:.60} has no strides that fit its shape: load another checkpoint")
    return {key: torch.empty_strided(t.shape, strides[key], dtype=t.dtype).copy_(t) for key, t in flat.items()}


def is_dense(shape: Sequence[int], strides: Sequence[int] | None) -> bool:
    """Whether a tensor of this shape and these strides fills its memory without gaps or overlaps."""
    if strides is None or len(shape) != len(strides):
        return False
    filled = 1
    for stride, size in sorted((stride, size) for stride, size in zip(strides, shape) if size > 1):
        if stride != filled and 0 not in shape:
            return False
        filled *= size
    return True


def find_version() -> str:
    with suppress(metadata.PackageNotFoundError):
        return metadata.version("firefly-descent")
    return "unknown"
