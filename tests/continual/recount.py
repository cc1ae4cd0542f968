"""The size of a master from its files alone: no line of Firefly, nor of torch, takes part in it.

    python tests/continual/recount.py FOLDER

An entry is counted once, however many tasks use it: sets of the neurons that it joins. Beside that stands what the
tensor files hold, which must be the same.
"""

import json
import math
import struct
import sys
from itertools import product
from pathlib import Path
from typing import Any


def list_entries(dims: list[Any], lists: dict[str, list[int]]) -> set[tuple[Any, ...]]:
    """The entries of one tensor that a task uses, each as the neurons or fixed places that it joins."""
    axes = []
    for place, runs in enumerate(dims):
        axis: list[tuple[Any, ...]] = []
        for number, (width, size, block) in enumerate(runs):
            names = lists[width] if width is not None else range(size)
            axis += [(place, number, name, part) for name in names for part in range(block)]
        axes.append(axis)
    return set(product(*axes))


def is_heard(entry: tuple[Any, ...], dims: list[Any], content: dict[str, Any], born: dict[str, int]) -> bool:
    """Not if a row born before would read one of the columns that its task says it does not listen to."""
    unheard = content["told"].get("unheard")
    if not unheard or len(dims) < 2:
        return True
    (_, run, row, _), (_, other, column, _) = entry[:2]
    maker, read = dims[0][run][0], dims[1][other][0]
    if maker is None or read is None or row >= born[maker]:
        return True
    numbers = content["lists"][read]
    return column not in numbers[len(numbers) - unheard.get(read, 0) :]


def read_header(path: Path) -> dict[str, list[int]]:
    """The shapes in a file of safetensors."""
    with path.open("rb") as file:
        (size,) = struct.unpack("<Q", file.read(8))
        header = json.loads(file.read(size))
    return {name: told["shape"] for name, told in header.items() if name != "__metadata__"}


def recount(root: Path) -> dict[str, int]:
    """{the union: parameters, each task: what it added}, by lists; a task's file must hold as many."""
    tensors = json.loads((root / "master.json").read_text())["blueprint"]["tensors"]
    union: dict[str, set[tuple[Any, ...]]] = {name: set() for name, told in tensors.items() if told["sort"] == "shared"}
    found: dict[str, int] = {}
    born: dict[str, int] = {}
    for folder in sorted(root.glob("task-*")):
        content = json.loads((folder / "checkpoint.json").read_text())
        shapes = read_header(folder / content["file"])
        added = 0
        for name, told in tensors.items():
            if told["sort"] != "shared":
                added += math.prod(shapes[f"private/{name}"]) if told["parameter"] else 0
                continue
            used = list_entries(told["dims"], content["lists"])
            own = {one for one in used - union[name] if is_heard(one, told["dims"], content, born)}
            if [len(own)] != shapes[f"owned/{name}"]:
                raise SystemExit(f"{folder}: {name} has {shapes[f'owned/{name}']} entries of its own, not {len(own)}")
            union[name] |= used
            added += len(own)
        born = {width: max([born.get(width, 0) - 1, *numbers]) + 1 for width, numbers in content["lists"].items()}
        found[content["name"]] = added
    return {**found, "union": sum(found.values())}


if __name__ == "__main__":
    print(json.dumps(recount(Path(sys.argv[1]))))
