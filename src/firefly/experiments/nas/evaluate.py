"""Evaluation of cells (Sec. 3, Table 1): the same short training for all, at the same number of parameters.

A genotype is a file, the name of a published one, `plain`, `random-3`, or one of these with `permuted:` before it. The
number of channels is chosen so that all networks have the parameters of DARTS' second-order cell, within 5 %.
"""

from __future__ import annotations

import json
import re
import time
from bisect import bisect_left
from dataclasses import asdict, dataclass, replace
from functools import lru_cache
from hashlib import sha256
from pathlib import Path
from shutil import rmtree
from typing import Any

import torch
from torch import nn

from firefly.errors import FireflyError
from firefly.experiments.options import read_rows
from firefly.experiments.rows import Row, accuracy, append, count, count_flops, hardware
from firefly.experiments.setting import Place
from firefly.nas import Genotype, Network, draw_random, find_known, permute, read_genotype, train_loss
from firefly.nas.known import TEXTS
from firefly.training import History, fit
from firefly.vision.data import Images

NEAR = 0.05  # how far the sizes of networks that are compared may differ


@dataclass(frozen=True)
class Trial:
    """How a network of cells is trained."""

    cells: int = 8
    channels: int = 24  # from 20 up one more is less than 10 % of the parameters
    match: str = "darts-v2"  # the genotype whose size at these channels all have; "" for the channels as they are
    epochs: int = 60
    batch: int = 256
    lr: float = 0.1
    weight_decay: float = 3e-4
    cutout: int = 16
    drop_path: float = 0.1
    auxiliary: bool = True
    images: int | None = None
    held_out: int = 0


@dataclass(frozen=True)
class Entry:
    """Cells that are evaluated, and as what."""

    method: str
    genotype: Genotype


def read_entry(word: str) -> Entry:
    """What a word on the command line stands for."""
    if word.startswith("permuted:"):
        name, _, seed = word.removeprefix("permuted:").partition("@")
        return Entry("permuted", permute(read_entry(name).genotype, int(seed) if seed.isdecimal() else 0))
    if found := re.fullmatch(r"random-(\d+)", word):
        return Entry("random", draw_random(int(found[1])))
    if word in (*TEXTS, "plain"):
        return Entry("darts" if word == "darts-v2" else word, find_known(word))
    if not Path(word).exists():
        names = ", ".join((*TEXTS, "plain", "random-0", "permuted:darts-v2"))
        raise FireflyError(f"{word} is neither the file of a genotype nor one like {names}")
    genotype = read_saved(Path(word))
    found = re.match(r"firefly(-[a-z]+)*", genotype.name)
    return Entry(found[0] if found else genotype.name, genotype)


def read_saved(path: Path) -> Genotype:
    """The genotype of a file: of a whole search, or alone."""
    try:
        content = json.loads(path.read_text(encoding="utf-8")) if path.suffix == ".json" else None
    except (OSError, ValueError) as error:
        raise FireflyError(f"{path} is neither a genotype's file nor one of {', '.join(TEXTS)}: {error}") from error
    if isinstance(content, dict) and "genotype" in content:
        return read_genotype(content["genotype"], path.stem)
    return read_genotype(path)


@lru_cache(maxsize=1000)
def find_channels(genotype: Genotype, trial: Trial, classes: int, colours: int) -> int:
    """The channels with which the network comes closest to the size that all have."""
    if not trial.match:
        return trial.channels

    def measure(one: Any, channels: int) -> int:
        with torch.device("meta"):
            return count(Network(one, trial.cells, channels, classes, colours=colours))

    size = measure(find_known(trial.match), trial.channels)
    above = bisect_left(range(8 * trial.channels), size, key=lambda channels: measure(genotype, max(channels, 2)))
    found = min((max(above - 1, 2), max(above, 2)), key=lambda channels: abs(measure(genotype, channels) - size))
    if abs(measure(genotype, found) / size - 1) > NEAR:
        raise FireflyError(
            f"{genotype.name}: no number of channels gives {size:,} parameters within {NEAR:.0%}: use more channels, "
            "which are finer steps"
        )
    return found


