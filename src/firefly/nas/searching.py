"""A search (Sec. 3, App. B.3): train the template, grow one cell after the other, and read the cells off the widths.

Half of the training images train the weights, the other half is grown on. Everything is kept in a folder, epoch by
epoch; the same call goes on where it was stopped.
"""

from __future__ import annotations

import json
import math
import time
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from firefly.errors import FireflyError
from firefly.nas.genotype import Genotype
from firefly.nas.growing import CellGrower, draw_looks
from firefly.nas.plan import Plan
from firefly.nas.template import Template
from firefly.nas.winners import find_winners, list_rivals, make_genotype
from firefly.training import History, fit
from firefly.training.precision import autocast, check_precision
from firefly.training.recipe import Loss, find_device
from firefly.training.resident import Batch, upload
from firefly.training.resume import replace_file
from firefly.vision.data import Images, hold_out


@dataclass(frozen=True)
class Searched:
    """What a search was: its plan, its growths, how the template learnt, and the cells."""

    plan: Plan
    seed: int
    growths: tuple[dict[str, Any], ...]
    accuracy: float | None  # of the template, on the images that it was grown on
    parameters: int
    seconds: dict[str, float]  # of training and of growing
    genotype: Genotype
    dataset: str = ""

    def to_dict(self) -> dict[str, Any]:
        found = {key: getattr(self, key) for key in ("dataset", "seed", "accuracy", "parameters", "seconds")}
        return found | {
            "plan": self.plan.to_dict(),
            "growths": list(self.growths),
            "genotype": self.genotype.to_dict(),
            "text": self.genotype.text,
        }


def search(
    data: Images,
    plan: Plan | None = None,
    *,
    folder: Path | str,
    seed: int = 0,
    deadline: float = float("inf"),
    device: torch.device | str | None = None,
    progress: bool = True,
    dense: bool | None = None,
    precision: str | None = None,
    channels_last: bool | None = None,
    **how: Any,
) -> Searched | None:
    """Search cells on a training set; None if the time (`deadline`, of time.monotonic()) was up before the end.

    `dense`: whether the template runs in few large kernels (by default on a GPU). The rest goes to `fit`:
    `precision="float32"`, `channels_last=False`, `compile=True`, `graph=False`, ...
    """
    plan, place = plan or Plan(), find_device(device)
    precision = check_precision(precision, place)
    lines = place.type == "cuda" and precision == "bf16" if channels_last is None else channels_last
    if plan.batch > len(data) // 2:
        raise FireflyError(
            f"batch={plan.batch} with {len(data)} images: half of them train, half are grown on, so a batch may "
            f"hold {len(data) // 2} at most"
        )
    train, growing = hold_out(data, len(data) // 2)
    torch.manual_seed(seed)
    fast = place.type == "cuda" if dense is None else dense
    model = Template(plan.channels, plan.begin, data.classes, plan.nodes, data.images.shape[1], fast).to(place)
    resident = upload(growing, place, augment=find_augment(data), channels_last=lines)
    example = draw_looks(resident, plan, seed, 0).batches[0][0][:4]
    grower = CellGrower(model, plan, example, seed)
    history = fit(
        model,
        train,
        plan.epochs,
        test=growing,
        batch=plan.batch,
        lr=plan.lr,
        schedule=partial(find_factor, plan) if plan.anneal else "cosine",
        weight_decay=plan.weight_decay,
        loss=make_loss(place, precision),
        augment=find_augment(data),
        seed=seed,
        evaluate_every=plan.epochs,
        grower=grower,
        grow_on=lambda epoch: draw_looks(resident, plan, 1000 + seed, epoch),
        each_epoch=lambda epoch, history, model: time.monotonic() > deadline,
        checkpoint=Path(folder) / "training",
        device=place,
        precision=precision,
        channels_last=lines,
        progress=progress,
        **how,
    )
    return conclude(model, plan, seed, grower, history, data.name) if len(history) == plan.epochs else None


def find_factor(plan: Plan, time: float) -> float:
    """Of the learning rate at this time, in epochs: along a cosine to 0 in every round, the last one of one epoch."""
    rounds = plan.growths * plan.every
    done = (time % plan.every) / plan.every if time < rounds else time - rounds
    return 0.5 * (1 + math.cos(math.pi * done))


def conclude(model: nn.Module, plan: Plan, seed: int, grower: CellGrower, history: History, name: str) -> Searched:
    grown = sum(sum(growth["seconds"].values()) for growth in grower.history)
    seconds = {"training": round(history.seconds, 1), "growing": round(grown, 1)}
    parameters = sum(parameter.numel() for parameter in model.parameters())
    genotype = read_log(grower.history, plan, f"{plan.title}-{seed}")
    return Searched(plan, seed, tuple(grower.history), history.accuracy, parameters, seconds, genotype, name)


def read_log(history: Any, plan: Plan, name: str = "") -> Genotype:
    """The cells that a log of growths says, under the rules of a plan."""
    return make_genotype(find_winners(list_rivals(history, plan), plan), plan, name)


def find_augment(data: Images) -> bool | str:
    """Digits are never mirrored, and crops of small images would lose too much."""
    if data.images.shape[-1] < 28:
        return False
    return "crop" if "mnist" in data.name or data.name == "svhn" else True


def make_loss(device: torch.device, precision: str | None = None) -> Loss:
    """Cross entropy, in this precision or that of the device, for training and for growing alike."""
    precision = check_precision(precision, device)

    def cross_entropy(model: nn.Module, batch: Batch) -> Tensor:
        with autocast(precision, device):
            answers = model(batch[0])
        return functional.cross_entropy(answers.float(), batch[1])

    return cross_entropy


def write_search(found: Searched, path: Path) -> Path:
    """The whole search as JSON: plan, growths with the width of every operation, the genotype in both forms."""
    path.parent.mkdir(parents=True, exist_ok=True)
    replace_file(path, found.to_dict())
    return path


def read_search(path: Path) -> Searched:
    """A search that `write_search` wrote."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        plan = read_plan(content["plan"])
        seed, growths = int(content["seed"]), tuple(content["growths"])
        genotype = read_log(growths, plan, f"{plan.title}-{seed}")
        told = (content["accuracy"], int(content["parameters"]), dict(content["seconds"]))
        dataset = str(content.get("dataset", ""))
    except (OSError, ValueError, KeyError, TypeError, IndexError, AttributeError) as error:
        raise FireflyError(f"{path} is no search that can be read ({type(error).__name__}: {error})") from error
    return Searched(plan, seed, growths, *told, genotype, dataset)


def read_plan(content: dict[str, Any]) -> Plan:
    known: dict[str, Any] = {key: tuple(value) if isinstance(value, list) else value for key, value in content.items()}
    return Plan(**known)
