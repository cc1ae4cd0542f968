"""The plain training loop of `firefly grow`: the user's own batches and loss, growth in between, kept in a folder.

`fit` is faster, and wants its data as tensors on the device; here any loader will do. Every epoch draws its random
numbers from the seed and its own number, so a run that was killed goes on exactly where its folder ends.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from firefly.commands.arguments import move
from firefly.commands.loaders import Loaders, begin_epoch, blamed_on, count_steps, read_batches
from firefly.descent import Firefly
from firefly.errors import FireflyError
from firefly.ranks.talk import average_number
from firefly.stages.losses import Loss
from firefly.surgery.swap import switched
from firefly.training.engine import check_loss
from firefly.training.history import Epoch, History, Progress
from firefly.training.joining import Gradients, even_out
from firefly.training.recipe import list_factors
from firefly.training.resume import Trained

Told = Callable[[History], None]


@dataclass(frozen=True, eq=False)
class Work:
    """What is trained, on what, and how long."""

    model: nn.Module
    optimizer: Optimizer
    grower: Firefly
    loaders: Loaders
    loss: Loss
    epochs: int
    seed: int
    schedule: str
    compare: Callable[[Tensor, Tensor], Tensor] | None = None  # answers with targets, if the loss is no more than that

    def trained(self) -> Trained:
        return Trained(self.model, self.optimizer, self.grower)


def train(work: Work, history: History, save: Told, tell: Told, line: Progress) -> History:
    """Epoch after epoch from where the history ends; `tell` hears of each, `save` keeps it, in a twentieth of the time.

    A growth that is due after an epoch belongs to it: what is saved has grown.
    """
    saved, cost = time.perf_counter(), 0.0
    while len(history) < work.epochs:
        history = history.add(train_epoch(work, len(history), line))
        over = len(history) == work.epochs
        if not over and work.grower.due(len(history) - 1, history[-1].loss):
            line.close()
            begin_epoch(work.loaders.train, work.seed, len(history) - 1)
            work.model.train()
            work.grower.grow(work.loss, work.loaders.train, work.optimizer)
            history = history.mark_grown()
        line.show_epoch(history[-1], history.accuracy, over)
        if history[-1].grown:
            line.close()  # what is told of the growth begins in a line of its own
        tell(history)
        if over or history[-1].grown or time.perf_counter() - saved >= 20 * cost:
            start = time.perf_counter()
            save(history)
            saved = time.perf_counter()
            cost = saved - start
    return history


def train_epoch(work: Work, epoch: int, line: Progress) -> Epoch:
    """One pass over the batches, and the test."""
    begin_epoch(work.loaders.train, work.seed, epoch)
    work.model.train()
    steps = count_steps(work.loaders.train)
    factors = list_factors(work.schedule, epoch, work.epochs, steps or 1)
    rate, start = float(work.optimizer.param_groups[0]["lr"]) * factors[0], time.perf_counter()
    losses: list[Tensor] = []
    gradients = Gradients(work.model)
    with scaled_rates(work.optimizer) as scale:
        for step, batch in enumerate(read_batches(work.loaders.train)):
            scale(factors[min(step, len(factors) - 1)])
            work.optimizer.zero_grad(set_to_none=True)
            with blamed_on(batch, f"batch {step + 1} of epoch {epoch + 1}"):
                loss = check_loss(work.loss(work.model, batch))
                loss.backward()
            gradients.average()
            work.optimizer.step()
            losses.append(loss.detach())
            line.show_step(epoch + 1, step + 1)
    work.optimizer.zero_grad(set_to_none=True)
    even_out([work.model])
    mean = average_number(torch.stack(losses).double().mean().item() if losses else math.nan)
    seconds = time.perf_counter() - start
    if not math.isfinite(mean):
        raise FireflyError(
            f"the training loss became {mean} in epoch {epoch + 1}, at lr={rate:.3g}: lower --lr, or check the data"
        )
    row = Epoch(epoch + 1, mean, rate, seconds, sum(one.numel() for one in work.model.parameters()))
    return row if work.loaders.test is None else replace(row, **evaluate(work))


@contextmanager
def scaled_rates(optimizer: Optimizer) -> Iterator[Callable[[float], None]]:
    """A function that sets the learning rates to a factor of what they are; afterwards they are as before."""
    before = [group["lr"] for group in optimizer.param_groups]

    def scale(factor: float) -> None:
        for group, lr in zip(optimizer.param_groups, before):
            group["lr"] = lr * factor

    try:
        yield scale
    finally:
        scale(1.0)


@torch.no_grad()
def evaluate(work: Work) -> dict[str, Any]:
    """The mean loss over the samples of the test batches and, where the answers are scores of classes, the accuracy."""
    total, samples, right, answered = 0.0, 0, 0, 0
    with switched(work.model.modules(), False):
        for batch in read_batches(work.loaders.test or ()):
            count = len(batch[-1]) if isinstance(batch, (tuple, list)) else 1
            with blamed_on(batch, "a batch of the test"):
                answers, loss = answer(work, batch)
            total, samples = total + loss.item() * count, samples + count
            targets = batch[-1] if answers is not None else None
            if targets is not None and answers is not None and is_classes(answers, targets):
                right += int((answers.argmax(1) == targets.to(answers.device)).sum())
                answered += targets.numel()
    told: dict[str, Any] = {"test_loss": total / max(samples, 1)}
    return told | ({"test_accuracy": right / answered} if answered else {})


def answer(work: Work, batch: Any) -> tuple[Tensor | None, Tensor]:
    """The model's answers, where the loss is one of answers and targets, and the loss."""
    if work.compare is None:
        return None, work.loss(work.model, batch)
    *inputs, targets = move(batch, next(work.model.parameters()).device)
    answers = work.model(*inputs)
    return answers, work.compare(answers, targets)


def is_classes(answers: Tensor, targets: Tensor) -> bool:
    """Scores (N, classes, ...) of targets (N, ...) that are numbers of classes."""
    return not targets.is_floating_point() and answers.dim() == targets.dim() + 1
