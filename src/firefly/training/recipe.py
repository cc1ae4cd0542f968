"""How to train: the learning rate over time, the loss, and an optimiser whose step a CUDA graph can hold (app. B.2)."""

import math
from collections.abc import Callable
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.optim import SGD, Adam, AdamW, Optimizer

from firefly.errors import FireflyError
from firefly.training.resident import Batch

Loss = Callable[[nn.Module, Batch], Tensor]
Schedule = str | Callable[[float], float]


class Grower(Protocol):
    """What `fit` needs of a `firefly.Firefly`."""

    example: Any

    def due(self, epoch: int, metric: float | None) -> bool: ...

    def grow(self, loss: Any, batches: Any, optimizer: Any) -> Any: ...

    def state_dict(self) -> dict[str, Any]: ...

    def load_state_dict(self, state: dict[str, Any], /) -> Any: ...


SCHEDULES: dict[str, Callable[[float], float]] = {  # of the share of the training that is done, to a factor of lr
    "cosine": lambda done: 0.5 * (1 + math.cos(math.pi * done)),
    "step": lambda done: 1.0 if done < 0.5 else 0.1 if done < 0.75 else 0.01,
    "constant": lambda done: 1.0,
}


def list_factors(schedule: Schedule, epoch: int, epochs: int, steps: int) -> list[float]:
    """What to multiply the learning rate with at each step of an epoch (the first is 0).

    A schedule is a name, or a function of the time in epochs: 3.25 is a quarter into the fourth.
    """
    if not callable(schedule) and schedule not in SCHEDULES:
        raise FireflyError(f"schedule={schedule!r}: use {', '.join(map(repr, SCHEDULES))}, or a function of the epoch")
    times = [epoch + step / steps for step in range(steps)]
    if callable(schedule):
        return [float(schedule(time)) for time in times]
    return [SCHEDULES[schedule](time / epochs) for time in times]


def make_loss(label_smoothing: float) -> Loss:
    """Cross entropy of the model's answers, in float32."""
    if not 0 <= label_smoothing < 1:
        raise FireflyError(f"label_smoothing={label_smoothing}: give a share from 0 up to, not including, 1")

    def cross_entropy(model: nn.Module, batch: Batch) -> Tensor:
        images, labels = batch
        return functional.cross_entropy(model(images).float(), labels, label_smoothing=label_smoothing)

    return cross_entropy


def make_optimizer(model: nn.Module, lr: float, momentum: float, nesterov: bool, weight_decay: float) -> Optimizer:
    """SGD over the parameters that are not frozen."""
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    if not trained:
        raise FireflyError("the model has no parameter that requires a gradient: unfreeze some, or do not fit it")
    try:
        return SGD(trained, lr, momentum, nesterov=nesterov and momentum > 0, weight_decay=weight_decay)
    except ValueError as error:
        raise FireflyError(f"lr={lr}, momentum={momentum}, weight_decay={weight_decay}: {error}") from error


def can_capture(optimizer: Optimizer) -> bool:
    """Whether the optimiser's step may be part of a CUDA graph, and fresh state of it is all zeros."""
    plain = not any(group.get("differentiable") for group in optimizer.param_groups)
    return plain and type(optimizer) in (SGD, Adam, AdamW)


@torch.no_grad()
def ready_optimizer(optimizer: Optimizer, graph: bool) -> None:
    """Choose the implementation that suits, and give state that was loaded or grown its parameter's device and layout.

    Momentum starts as zeros, which is the same as not at all, because one kernel for all parameters wants all or none.
    """
    for group in optimizer.param_groups:
        if "capturable" in group:
            group["capturable"] = graph
        if graph and isinstance(optimizer, SGD):
            group["fused"], group["foreach"] = True, False
        for parameter in group["params"]:
            if isinstance(optimizer, SGD) and group["momentum"] and parameter.requires_grad:
                state = optimizer.state[parameter]
                if state.get("momentum_buffer") is None:
                    state["momentum_buffer"] = torch.zeros_like(parameter)
            for name, value in optimizer.state.get(parameter, {}).items():
                if isinstance(value, Tensor):
                    optimizer.state[parameter][name] = lay_out(value, parameter, graph)


def lay_out(value: Tensor, parameter: Tensor, graph: bool) -> Tensor:
    """The state `value` where and as its parameter lies; a count of steps is on the GPU only for a graph."""
    if value.shape != parameter.shape:
        return value.to(parameter.device) if graph else value
    if value.device == parameter.device and value.stride() == parameter.stride():
        return value
    return torch.empty_like(parameter, dtype=value.dtype).copy_(value)


def list_state(optimizer: Optimizer) -> list[Tensor]:
    """Every tensor the optimiser remembers."""
    return [value for state in optimizer.state.values() for value in state.values() if isinstance(value, Tensor)]
