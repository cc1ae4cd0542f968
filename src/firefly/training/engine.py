"""The steps of an epoch, as fast as the device allows.

One step gathers a batch by a counter on the device, augments and normalises it, runs forward and backward, and updates
the weights; on a GPU all of that is one CUDA graph (`capture.py`). Nothing is read back during an epoch: the losses add
up on the device, and the learning rate comes from a table there. On a CPU the same closure is simply called.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from firefly.errors import FireflyError
from firefly.ranks.talk import average, count_ranks
from firefly.surgery.swap import exchanged
from firefly.training.average import copy_counters, follow, list_weights, pair
from firefly.training.capture import Step, identify
from firefly.training.joining import Gradients, even_out
from firefly.training.optimizer import can_capture, list_state, ready_optimizer
from firefly.training.precision import (
    add_steps,
    autocast,
    hand_over_gradients,
    make_stand_ins,
    refresh_copies,
)
from firefly.training.recipe import Recipe, list_factors, make_loss, settle
from firefly.training.resident import Resident, take

Objective = Callable[[Tensor], Tensor]


class Engine:
    """Trains `model` one epoch at a time. It notices by itself when the model has grown, and makes its step anew."""

    def __init__(
        self,
        model: nn.Module,
        data: Resident,
        optimizer: Optimizer,
        recipe: Recipe,
        average: nn.Module | None = None,
    ) -> None:
        self.model, self.data, self.optimizer, self.average = model, data, optimizer, average
        self.device = data.labels.device
        self.recipe = recipe = settle(replace(recipe, device=self.device))
        self.loss = recipe.loss or make_loss(recipe.label_smoothing)
        # a growth mixes nothing
        self.mixed = make_loss(recipe.label_smoothing, recipe.mixup) if recipe.mixup else self.loss
        self.precision = str(recipe.precision)
        self.graph = choose_graph(recipe.graph, self.device, optimizer)
        self.steps = len(data) // recipe.batch
        rows = 6 if data.cutout else 4
        self.table = torch.zeros(self.steps, rows, recipe.batch // count_ranks(), dtype=torch.int64, device=self.device)
        self.weights = torch.zeros(self.steps, device=self.device)  # of the average
        self.counter = torch.zeros(1, dtype=torch.int64, device=self.device)
        self.total = torch.zeros((), device=self.device)
        self.gradients = Gradients(model)
        self.step: Step[None] | None = None
        self.identity: tuple[object, ...] = ()

    def prepare(self) -> None:
        """Make the step, if there is none or the model has changed since."""
        if self.step is not None and self.identity == identify(self.list_model()):
            self.step.refresh()
            return
        self.release()
        models = [one for one in (self.model, self.average) if one is not None]
        for one in models if self.recipe.channels_last and len(self.data.lines) else ():
            one.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        self.pairs = None if self.average is None else pair(self.model, self.average)
        ready_optimizer(self.optimizer, self.graph)
        self.stand_ins = make_stand_ins(self.model, self.precision)
        groups = len(self.optimizer.param_groups)
        self.rates = torch.zeros(groups, self.steps, device=self.device)
        self.lrs = [torch.zeros((), device=self.device) for _ in range(groups)]
        self.objective = self.make_objective(again=self.step is not None)
        self.step = Step(self.advance, self.list_tensors, capture=self.graph, warmup=min(3, self.steps))
        self.identity = identify(self.list_model())
        self.gradients = Gradients(self.model)

    def release(self) -> None:
        """Give the captured step and its memory back."""
        if self.step is not None:
            self.step.release()

    def make_objective(self, again: bool) -> Objective:
        """The loss of the batch that a counter names; compiled if asked for."""
        model, data, table, loss, precision, device = (
            self.model,
            self.data,
            self.table,
            self.mixed,
            self.precision,
            self.device,
        )

        def objective(counter: Tensor) -> Tensor:
            batch = take(data, table.index_select(0, counter)[0])
            with autocast(precision, device):
                return loss(model, batch)

        if not self.recipe.compile:
            return objective
        if again:
            torch.compiler.reset()  # else every growth would count as a recompilation, and those are limited
        options = self.recipe.compile if isinstance(self.recipe.compile, dict) else None
        return torch.compile(objective, fullgraph=True, dynamic=False, options=options)

    def list_model(self) -> list[Tensor]:
        models = [one for one in (self.model, self.average) if one is not None]
        return [tensor for one in models for tensor in (*one.parameters(), *one.buffers())]

    def list_tensors(self) -> list[Tensor]:
        """All that a step changes."""
        own = [*self.stand_ins.copies, self.counter, self.total, *self.lrs]
        return [*self.list_model(), *list_state(self.optimizer), *own]

    def advance(self) -> None:
        """One step: the closure that is captured."""
        self.drop_gradients()
        with exchanged(self.stand_ins.slots):
            loss = check_loss(self.objective(self.counter))
            loss.backward()
        hand_over_gradients(self.stand_ins)
        self.gradients.average()
        if self.graph:
            for rates, lr in zip(self.rates, self.lrs):
                torch.index_select(rates, 0, self.counter, out=lr.view(1))
        self.optimizer.step()
        refresh_copies(self.stand_ins)
        if self.pairs is not None:
            follow(self.pairs, self.weights.index_select(0, self.counter)[0])
        self.total.add_(loss.detach())
        self.counter.add_(1)

    def drop_gradients(self) -> None:
        for parameter in (*self.model.parameters(), *self.stand_ins.copies):
            parameter.grad = None

    def train(self, epoch: int, table: Tensor, show: Callable[[int], None] = lambda step: None) -> Tensor:
        """The steps of one epoch (the first is 0), with its batches; their mean loss, still on the device."""
        self.prepare()
        assert self.step is not None
        self.model.train()
        refresh_copies(self.stand_ins)
        self.table.copy_(table)
        self.counter.zero_()
        self.total.zero_()
        if self.recipe.ema is not None:
            self.weights.copy_(torch.tensor(list_weights(self.recipe.ema, epoch, self.steps)))
        with self.set_lr(self.list_factors(epoch)) as set_step, tuned(self.recipe.tune):
            for number in range(self.steps):
                set_step(number)
                self.step()
                if not self.graph:
                    show(number + 1)
        self.drop_gradients()
        add_steps(self.stand_ins, self.steps)
        if self.pairs is not None:
            copy_counters(self.pairs)
        even_out(one for one in (self.model, self.average) if one is not None)
        mean = self.total / self.steps
        average([mean])
        return mean

    def list_factors(self, epoch: int) -> list[float]:
        how = self.recipe
        return list_factors(how.schedule, epoch, how.epochs, self.steps, how.hold, how.warmup)

    @contextmanager
    def set_lr(self, factors: list[float]) -> Iterator[Callable[[int], None]]:
        """Learning rates for an epoch: in a graph from a table on the device, else set before each step."""
        groups = self.optimizer.param_groups
        base = [float(group["lr"]) for group in groups]
        values = torch.tensor([[lr * factor for factor in factors] for lr in base])  # (groups, steps)

        def set_step(number: int) -> None:
            if not self.graph:
                for group, lr in zip(groups, base):
                    group["lr"] = lr * factors[number]

        try:
            if self.graph:
                self.rates.copy_(values)
                for group, tensor in zip(groups, self.lrs):
                    group["lr"] = tensor
            yield set_step
        finally:
            for group, lr in zip(groups, base):
                group["lr"] = lr


def check_loss(loss: Any) -> Tensor:
    """What the user's loss returned, if one can train with it."""
    if not isinstance(loss, Tensor):
        raise FireflyError(f"loss returned {type(loss).__name__}: return a scalar tensor, such as a mean")
    if loss.dim():
        raise FireflyError(f"loss returned a tensor of shape {tuple(loss.shape)}: return a scalar, such as a mean")
    if not loss.requires_grad:
        raise FireflyError("loss returned a tensor without a gradient: compute it from the model's answers, in torch")
    return loss


def choose_graph(graph: bool | None, device: torch.device, optimizer: Optimizer) -> bool:
    """Whether to capture: by default wherever it is possible."""
    possible = device.type == "cuda" and can_capture(optimizer) and count_ranks() == 1
    if graph and not possible:
        name = type(optimizer).__name__
        raise FireflyError(f"graph=True with {name} on {device}: use graph=None (it takes one GPU and SGD or Adam)")
    return possible if graph is None else graph


@contextmanager
def tuned(tune: bool) -> Iterator[None]:
    """Let cuDNN try its algorithms and keep the fastest, for a while."""
    before = torch.backends.cudnn.benchmark
    torch.backends.cudnn.benchmark = tune or before
    try:
        yield
    finally:
        torch.backends.cudnn.benchmark = before
