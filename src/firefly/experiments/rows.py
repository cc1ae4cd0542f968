"""The rows of the results: what they keep of a network and of a growth, and how they are written."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

import firefly
from firefly.checkpoint.archive import Lock
from firefly.errors import FireflyError
from firefly.experiments.versions import list_versions
from firefly.ranks.talk import count_ranks, find_rank
from firefly.surgery.residual import find_layers
from firefly.surgery.swap import switched

Row = dict[str, Any]


def append(path: Path, *rows: Row) -> None:
    """Write rows through to the disk, with the versions that they were measured with beside those that they name.

    Of several ranks the first one does. What a process that was killed left of a row goes first.
    """
    if find_rank():
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    several = {"ranks": count_ranks()} if count_ranks() > 1 else {}
    told = [several | row | {"versions": {**row.get("versions", {}), **list_versions()}} for row in rows]
    data = "".join(json.dumps(row) + "\n" for row in told).encode()
    with Lock(path.parent, alone=True), path.open("ab") as file:
        known = path.read_bytes()
        end = find_end(known)
        if end < len(known):
            file.truncate(end)
        file.write(data if known[:end].endswith(b"\n") or not end else b"\n" + data)
        file.flush()
        os.fsync(file.fileno())


def find_end(data: bytes) -> int:
    """Where the whole rows end: a process that is killed as it writes leaves a piece of one, without its line's end."""
    end = data.rfind(b"\n") + 1
    try:
        json.loads(data[end:])
    except (ValueError, RecursionError):
        return end if data[end:].startswith(b"{") else len(data)
    return len(data)


def read_rows(path: Path, under_way: bool = False) -> list[Row]:
    """The networks of a results file, one per line; of one that is under way, those that are whole."""
    try:
        data = path.read_bytes()
        lines = data[: find_end(data) if under_way else None].decode().splitlines()
        rows = {number: json.loads(line) for number, line in enumerate(lines, start=1) if line.strip()}
    except OSError as error:
        raise FireflyError(f"{path} cannot be read: {error.strerror}") from error
    except (ValueError, RecursionError) as error:
        raise FireflyError(f"{path} is not a results file, one JSON object per line: {error}") from error
    for number, row in rows.items():
        if not isinstance(row, dict) or not ("experiment" in row or "benchmark" in row):
            raise FireflyError(f"{path}, line {number}: not an object that names its experiment")
        for key, value in row.items():
            if "benchmark" not in row and key in KINDS and not KINDS[key][1](value):
                raise FireflyError(f"{path}, line {number}: {key} is {KINDS[key][0]}, not {json.dumps(value)}")
    return list(rows.values())


def is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)


def is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def is_text(value: Any) -> bool:
    return isinstance(value, str)


KINDS: dict[str, tuple[str, Callable[[Any], bool]]] = {  # of what every table reads
    **dict.fromkeys(("experiment", "benchmark", "method", "dataset", "structure"), ("text", is_text)),
    **dict.fromkeys(("seed", "step", "epochs", "parameters"), ("a whole number from 0", is_count)),
    **dict.fromkeys(("loss", "share", "flops", "test_accuracy", "held_accuracy"), ("a number", is_number)),
    **dict.fromkeys(("train_seconds", "growth_seconds", "search_seconds"), ("a number", is_number)),
    "final": ("true or false", lambda value: isinstance(value, bool)),
    "config": ("an object", lambda value: isinstance(value, dict)),
}


def settings(row: Row) -> Row:
    """The settings that a row depends on: those of the long training only where there was one."""
    return {key: value for key, value in row["config"].items() if row["final"] or not key.startswith("long")}


def accuracy(row: Row) -> float:
    return float(row["held_accuracy"] if "held_accuracy" in row else row["test_accuracy"])


def count_seconds(row: Row, rows: list[Row]) -> float:
    """Of all the training and growing that led to a network: its own, and that of the rounds before it."""
    recipe = settings(row | {"final": False})
    before = row["step"] + row["final"]  # a long training follows the round of its step
    way = [one for one in rows if one["seed"] == row["seed"] and one["step"] < before and not one["final"]]
    way = [one for one in way if all(one["config"].get(key, value) == value for key, value in recipe.items())]
    rounds = [one for one in way if one["method"] == row["method"]]
    starts = [one for one in way if one["method"] == "start" and (rounds or "growth_seconds" in row)][:1]
    own = ("train_seconds", "growth_seconds", "search_seconds")
    return float(sum(one.get(key, 0.0) for one in (row, *rounds, *starts) for key in own))


def brief(growth: firefly.Growth) -> Row:
    """What a row keeps of a growth."""
    kinds = [kind for added in growth.added.values() for kind in added.items()]
    totals = {name: sum(number for kind, number in kinds if kind == name) for name in ("split", "new")}
    losses = (growth.loss_before, growth.loss_overgrown, growth.loss_after)
    return {
        **totals,
        "losses": losses,
        "predicted": growth.predicted,
        "shortened": growth.shortened,
        "flops": growth.flops[1],
        "seconds": {key: round(value, 3) for key, value in growth.seconds.items()},
        "notes": growth.notes,
    }


def hardware(device: torch.device) -> str:
    return torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu"


def count(model: nn.Module) -> int:
    return sum(parameter.numel() for parameter in model.parameters())


@torch.no_grad()
def count_flops(model: nn.Module, image: Tensor) -> int:
    """Of one image, forward: two per multiply-add."""
    with switched(model.modules(), False), FlopCounterMode(display=False) as counter:
        model(image.unsqueeze(0))
    return int(counter.get_total_flops())


def list_channels(model: nn.Module) -> list[int]:
    """The widths as the maker of the network takes them: its convolutions, without depthwise ones and new layers."""
    ours = {module for layer in find_layers(model).values() for module in layer.modules()}
    layers = [module for module in model.modules() if isinstance(module, nn.Conv2d) and module not in ours]
    return [layer.out_channels for layer in layers if layer.groups == 1]


def find_widths(rows: list[Row], seed: int, step: int) -> Any:
    """Those that Firefly found, for a network from scratch."""
    for row in rows:
        if (row["method"], row["seed"], row["step"]) == ("firefly", seed, step):
            return row["widths"]
    raise FireflyError(f"scratch takes the widths that firefly found: run --methods firefly --seeds {seed} first")
