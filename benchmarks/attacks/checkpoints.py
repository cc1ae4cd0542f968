"""Checkpoints altered by someone who knows how to compute their checksums: every one is refused in words, or loads.

A value is replaced, removed, doubled or moved; names change; tensors are dropped, reshaped or retyped; bytes flip.
"""

import hashlib
import json
import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import safetensors.torch
import torch

import firefly
from attacks.run import Run, Tally, batches, fingerprint, load, loss, make_large, make_run, save
from firefly.checkpoint.archive import hash_json

STRANGE: list[Any] = [
    *(None, True, -1, 0, 1, 7, 10**30, 1.5, float("inf"), float("nan"), "", "0", "\0", "\ud800", "../x", "a" * 5000),
    *(
        [],
        {},
        [[]],
        [None],
        {"": 0},
        {"$tensor": "model/0.weight"},
        {"$tensor": "no"},
        {"$tensor": []},
        {"$float": "x"},
    ),
    *(
        {"$tuple": 3},
        {"$tuple": [1, "x"]},
        {"$dict": [[[], 1]]},
        {"$dict": [1]},
        {"$dict": [[1, 2]]},
        {"$float": "inf"},
    ),
]
Parts = tuple[dict[str, Any], dict[str, torch.Tensor]]


def list_places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """The path to every value inside."""
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [place for key, item in items for place in ((*path, key), *list_places(item, (*path, key)))]


def alter_value(content: dict[str, Any], luck: random.Random) -> str:
    """Do something to one value of the JSON; says what."""
    *path, key = luck.choice(list_places(content))
    parent: Any = content
    for step in path:
        parent = parent[step]
    how = luck.choice(["replace"] * 5 + ["remove", "double", "move", "rename"])
    if how == "remove":
        del parent[key]
    elif how == "double" and isinstance(parent, list):
        parent.append(parent[key])
    elif how == "rename" and isinstance(parent, dict):
        parent[luck.choice(["", "x", "$tuple", "$tensor", f"{key}.x"])] = parent.pop(key)
    elif how == "move":
        other = luck.choice(list_places(content))
        value: Any = content
        for step in other:
            value = value[step]
        parent[key] = json.loads(json.dumps(value))
    else:
        parent[key] = json.loads(json.dumps(luck.choice(STRANGE)))
    return f"{how} {'/'.join(map(str, (*path, key)))} -> {str(parent)[:60]}"


def alter_tensors(tensors: dict[str, torch.Tensor], luck: random.Random) -> str:
    """Do something to one tensor; says what."""
    name = luck.choice(list(tensors))
    tensor, how = tensors[name], luck.choice(["drop", "flatten", "cut", "longer", "retype", "rename", "wider"])
    if how in ("drop", "rename"):
        del tensors[name]
    changed: dict[str, Callable[[], torch.Tensor]] = {
        "flatten": lambda: tensor.reshape(-1),
        "cut": lambda: tensor[: len(tensor) // 2] if tensor.ndim else tensor[None],
        "longer": lambda: torch.cat([tensor, tensor]) if tensor.ndim else tensor[None],
        "retype": lambda: tensor.to(luck.choice([torch.float64, torch.int8, torch.bool])),
        "wider": lambda: torch.cat([tensor, tensor], -1) if tensor.ndim else tensor[None],
    }
    if how == "rename":
        tensors[name + "x"] = tensor
    elif how != "drop":
        tensors[name] = changed[how]().contiguous()
    return f"{how} {name}"


def forge(source: Path, target: Path, luck: random.Random) -> str:
    """An altered copy of a checkpoint whose checksums are right; says what was altered."""
    shutil.rmtree(target, ignore_errors=True)
    target.mkdir()
    content = json.loads((source / "checkpoint.json").read_text())
    file, data = content["file"], (source / content["file"]).read_bytes()
    turn = luck.random()
    if turn < 0.65:
        what = alter_value(content, luck)
    elif turn < 0.85:
        tensors = safetensors.torch.load(data)
        what = alter_tensors(tensors, luck)
        data = safetensors.torch.save(tensors)
        content["strides"] |= {key: list(tensor.stride()) for key, tensor in tensors.items() if luck.random() < 0.9}
    else:
        header = 8 + int.from_bytes(data[:8], "little")
        place = luck.choice([luck.randrange(8), luck.randrange(header), luck.randrange(len(data))])
        data = data[:place] + bytes([data[place] ^ 1 << luck.randrange(8)]) + data[place + 1 :]
        what = f"byte {place} of the tensors"
    if "file" in content and turn >= 0.65:
        content["sha256"] = hashlib.sha256(data).hexdigest()
    content.pop("checksum", None)
    text = json.dumps(content | {"checksum": hash_json(content)})
    if luck.random() < 0.03:
        text, what = "[" * 100_000 if luck.random() < 0.5 else '{"schema":' * 5000, "deep JSON"
    (target / "checkpoint.json").write_text(text)
    (target / file).write_bytes(data)
    return what


def attack(count: int, folder: Path, seed: int = 0) -> Tally:
    """Load altered checkpoints of a deepened and grown run."""
    tally, luck = Tally(), random.Random(seed)
    save(folder / "whole", make_large())
    for _ in range(count):
        what = forge(folder / "whole", folder / "altered", luck)
        run = make_run()
        before = fingerprint(run)
        try:
            load(folder / "altered", run)
        except firefly.FireflyError:
            tally.count("refused")
            if fingerprint(run) != before:
                tally.blame("changed", what)
        except Exception as error:
            tally.count("failed")
            tally.blame("raw", f"{what}: {type(error).__name__}: {error}")
        else:
            usable = is_usable(run)
            tally.count("loaded" if usable else "loaded, but of no use")
            tally.notes += [] if usable else [f"of no use: {what}"[:300]]
    return tally


def is_usable(run: Run) -> bool:
    """Whether a loaded run can be trained on."""
    try:
        loss(run.model, batches()[0]).backward()
        run.optimizer.step()
        return True
    except Exception:
        return False
