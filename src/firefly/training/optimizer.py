"""An optimiser as a training needs it: made or checked, its state where a CUDA graph can hold it, and put back."""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import LBFGS, SGD, Adam, AdamW, Optimizer

from firefly.errors import FireflyError
from firefly.training.recipe import Recipe

State = dict[Tensor, dict[str, Any]]
ODD = ("amsgrad", "dampening", "centered", "maximize")  # told where they are on


def make_optimizer(model: nn.Module, recipe: Recipe) -> Optimizer:
    """SGD over the parameters that are not frozen."""
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    if not trained:
        raise FireflyError("the model has no parameter that requires a gradient: unfreeze some, or do not fit it")
    nesterov = recipe.nesterov and recipe.momentum > 0
    return SGD(trained, recipe.lr, recipe.momentum, nesterov=nesterov, weight_decay=recipe.weight_decay)


def check_optimizer(optimizer: Any, model: nn.Module) -> None:
    """Refuse what cannot train this model step by step."""
    if not isinstance(optimizer, Optimizer):
        kind = optimizer.__name__ if isinstance(optimizer, type) else type(optimizer).__name__
        raise FireflyError(
            f"optimizer is {kind}: give an object such as torch.optim.SGD(model.parameters(), lr=0.1), or None"
        )
    if isinstance(optimizer, LBFGS):
        raise FireflyError("LBFGS asks for the loss several times in a step, which fit does not offer: use another one")
    own = set(model.parameters())
    if own.isdisjoint(parameter for group in optimizer.param_groups for parameter in group["params"]):
        raise FireflyError("the optimizer holds none of this model's parameters: make it from model.parameters()")


def tell_groups(optimizer: Optimizer) -> list[dict[str, Any]]:
    """What the parameter groups say of the recipe, and not of the device."""
    keys = ("momentum", "nesterov", "weight_decay", "betas")
    told = [{key: value for key, value in group.items() if key in keys} for group in optimizer.param_groups]
    odd = [{key: group[key] for key in ODD if group.get(key)} for group in optimizer.param_groups]
    return [{"lr": float(group["lr"])} | one | more for group, one, more in zip(optimizer.param_groups, told, odd)]


def can_capture(optimizer: Optimizer) -> bool:
    """Whether the optimiser's step may be part of a CUDA graph, and fresh state of it is all zeros."""
    plain = not any(group.get("differentiable") or group.get("dampening") for group in optimizer.param_groups)
    return plain and type(optimizer) in (SGD, Adam, AdamW)


@torch.no_grad()
def ready_optimizer(optimizer: Optimizer, graph: bool) -> None:
    """Choose the implementation that suits, and give state that was loaded or grown its parameter's device and layout.

    Momentum without dampening starts as zeros, which is the same as not at all, because one kernel for all parameters
    wants all or none.
    """
    for group in optimizer.param_groups:
        if "capturable" in group:
            group["capturable"] = graph
        if graph and isinstance(optimizer, SGD):
            group["fused"], group["foreach"] = True, False
        for parameter in group["params"]:
            heavy = isinstance(optimizer, SGD) and group["momentum"] and not group["dampening"]
            if heavy and parameter.requires_grad:
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


def copy_state(optimizer: Optimizer) -> State:
    """All that the optimiser remembers, for `restore_state`."""
    return {
        parameter: {
            key: value.detach().clone() if isinstance(value, Tensor) else copy.deepcopy(value)
            for key, value in state.items()
        }
        for parameter, state in optimizer.state.items()
    }


def restore_state(optimizer: Optimizer, state: State) -> None:
    """Let the optimiser remember this and nothing else: what it learnt since is gone, not zero."""
    optimizer.state.clear()
    optimizer.state.update(state)
