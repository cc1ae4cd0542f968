"""The tasks of `find_pays.py`: a full network, the size to reach, its data, and how all networks of it are trained."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from gpt_text import GPT, judge_text, read_text, sum_text, take_apart
from pays_networks import ResNet
from torch import Tensor, nn

import firefly
from firefly.training import Recipe, evaluate
from firefly.vision import data, digits, models


def load_images(name: str, held: int, most: int | None = None) -> Callable[[bool], tuple[Any, Any]]:
    def load(test: bool) -> tuple[Any, Any]:
        train = data.load(name)
        train, judged = (train, data.load(name, split="test")) if test else data.hold_out(train, held)
        return (train.take(torch.arange(most)) if most else train), judged

    return load


def load_digits(test: bool) -> tuple[Any, Any]:
    images, labels, test_images, test_labels = digits.load()
    return ((images, labels), (test_images, test_labels)) if test else take_apart((images, labels), 500)


def load_text(test: bool) -> tuple[Any, Any]:
    if test:
        raise SystemExit("gpt-text has no test set: its text is split once, into training and held-out stretches")
    return take_apart(read_text(), 360)


def make_digits() -> nn.Module:
    return nn.Sequential(
        *(nn.Conv2d(1, 16, 3, padding=1, bias=False), nn.BatchNorm2d(16), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Conv2d(16, 32, 3, padding=1, bias=False), nn.BatchNorm2d(32), nn.ReLU()),
        *(nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(32 * 4, 10)),
    )


def make_sgd(parameters: Any, lr: float) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr, 0.9, nesterov=True, weight_decay=5e-4)


def make_adam(parameters: Any, lr: float) -> torch.optim.Optimizer:
    return torch.optim.AdamW(parameters, lr, betas=(0.9, 0.95), weight_decay=0.1)


def make_plain_adam(parameters: Any, lr: float) -> torch.optim.Optimizer:
    return torch.optim.Adam(parameters, lr)


@dataclass(frozen=True)
class Task:
    """`share` of the full network's parameters is the size; `start` are the widths that the finder begins with.

    `alike`: equal widths in all layers are a choice that somebody would make.
    """

    name: str
    make: Callable[[], nn.Module]
    load: Callable[[bool], tuple[Any, Any]]  # whether the test set is wanted: training data, what to measure on
    example: Tensor
    share: float
    start: float  # up to 1 a share of each width, else neurons of each
    recipe: Recipe
    optimizer: Callable[[Any, float], torch.optim.Optimizer] = make_sgd
    kinds: tuple[Any, ...] = (firefly.Split(), firefly.New())
    alike: bool = True
    growths: int = 0  # 0: as many as have factors of 1.5 in parameters or FLOPs


def judge(task: Task, model: nn.Module, held: Any) -> dict[str, float]:
    """Accuracy and loss on what was set apart; of text the loss per letter."""
    if task.recipe.loss is not None:
        return {"loss": judge_text(model, held)}
    score = evaluate(model, held)
    return {"accuracy": score.accuracy, "loss": score.loss}


@cache
def load_task(name: str, test: bool) -> tuple[Any, Any]:
    return TASKS[name].load(test)


CIFAR = torch.zeros(2, 3, 32, 32)
SHARED = {"epochs": 60, "batch": 256, "lr": 0.2}
WIDE = (firefly.Split(1.0), firefly.New(16, epsilon=0.03))  # as `wider-vgg19` has them, with fewer candidates
IMAGES = load_images("cifar10", 10_000)
VGG19 = Task("vgg19-4", lambda: models.vgg19(widths="full"), IMAGES, CIFAR, 0.04, 16, Recipe(**SHARED), kinds=WIDE)
TASKS = {
    task.name: task
    for task in (
        VGG19,
        Task("vgg19-6", VGG19.make, IMAGES, CIFAR, 0.062, 16, Recipe(**SHARED), kinds=WIDE),
        Task("resnet20", lambda: ResNet([16, 32, 64], 3, 3), IMAGES, CIFAR, 0.5, 0.25, Recipe(**SHARED), alike=False),
        Task(
            "gpt-text",
            GPT,
            load_text,
            torch.zeros(2, 128, dtype=torch.int64),
            0.5,
            0.25,
            Recipe(20, batch=32, lr=4e-3, warmup=0.5, augment=False, loss=sum_text),
            make_adam,
            alike=False,
            growths=3,  # most of its parameters are in a stream that cannot grow
        ),
        Task(  # at the size with which it ends in `growth_pays.py`, a quarter of this one
            "resnet-fashion",
            lambda: ResNet([32, 32, 64, 64], 1, 1),
            load_images("fashion-mnist", 10_000, 12_000),
            torch.zeros(2, 1, 28, 28),
            0.25,
            0.25,
            Recipe(12, batch=128, lr=0.01, augment=False),
            make_plain_adam,
            alike=False,
        ),
        Task(
            "digits",
            make_digits,
            load_digits,
            torch.zeros(2, 1, 14, 14),
            0.4,
            0.25,
            Recipe(6, batch=64, lr=0.05, augment=False),
        ),
    )
}
