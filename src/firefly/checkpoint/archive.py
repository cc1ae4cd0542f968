"""A checkpoint as a folder: one JSON and one safetensors file, replaced in one atomic moment, checked when read."""

import hashlib
import json
import math
import os
import secrets
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import partial
from importlib import metadata
from pathlib import Path
from typing import Any

import safetensors.torch
import torch
from torch import Tensor

from firefly.errors import FireflyError

SCHEMA = 1
UNSUPPORTED = {torch.complex32, torch.complex128, torch.float8_e8m0fnu, torch.float4_e2m1fn_x2}  # by safetensors

Tensors = dict[str, Tensor]
Json = dict[str, Any]


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
    folder.mkdir(parents=True, exist_ok=True)
    with hold(folder, alone=True):
        try:
            write(file, data)
            write(temporary, json.dumps(content, indent=1).encode())
        except BaseException:
            file.unlink(missing_ok=True)
            temporary.unlink(missing_ok=True)
            raise
        os.replace(temporary, folder / "checkpoint.json")
        for pattern in ("tensors-*.safetensors", "checkpoint-*.tmp"):
            for stale in folder.glob(pattern.replace("*", "[0-9a-f]" * 16)):
                if stale != file:
                    stale.unlink(missing_ok=True)


def write(path: Path, data: bytes) -> None:
    """Write a file through to the disk."""
    with path.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


@contextmanager
def hold(folder: Path, alone: bool) -> Iterator[None]:
    """Let no other process save here meanwhile nor, if `alone`, load; one that is killed lets go."""
    if sys.platform == "win32":
        yield
        return
    import fcntl

    descriptor = os.open(folder, os.O_RDONLY)
    try:
        with suppress(OSError):  # some network file systems cannot lock
            fcntl.flock(descriptor, fcntl.LOCK_EX if alone else fcntl.LOCK_SH)
        yield
    finally:
        with suppress(OSError):  # closing alone would not let go if a worker was forked meanwhile
            fcntl.flock(descriptor, fcntl.LOCK_UN)
        os.close(descriptor)


def read(folder: Path) -> tuple[Json, Tensors]:
    """The JSON of a checkpoint and its tensors in the memory format they had, if both are whole."""
    if not (folder / "checkpoint.json").is_file():
        missing = "checkpoint.json in the folder" if folder.is_dir() else "folder"
        raise FireflyError(f"no {missing} {folder}: give a folder that firefly.save wrote")
    with hold(folder, alone=False):
        text = (folder / "checkpoint.json").read_bytes()
        content = check_json(folder / "checkpoint.json", text)
        file = folder / Path(content["file"]).name
        if not file.is_file():
            raise FireflyError(f"{file} is missing: copy the whole checkpoint folder, or load another one")
        data = file.read_bytes()
    if hashlib.sha256(data).hexdigest() != content["sha256"]:
        raise FireflyError(f"{file} is truncated or altered (its hash differs): load another checkpoint")
    strides, flat = content["strides"], safetensors.torch.load(data)
    tensors = {key: torch.empty_strided(t.shape, strides[key], dtype=t.dtype).copy_(t) for key, t in flat.items()}
    return json.loads(text, object_hook=partial(revive, tensors=tensors)), tensors


def check_json(path: Path, text: bytes) -> Json:
    """The JSON of a checkpoint as it is written, if this Firefly can read it and nothing in it was altered."""
    try:
        content = json.loads(text)
        schema, checksum = int(content["schema"]), content.pop("checksum", None)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise FireflyError(f"{path} is truncated or altered (not our JSON): load another checkpoint") from error
    if schema > SCHEMA:
        raise FireflyError(f"{path} was written by a newer Firefly (schema {schema}), this one reads {SCHEMA}: upgrade")
    if checksum != hash_json(content):
        raise FireflyError(f"{path} is truncated or altered (its checksum differs): load another checkpoint")
    return content


def hash_json(content: Json) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def find_version() -> str:
    with suppress(metadata.PackageNotFoundError):
        return metadata.version("firefly-descent")
    return "unknown"


def copy_out(key: str, tensor: Tensor) -> Tensor:
    """A contiguous copy on the CPU that shares memory with no other."""
    if tensor.layout is not torch.strided or tensor.is_quantized or tensor.dtype in UNSUPPORTED:
        raise FireflyError(f"cannot save {key}: safetensors has no {tensor.layout} {tensor.dtype}; convert it before")
    return tensor.detach().to("cpu", copy=True, memory_format=torch.contiguous_format)


def pack(value: Any, where: str, tensors: Tensors) -> Any:
    """`value` as JSON: its tensors move to `tensors`; what JSON lacks is marked $tensor, $tuple, $float or $dict."""
    if value is None or type(value) in (bool, int, str):
        return value
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else {"$float": str(float(value))}
    if isinstance(value, Tensor):
        while where in tensors:  # 1 and "1" may both be keys
            where += "+"
        tensors[where] = value
        return {"$tensor": where}
    if type(value) in (list, tuple, torch.Size):
        items = [pack(item, f"{where}/{index}", tensors) for index, item in enumerate(value)]
        return items if type(value) is list else {"$tuple": items}
    if isinstance(value, dict):
        pairs = [(pack(key, where, tensors), pack(item, f"{where}/{key}", tensors)) for key, item in value.items()]
        plain = all(type(key) is str and not key.startswith("$") for key in value)
        return dict(pairs) if plain else {"$dict": pairs}
    kind = type(value).__name__
    raise FireflyError(f"cannot save {where} = {value!r:.80}: make it a tensor or a plain number instead of a {kind}")


def revive(value: Json, tensors: Tensors) -> Any:
    """What `pack` marked, as it was."""
    match value:
        case {"$tensor": key}:
            return tensors[key]
        case {"$float": text}:
            return float(text)
        case {"$tuple": items}:
            return tuple(items)
        case {"$dict": pairs}:
            return dict(pairs)
    return value