@dataclass(frozen=True)
class Judge:
    """Trains entries and writes their rows."""

    trial: Trial
    train: Images
    test: Images
    dataset: str
    augment: bool | str
    place: Place
    more: dict[str, Any]  # for `fit`, and whether the network is `dense` (by default on a GPU)

    def judge(self, entry: Entry, seed: int) -> bool:
        """One network, unless it has been, here or by another process; False if time ran out."""
        if any(self.is_same(row, entry, seed) for row in read_rows(self.place.results)):
            return True
        if time.monotonic() > self.place.deadline:
            return False
        how, colours = self.trial, self.train.images.shape[1]
        channels = find_channels(entry.genotype, how, self.train.classes, colours)
        torch.manual_seed(seed)
        dense = self.more.get("dense", self.place.device.type == "cuda")
        options: dict[str, Any] = {"auxiliary": how.auxiliary, "drop_path": how.drop_path, "colours": colours}
        model = Network(entry.genotype, how.cells, channels, self.train.classes, dense=dense, **options)
        folder = self.folder(entry, seed)
        history = self.fit(model, folder, seed)
        if len(history) < how.epochs:
            return False
        row = self.make_row(entry, seed, model, channels, history)
        append(self.place.results, row)
        self.place.say(tell(row))
        rmtree(folder, ignore_errors=True)
        return True

    def fit(self, model: Network, folder: Path, seed: int) -> History:
        how = self.trial

        def prepare(epoch: int, history: History, network: nn.Module) -> bool:
            model.set_drop_path(epoch / how.epochs)
            return time.monotonic() > self.place.deadline

        return fit(
            model,
            self.train,
            how.epochs,
            test=self.test,
            batch=how.batch,
            lr=how.lr,
            weight_decay=how.weight_decay,
            loss=train_loss,
            augment=self.augment,
            cutout=how.cutout,
            seed=seed,
            evaluate_every=how.epochs,
            each_epoch=prepare,
            checkpoint=folder,
            device=self.place.device,
            progress=False,
            **{key: value for key, value in self.more.items() if key != "dense"},
        )

    def folder(self, entry: Entry, seed: int) -> Path:
        told = json.dumps([asdict(self.trial), entry.genotype.to_dict()["cells"], seed, self.dataset])
        name = re.sub(r"[^\w-]+", "-", entry.genotype.name)[:40]
        return self.place.folder / "evaluations" / f"{name}-{sha256(told.encode()).hexdigest()[:10]}"

    def is_same(self, row: Row, entry: Entry, seed: int) -> bool:
        same = row.get("genotype", {}).get("cells") == entry.genotype.to_dict()["cells"] and row["seed"] == seed
        return same and row["config"] == asdict(self.trial) and row["dataset"] == self.dataset

    def make_row(self, entry: Entry, seed: int, model: Network, channels: int, history: History) -> Row:
        small = Network(
            entry.genotype, self.trial.cells, channels, self.train.classes, colours=self.train.images.shape[1]
        )
        measured = "held_accuracy" if self.trial.held_out else "test_accuracy"
        return {
            "experiment": "nas",
            "method": entry.method,
            "cell": entry.genotype.name,
            "dataset": self.dataset,
            "seed": seed,
            "final": True,
            "channels": channels,
            "parameters": count(small),  # without the second head, as everybody counts them
            "flops": count_flops(small, torch.zeros(self.train.images.shape[1:])),
            measured: history.accuracy,
            "train_loss": history[-1].loss,
            "epochs": len(history),
            "train_seconds": round(history.seconds, 2),
            "device": hardware(self.place.device),
            **({"shared": True} if self.place.shared else {}),
            "genotype": entry.genotype.to_dict(),
            "config": asdict(self.trial),
        }


def tell(row: Row) -> str:
    return (
        f"{row['method']} ({row['cell']}), seed {row['seed']}: {row['parameters']:,} parameters, {row['channels']} "
        f"channels, {100 * (1 - accuracy(row)):.2f} % wrong after {row['epochs']} epochs, {row['train_seconds']:.0f} s"
    )


SMALL = Trial()
SETTINGS = {
    "quick": Trial(3, 8, "", 4, batch=32, lr=0.1, cutout=4, drop_path=0.0, auxiliary=False, images=1000),
    "middle": SMALL,
    "paper": replace(SMALL, cells=20, channels=40, match="", epochs=600, batch=96, lr=0.025, drop_path=0.2),
}
