"""How good a classifier is: its accuracy and loss on held-out data."""

from typing import Any, NamedTuple

import torch
from torch import nn
from torch.nn import functional

from firefly.errors import FireflyError
from firefly.surgery.swap import switched
from firefly.training.precision import autocast, check_precision
from firefly.training.recipe import Loss, is_whole
from firefly.training.resident import Resident, finish, upload


class Score(NamedTuple):
    """Of a classifier on a data set."""

    accuracy: float  # a fraction
    loss: float  # mean


@torch.no_grad()
def evaluate(
    model: nn.Module,
    data: Any,
    batch: int = 1000,
    precision: str | None = None,
    loss: Loss | None = None,
    like: Any = None,
) -> Score:
    """Accuracy and loss (cross entropy, or the given one) of `model` in eval mode, on the device it is on.

    `data` is as for `fit`; uint8 images without a `mean` and `std` of their own are normalised by those of `like`, the
    training data, as `fit` does with its `test`. The model's modes are as before afterwards.
    """
    if not is_whole(batch, 1):
        raise FireflyError(f"batch={batch!r}: give a whole number from 1 up")
    device = next((tensor.device for tensor in (*model.parameters(), *model.buffers())), torch.device("cpu"))
    precision = check_precision(precision, device)
    held = data if isinstance(data, Resident) else upload(data, device, like=like)
    check_labels(held)
    right, total = torch.zeros((), dtype=torch.int64, device=device), torch.zeros((), device=device)
    with switched(model.modules(), False), autocast(precision, device):
        for start in range(0, len(held), batch):
            labels = held.labels[start : start + batch]
            images = finish(held, held.images[start : start + batch])
            answers = model(images).float()
            right += (answers.argmax(1) == labels).sum()
            mean = functional.cross_entropy(answers, labels) if loss is None else loss(model, (images, labels))
            total += mean.float() * len(labels)
    return Score(right.item() / len(held), total.item() / len(held))


def check_labels(held: Resident) -> None:
    """Refuse what has no accuracy."""
    if held.labels.dim() != 1 or held.labels.is_floating_point():
        raise FireflyError(
            f"labels of shape {tuple(held.labels.shape)}, {held.labels.dtype}: accuracy needs class numbers; of other "
            "models measure the loss by yourself, without test="
        )
