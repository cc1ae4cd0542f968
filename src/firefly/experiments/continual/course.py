"""What is learnt in the experiments of continual learning: settings, tasks, and their small network (App. B.4)."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor, nn

from firefly.continual.data import hold_out
from firefly.errors import FireflyError
from firefly.experiments.rows import count
from firefly.training import Recipe
from firefly.vision import data, digits
from firefly.vision.models import vgg16

# CIFAR-100's 20 superclasses: that of each class
SUPERCLASSES = (
    *(4, 1, 14, 8, 0, 6, 7, 7, 18, 3, 3, 14, 9, 18, 7, 11, 3, 9, 7, 11, 6, 11, 5, 10, 7, 6, 13, 15, 3, 15, 0, 11, 1),
    *(10, 12, 14, 16, 9, 11, 5, 5, 19, 8, 8, 15, 13, 14, 17, 18, 10, 16, 4, 17, 4, 2, 0, 17, 4, 18, 17, 10, 3, 2, 12),
    *(12, 16, 12, 1, 9, 19, 2, 10, 0, 1, 16, 12, 9, 13, 15, 13, 16, 19, 2, 4, 6, 19, 5, 5, 8, 19, 18, 1, 2, 15, 6, 0),
    *(17, 8, 14, 13),
)

LEAST = {
    **dict.fromkeys(("widths", "epochs", "first_epochs", "batch", "start", "parameters", "steps", "images"), 1),
    **dict.fromkeys(("neurons", "fisher", "growths", "candidates", "mask_epochs"), 0),
}
RIVALS = ("strength", "fisher", "own")  # settings that Firefly does not depend on


@dataclass(frozen=True)
class Course:
    """What a run is; every row of the results carries it."""

    dataset: str = "cifar100"
    ways: int = 20  # tasks
    split: str = "random"  # which classes make a task: drawn by the seed, or "superclass"
    tasks: int | None = None  # only the first so many are learnt; None for all
    rotate: int = 0  # the order begins after so many tasks, which come at the end
    widths: int = 64  # channels of the small network, in every layer
    epochs: int = 100  # of each training
    first_epochs: int = 20  # of the training before the first growth of a later task
    start_epochs: int | None = None  # of the first task before its growth; None for as many as after it
    batch: int = 64
    lr: float = 0.1
    weight_decay: float = 5e-4
    cutout: int = 0  # pixels; the side of what is blanked out of a training image
    mixup: float = 0.0  # the largest share of another image that is mixed into a training image
    label_smoothing: float = 0.0
    aside: bool = True  # a tenth of the training images, on which accuracies are told; CPG alone needs them
    start: int = 150_000  # parameters that the first task may add to the small network
    parameters: int = 300_000  # that each growth of a later task may add
    neurons: int = 0  # that it may add instead, as in the paper; 0 for parameters
    growths: int = 1  # at most, in every later task
    until: float | None = None  # held-out accuracy at which a task grows no more
    steps: int = 200  # of step one
    rate: float = 0.02
    candidates: int = 15  # brand-new ones in every layer
    split_epsilon: float = 0.3
    unlock_epsilon: float = 1.0
    new_epsilon: float = 0.1
    pick: str = "mask"  # which old neurons a task begins with: "all", "none", or "mask"
    mask_epochs: int = 10  # of training the mask, if there is one
    price: float = 0.1  # of all neurons together while the mask is trained: the higher, the fewer are picked
    multiple: int = 1  # picked are so many of a layer, or twice as many, ...; 8 trains faster on a GPU
    strength: float = 1e5  # of EWC's penalty
    fisher: int = 200  # images on which EWC measures what matters
    own: str = "full"  # channels of a network per task that is as large as one likes: the usual ones, or "64"
    images: int | None = None  # only so many training images a task
    held_out: bool = False  # measured on training images set apart, not on the test set

    def __post_init__(self) -> None:
        if self.ways < 1 or self.classes < 2:
            raise FireflyError(f"ways={self.ways}: {self.dataset} is parted into tasks of two classes or more")
        if self.split not in ("random", "superclass"):
            raise FireflyError(f"split={self.split!r}: use 'random' or 'superclass'")
        if self.split == "superclass" and (self.dataset, self.ways) != ("cifar100", 20):
            raise FireflyError("split=superclass is for --ways 20: CIFAR-100 has 20 superclasses")
        for name, low in LEAST.items():
            if getattr(self, name) is not None and getattr(self, name) < low:
                raise FireflyError(f"{name}={getattr(self, name)}: give a whole number from {low} up")
        if self.lr <= 0 or self.strength < 0:
            raise FireflyError(f"lr={self.lr}, strength={self.strength}: a rate is above 0, a strength not below")
        if self.tasks is not None and not 1 <= self.tasks <= self.ways:
            raise FireflyError(f"tasks={self.tasks}: give a number from 1 to {self.ways}, or None for all")
        if self.own != "full" and not (self.own.isdecimal() and int(self.own)):
            raise FireflyError(f"own={self.own!r}: use 'full', or channels such as 64")

    @property
    def classes(self) -> int:
        return (10 if self.dataset == "digits" else 100) // self.ways

    def recipe(self, device: torch.device, epochs: int | None = None, **how: Any) -> Recipe:
        """The training that all methods share."""
        known: dict[str, Any] = {"batch": self.batch, "lr": self.lr, "weight_decay": self.weight_decay}
        known |= {"cutout": self.cutout, "mixup": self.mixup, "label_smoothing": self.label_smoothing, "device": device}
        known |= {"mixup": 0.0} if how.get("loss") else {}  # such a loss mixes by itself
        augment = self.dataset != "digits"
        return Recipe(epochs or self.epochs, **{**known, "augment": augment, "evaluate_every": 5, **how})


@dataclass(frozen=True, eq=False)
class Part:
    """One task."""

    name: str
    labels: tuple[int, ...]  # the classes of the data set that are its 0, 1, ...
    train: Any
    valid: Any  # training images held out, of the training of every method; None if there are none
    test: Any


def list_parts(course: Course, seed: int, root: Path | None) -> list[Part]:
    """The tasks in their order."""
    train = load(course, root, "train")
    test = None if course.held_out else load(course, root, "test")
    found = []
    for number, labels in enumerate(part_classes(course, seed), start=1):
        mine = take(train, labels, course.images)
        if test is None:
            mine, others = hold_out(str(number), mine, None, course.classes, 1000)
        else:
            others = take(test, labels, None)
        learn, valid = hold_out(str(number), mine, None if course.aside else False, course.classes, 2000)
        found.append(Part(f"task {number}", tuple(labels), learn, valid, others))
    return found


def part_classes(course: Course, seed: int) -> list[list[int]]:
    """The classes of every task, in the order in which they come."""
    parts = draw_classes(course, seed)
    first = course.rotate % course.ways
    return (parts[first:] + parts[:first])[: course.tasks]


def draw_classes(course: Course, seed: int) -> list[list[int]]:
    """The classes of every task; of superclasses only their order is drawn."""
    count, generator = course.ways * course.classes, torch.Generator().manual_seed(seed)
    if course.split == "superclass":
        order = torch.randperm(20, generator=generator).tolist()
        return [[k for k, one in enumerate(SUPERCLASSES) if one == name] for name in order]
    order = list(range(count)) if course.dataset == "digits" and not seed else []
    order = order or torch.randperm(count, generator=generator).tolist()
    return [order[first : first + course.classes] for first in range(0, count, course.classes)]


def load(course: Course, root: Path | None, split: str) -> Any:
    if course.dataset != "digits":
        return data.load(course.dataset, root, split)
    images, labels = digits.load()[:2] if split == "train" else digits.load()[2:]
    return SimpleNamespace(images=images, labels=labels)


def take(whole: Any, labels: list[int], most: int | None) -> Any:
    """The images of these classes, which become 0, 1, ..."""
    number = torch.full((int(whole.labels.max()) + 1,), -1)
    number[labels] = torch.arange(len(labels))
    mine: Tensor = (number[whole.labels] >= 0).nonzero().flatten()[:most]
    normal = {key: getattr(whole, key) for key in ("mean", "std") if hasattr(whole, key)}
    return SimpleNamespace(images=whole.images[mine], labels=number[whole.labels[mine]], **normal)


def find_network(course: Course) -> tuple[Callable[[int, Any], nn.Module], Tensor]:
    """make(classes, widths), and an example: VGG-16 without fully connected layers, or a small one for digits."""
    if course.dataset == "digits":
        return make_small, torch.zeros(2, 1, 14, 14)
    return (lambda classes, widths: vgg16(classes, widths)), torch.zeros(2, 3, 32, 32)


def make_small(classes: int, widths: Any) -> nn.Module:
    """Three convolutions for images of 14 x 14."""
    layers: list[nn.Module] = []
    before, width = 1, 16 if widths == "full" else int(widths)
    for number in range(3):
        layers += [nn.Conv2d(before, width, 3, padding=1, bias=False), nn.BatchNorm2d(width), nn.ReLU()]
        layers += [nn.MaxPool2d(2)] if number < 2 else []
        before = width
    head = [("pool", nn.AdaptiveAvgPool2d(1)), ("flatten", nn.Flatten()), ("head", nn.Linear(width, classes))]
    return nn.Sequential(OrderedDict([("features", nn.Sequential(*layers)), *head]))


def fit_widths(make: Callable[[int], nn.Module], parameters: float) -> int:
    """As many channels in every layer as so many parameters allow; at least 1."""
    widths = 1
    while count(make(widths + 1)) <= parameters:
        widths += 1
    return widths
