"""A task's images: checked against its classes, and some of them held out, by image."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor, nn

from firefly.errors import FireflyError, first_line
from firefly.surgery.swap import switched
from firefly.training.resident import finish, split, upload

Data = Any  # an object with images and labels, and perhaps mean and std
HELD_OUT = 0.1


def hold_out(name: str, train: Any, valid: Any, classes: int, seed: int) -> tuple[Data, Data | None]:
    """The images to train on, and others: a tenth of the former if the user gives none, or none where that is False."""
    train = check_data(name, "train", train, classes)
    absent = sorted({*range(classes)} - {*train.labels.unique().tolist()})
    if absent:
        raise FireflyError(
            f"task {name!r}: no image of train is of class {absent[0]}: number the classes of each task from 0, "
            f"and give as many classes= as there are, not {classes}"
        )
    if valid is False:
        return train, None
    if valid is not None:
        return train, check_data(name, "valid", valid, classes)
    count = max(1, round(HELD_OUT * len(train.labels)))
    if count >= len(train.labels):
        raise FireflyError(f"task {name!r}: one image is too few to hold some out: give more, or valid=")
    order = torch.randperm(len(train.labels), generator=torch.Generator().manual_seed(seed))
    return subset(train, order[count:].sort().values), subset(train, order[:count].sort().values)


def check_data(name: str, part: str, data: Any, classes: int) -> Data:
    """What the user gave, as an object with images and labels, if the labels are those of the classes."""
    images, labels = split(data, f"task {name!r}: {part}")
    if labels.ndim != 1 or labels.is_floating_point() or labels.is_complex():
        raise FireflyError(
            f"task {name!r}: labels of {part} are {labels.dtype} of shape {tuple(labels.shape)}: give class numbers"
        )
    labels = labels.long()
    low, high = int(labels.min()), int(labels.max())
    if low < 0 or high >= classes:
        raise FireflyError(
            f"task {name!r}: {part} has labels from {low} to {high}, but {classes} classes are 0 to {classes - 1}: "
            "number the classes of each task from 0, or give classes= as many as there are"
        )
    normal = () if isinstance(data, (tuple, list)) else ("mean", "std")
    known = {key: getattr(data, key) for key in normal if hasattr(data, key)}
    return SimpleNamespace(images=images, labels=labels, **known)


def hash_labels(*parts: Data | None) -> str:
    """Of these parts in their order, by which a task that is taken up knows them again."""
    return hashlib.sha256(json.dumps([part.labels.tolist() for part in parts if part is not None]).encode()).hexdigest()


@torch.no_grad()
def try_images(name: str, parts: Iterable[Data | None], model: nn.Module) -> None:
    """Refuse images that the network cannot take, before anything is trained."""
    place = next(model.parameters()).device
    for part, data in zip(("train", "valid"), parts):
        if data is None:
            continue
        few = upload(subset(data, torch.arange(min(2, len(data.labels)))), place)
        try:
            with switched(model.modules(), False):
                model(finish(few, few.images))
        except (RuntimeError, TypeError, ValueError, IndexError) as error:
            what = f"{tuple(data.images.shape[1:])} and type {data.images.dtype}"
            raise FireflyError(
                f"task {name!r}: the network cannot take images of {part}, each of shape {what} "
                f"({first_line(error)}): give images like the example, or another make"
            ) from error


def subset(data: Data, numbers: Tensor) -> Data:
    """These images of a data set."""
    place = data.labels.device
    picked = {"images": data.images[numbers.to(data.images.device)], "labels": data.labels[numbers.to(place)]}
    return SimpleNamespace(**{**vars(data), **picked})
