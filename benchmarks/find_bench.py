"""What every method of `find_pays.py` gets: the task, the size that must be met, networks of any widths, and a purse.

Every network begins as the full one with other widths and its weights drawn anew, so that all are made by the same
hands. Costs are counted: epochs that were trained, images in them, the FLOPs of each network that was trained.
"""

from __future__ import annotations

import json
import math
import os
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from find_tasks import Task
from safetensors.torch import load_file, save_file
from torch import nn

from firefly.anatomy.widths import Anatomy
from firefly.baselines.pruning import keep_neurons
from firefly.training import Recipe, fit
from firefly.training.find import draw_weights

Sizes = dict[str, int]


@dataclass(frozen=True)
class Try:
    """One line of the comparison."""

    method: str
    limit: str = "both"  # parameters, flops or both
    like: str = "scaled"  # whose FLOPs must not be exceeded: uniform or scaled
    epochs: int = 0  # 0 as the task has it
    lr: float = 0.0  # of the last training
    batch: int = 0
    rounds: int = 1  # epochs before a growth
    growths: int = 0  # 0 as the task has it
    steps: int = 40  # of step one
    kinds: str = ""  # split or new alone
    l1: float = 1e-4  # of the scales, for slimming
    finding: float = 1.0  # what random search may spend, against a finding


@dataclass
class Cost:
    """What was spent so far."""

    flops: float = 0.0  # of training, growing and scoring
    epochs: list[int] = field(default_factory=list)  # counted, training by training
    seconds: float = 0.0
    growing: float = 0.0  # seconds
    finding: float = 0.0  # FLOPs until the widths were known


@dataclass(frozen=True)
class Bench:
    """What a method gets."""

    task: Task
    words: Try
    seed: int
    train: Any
    recipe: Recipe  # of the last training
    full: Anatomy
    most: Mapping[str, int]  # parameters and FLOPs
    folder: Path  # of the full networks, which several prune

    @property
    def limits(self) -> dict[str, int]:
        """Those that hold for this try."""
        return {what: value for what, value in self.most.items() if self.words.limit in ("both", what)}

    def fits(self, sizes: Sizes) -> bool:
        return all(getattr(self.full, what)(sizes) <= value for what, value in self.limits.items())

    def build(self, sizes: Sizes) -> nn.Module:
        """The network with these widths, smaller or larger than the full one's, and fresh weights."""
        torch.manual_seed(self.seed)
        model = self.task.make()
        own = {name: torch.arange(size) % self.full[name].size for name, size in sizes.items()}
        keep_neurons(model, self.full, own)
        draw_weights(model)
        return model

    def train_on(
        self, model: nn.Module, flops: int, cost: Cost, recipe: Recipe | None = None, data: Any = None
    ) -> None:
        """A training of a network with so many FLOPs, and what it cost."""
        recipe, data = recipe or self.recipe, self.train if data is None else data
        begun = time.perf_counter()
        optimizer = self.task.optimizer(model.parameters(), recipe.lr)
        history = fit(model, data, recipe=recipe, optimizer=optimizer, progress=False)
        cost.seconds += time.perf_counter() - begun
        cost.flops += 3.0 * flops * count_images(data, recipe.batch) * len(history)
        cost.epochs.append(len(history))

    @property
    def kept(self) -> str:
        """The file of the full network that this try prunes, or that it is."""
        words, recipe = self.words, self.recipe
        slim = f"-l1-{words.l1:g}" if words.method in ("slimming", "full-l1") else ""
        rate = f"-lr-{words.lr:g}" if words.method.startswith("full") and words.lr else ""
        images = len(self.train[1] if isinstance(self.train, tuple) else self.train)  # fewer where some are set apart
        name = f"{self.task.name.split('-')[0]}-{images}-{recipe.epochs}-{recipe.batch}{rate}{slim}-{self.seed}"
        return str(self.folder / name)

    def keep_full(self, model: nn.Module, cost: Cost) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        tensors = {name: tensor.detach().cpu().contiguous() for name, tensor in model.state_dict().items()}
        told = {"flops": cost.flops, "epochs": cost.epochs, "seconds": cost.seconds}
        part = f"{self.kept}.{os.getpid()}.part"  # two tasks may have one full network
        save_file(tensors, part)
        os.replace(part, f"{self.kept}.safetensors")
        Path(part).write_text(json.dumps(told))
        os.replace(part, f"{self.kept}.json")  # last, so that it says that both are there

    def load_full(self, cost: Cost) -> nn.Module:
        """The full network as it was trained; its cost counts."""
        told = json.loads(Path(f"{self.kept}.json").read_text())
        cost.flops, cost.epochs, cost.seconds = told["flops"], told["epochs"], told["seconds"]
        model = self.task.make()
        model.load_state_dict(load_file(f"{self.kept}.safetensors"))
        return model.to(self.recipe.device)


def count_images(data: Any, batch: int) -> int:
    """That an epoch shows."""
    return len(data[1] if isinstance(data, tuple) else data) // batch * batch


# ---- widths ----------------------------------------------------------------------------------------------------------


def find_limits(task: Task, full: Anatomy, like: str) -> dict[str, int]:
    """The size in parameters; in FLOPs it is that of a network with equal widths, or with all scaled alike."""
    parameters = int(task.share * full.parameters())
    choose = {"uniform": even_widths, "scaled": scale_widths}[like]
    sizes = choose(full, lambda sizes: full.parameters(sizes) <= parameters)
    return {"parameters": parameters, "flops": full.flops(sizes)}


def even_widths(full: Anatomy, fits: Callable[[Sizes], bool]) -> Sizes:
    """The same number of neurons everywhere, up to one."""
    return fill({width.name: 1.0 for width in full.growable()}, fits)


def scale_widths(full: Anatomy, fits: Callable[[Sizes], bool]) -> Sizes:
    """The full network with all widths scaled alike."""
    return fill({width.name: float(width.size) for width in full.growable()}, fits)


def fill(shape: Mapping[str, float], fits: Callable[[Sizes], bool]) -> Sizes:
    """The largest widths of this shape that fit, and one neuron more where it still fits."""

    def scaled(factor: float) -> Sizes:
        return {name: max(1, math.floor(factor * value)) for name, value in shape.items()}

    low, high = 0.0, 1.0
    while fits(scaled(high)):
        low, high = high, 2 * high
    for _ in range(40):
        middle = (low + high) / 2
        low, high = (middle, high) if fits(scaled(middle)) else (low, middle)
    sizes = scaled(low)
    for name in sorted(shape, key=lambda name: sizes[name] - low * shape[name]):
        more = {**sizes, name: sizes[name] + 1}
        sizes = more if fits(more) else sizes
    return sizes


def start_widths(task: Task, full: Anatomy) -> Sizes:
    """Those that the finder begins with."""
    share = task.start
    return {w.name: max(1, round(share * w.size)) if share <= 1 else int(share) for w in full.growable()}
