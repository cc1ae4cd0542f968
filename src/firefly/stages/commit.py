"""The end of a growth: the chosen candidates become real, in place, with the optimiser's state.

`make_grown` gives the grown tensors while the model is still as it was; `commit` swaps them in, all or nothing. New
Parameters are made (the old ones may be part of a live graph) and take the old ones' places in the model and in the
same optimiser object, so that learning-rate schedules go on unbroken.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from firefly.errors import FireflyError
from firefly.neighborhood.overgrown import Epsilon, OverGrown
from firefly.ranks.wrap import bare
from firefly.stages.optimizer import MISSING, Change, Plans, Successors, follow, list_woken
from firefly.stages.selection import Chosen
from firefly.surgery.guard import see_through, unbroken
from firefly.surgery.swap import find_tensor, get_size, places, renew, set_size
from firefly.tensors import Plan, carry, make_plan


def plan_commit(over: OverGrown, chosen: Chosen) -> tuple[Plans, dict[str, int]]:
    """The index work for the chosen candidates, and the sizes of the widths that grow."""
    nobody = torch.empty(0, dtype=torch.long)
    rosters = {n: slots.choose(chosen.slots.get(n, nobody), over.device) for n, slots in over.slots.items()}
    sizes = {name: len(rosters[name]) for name in rosters if len(chosen.slots.get(name, nobody))}
    touched = (lay for lay in over.layouts.values() if any(run.width in sizes for dim in lay.dims for run in dim))
    return {lay.name: make_plan(lay, rosters, rosters, over.device) for lay in touched}, sizes


@torch.no_grad()
def make_grown(over: OverGrown, plans: Plans, epsilon: Epsilon, model: nn.Module | None = None) -> dict[str, Tensor]:
    """The grown tensors of the model, or of another one of the same architecture (an average of its weights)."""
    out = {}
    for name, plan in plans.items():
        base = over.base[name] if model is None else _same_shape(model, name, over.base[name])
        tensor = over.grown(name, plan, epsilon, base)
        out[name] = tensor.contiguous(memory_format=_memory_format(base))
    return out


def list_models(also: Iterable[nn.Module]) -> list[nn.Module]:
    """The models that grow along, out of the wrapper that torch's averages have."""
    if isinstance(also, nn.Module) or not isinstance(also, Iterable):
        raise FireflyError(f"also is a {type(also).__name__}: give a list of models, also=[ema]")
    found = [bare(one.module if isinstance(one, torch.optim.swa_utils.AveragedModel) else one) for one in also]
    for one in found:
        if not isinstance(one, nn.Module):
            raise FireflyError(f"also holds a {type(one).__name__}: give models of the same architecture")
    return found


def _same_shape(model: nn.Module, name: str, like: Tensor) -> Tensor:
    try:
        tensor = find_tensor(model, name).detach()
    except (AttributeError, KeyError):
        tensor = None
    if tensor is None or tensor.shape != like.shape:
        found = "no such tensor" if tensor is None else f"shape {tuple(tensor.shape)}"
        raise FireflyError(
            f"a model in `also` is not of the same architecture: {name} has {found} there, {tuple(like.shape)} here"
        )
    return tensor


def _memory_format(tensor: Tensor) -> torch.memory_format:
    for ndim, layout in ((4, torch.channels_last), (5, torch.channels_last_3d)):
        if tensor.ndim == ndim and tensor.is_contiguous(memory_format=layout):
            empty = not tensor.numel() and tensor.stride(1) == 1 < tensor.shape[1]  # is contiguous in every way
            if empty or not tensor.is_contiguous():
                return layout
    return torch.contiguous_format


def commit(
    grown: Mapping[nn.Module, Mapping[str, Tensor]],
    sizes: Iterable[tuple[str, str, int]],
    plans: Plans,
    optimizer: torch.optim.Optimizer | None = None,
) -> None:
    """Put the grown tensors and sizes into the models and the optimiser; on any failure everything is as before."""
    sizes = list(sizes)
    changes: list[Change] = []
    successors: Successors = {}
    for model, tensors in grown.items():
        olds = {name: find_tensor(model, name) for name in tensors}
        fresh = {name: renew(olds[name], tensor) for name, tensor in tensors.items()}
        for name, new in fresh.items():
            _keep_gradient(olds[name], new, plans[name])
        changes += [(store, key, old, new) for store, key, old, new in places(model, fresh)]
        for path, attribute, value in sizes:
            module = model.get_submodule(path)
            changes.append((module, attribute, get_size(module, attribute), value))
        successors |= {id(olds[name]): (new, name) for name, new in fresh.items()}
    if optimizer is not None:
        changes += follow(optimizer, successors, plans, list_woken(optimizer, changes, next(iter(grown))))
    done: list[Change] = []
    with unbroken():
        try:
            for change in changes:
                done.append(change)
                _put(change[0], change[1], change[3])
        except BaseException:
            for where, key, old, _ in reversed(done):
                _put(where, key, old)
            raise
        see_through()


@torch.no_grad()
def _keep_gradient(old: Tensor, new: Tensor, plan: Plan) -> None:
    """A gradient that waits for a step follows its neurons, like momentum: copies get their share, new ones nothing."""
    if old.grad is not None and not old.grad.is_sparse:
        new.grad = carry(plan, old.grad, shared="makes").contiguous(memory_format=_memory_format(new))


def _put(where: Any, key: Any, value: Any) -> None:
    if isinstance(where, nn.Module):
        set_size(where, key, value)
    elif value is MISSING:
        where.pop(key, None)
    else:
        where[key] = value
