"""What a checkpoint is on the disk: whole before it is named, and nothing but its own folder."""

import hashlib
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import firefly
from firefly.errors import FireflyError
from firefly.experiments.rows import append
from firefly.training import fit


def make_net() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2))


def rewrite(path: Path, change: Callable[[dict[str, Any]], None]) -> None:
    """Alter the JSON of a checkpoint as somebody would who knows the format: its checksum is right."""
    content = json.loads(path.read_text())
    content.pop("checksum")
    change(content)
    checksum = hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()
    path.write_text(json.dumps(content | {"checksum": checksum}))


@pytest.mark.parametrize("way", ["../{}", "{folder}/../{}", "{parent}/{}"])
def test_a_checkpoint_reads_nothing_outside_its_folder(tmp_path: Path, way: str) -> None:
    folder = tmp_path / "run"
    firefly.save(folder, make_net())
    (tensors,) = folder.glob("*.safetensors")
    outside = tensors.rename(tmp_path / tensors.name)
    name = way.format(outside.name, folder=folder, parent=tmp_path)
    rewrite(folder / "checkpoint.json", lambda content: content.update(file=name))
    with pytest.raises(FireflyError):
        firefly.load(folder, make_net())
    outside.rename(tensors)
    rewrite(folder / "checkpoint.json", lambda content: content.update(file=tensors.name))
    firefly.load(folder, make_net())


class Disk:
    """Which files were written through to the disk, and which were when another was put into its place."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.synced: set[int] = set()
        self.named: dict[str, tuple[int, set[int]]] = {}
        fsync, replace = os.fsync, os.replace

        def watch_fsync(file: Any) -> None:
            self.synced.add(os.fstat(file).st_ino)
            fsync(file)

        def watch_replace(source: Any, target: Any, **options: Any) -> None:
            self.named[Path(target).name] = os.stat(source).st_ino, set(self.synced)
            replace(source, target, **options)

        patch.setattr(os, "fsync", watch_fsync)
        patch.setattr(os, "replace", watch_replace)

    def was_safe(self, name: str, *others: Path) -> bool:
        """Whether the file, and those that it names, were on the disk when it took its place."""
        own, synced = self.named[name]
        return {own, *(path.stat().st_ino for path in others)} <= synced


def test_a_checkpoint_is_on_the_disk_before_it_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    disk = Disk(monkeypatch)
    firefly.save(tmp_path, make_net())
    assert disk.was_safe("checkpoint.json", *tmp_path.glob("*.safetensors"))


def test_a_training_is_on_the_disk_before_it_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    disk = Disk(monkeypatch)
    data = torch.randn(8, 3), torch.arange(8) % 2
    fit(make_net(), data, 1, batch=4, checkpoint=tmp_path, device="cpu", progress=False)
    assert disk.was_safe("fit.json", *tmp_path.glob("*/checkpoint.json"), *tmp_path.glob("*/*.safetensors"))


def test_a_row_of_results_is_on_the_disk_when_it_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    disk = Disk(monkeypatch)
    append(tmp_path / "rows.jsonl", {"seed": 1})
    append(tmp_path / "rows.jsonl", {"seed": 2})
    assert (tmp_path / "rows.jsonl").stat().st_ino in disk.synced
    assert [json.loads(line)["seed"] for line in (tmp_path / "rows.jsonl").read_text().splitlines()] == [1, 2]
