"""The end of a growth: the chosen candidates become real, in place, with the optimiser's state.

`evaluate` gives the grown tensors while the model is still as it was; `commit` swaps them in, all or nothing. New
Parameters are made (the old ones may be part of a live graph) and take the old ones' places in the model and in the
same optimiser object, so that learning-rate schedules go on unbroken.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from firefly.budget import Chosen
from firefly.errors import FireflyError
from firefly.overgrown import Epsilon, OverGrown, subset
from firefly.swap import find_tensor, places
from firefly.tensors import Plan, carry, make_plan, per_entry

# How an optimiser's per-parameter state follows its neuron: like the gradient, like its square, or as it stands.
GRADIENTS = {"momentum_buffer", "exp_avg", "grad_avg", "prev", "mu"}
SQUARES = {"exp_avg_sq", "max_exp_avg_sq", "square_avg", "sum", "nu"}

Plans = dict[str, Plan]


def plan_commit(over: OverGrown, chosen: Chosen) -> tuple[Plans, dict[str, int]]:
    """The index work for the chosen candidates, and the sizes of the widths that grow."""
    rosters = subset(over, chosen.split, chosen.new)
    sizes = {name: len(roster) for name, roster in rosters.items() if len(roster) > roster.size}
    touched = (lay for lay in over.layouts.values() if any(run.width in sizes for dim in lay.dims for run in dim))
    return {lay.name: make_plan(lay, rosters, rosters, over.base[lay.name].device) for lay in touched}, sizes


@torch.no_grad()
def evaluate(over: OverGrown, plans: Plans, epsilon: Epsilon, model: nn.Module | None = None) -> dict[str, Tensor]:
    """The grown tensors of the model, or of another one of the same architecture (an average of its weights)."""
    out = {}
    for name, plan in plans.items():
        base = over.base[name] if model is None else _same_shape(model, name, over.base[name])
        tensor = over.grown(name, plan, epsilon, base)
        out[name] = tensor.contiguous(memory_format=_memory_format(base))
    return out


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
        fresh = {name: _renew(olds[name], tensor) for name, tensor in tensors.items()}
        changes += [(store, key, old, new) for store, key, old, new in places(model, fresh)]
        for path, attribute, value in sizes:
            module = model.get_submodule(path)
            changes.append((module, attribute, getattr(module, attribute), value))
        successors |= {id(olds[name]): (new, name) for name, new in fresh.items()}
    if optimizer is not None:
        changes += _optimizer_changes(optimizer, successors, plans, _woken(optimizer, changes, next(iter(grown))))
    done: list[Change] = []
    try:
        for change in changes:
            done.append(change)
            _put(change[0], change[1], change[3])
    except BaseException:
        for where, key, old, _ in reversed(done):
            _put(where, key, old)
        raise


MISSING = object()
Change = tuple[Any, Any, Any, Any]  # (a dict or module, a key or attribute, what is there, what shall be there)
Successors = dict[int, tuple[Tensor, str]]  # id of a tensor: its successor, and its name


def _put(where: Any, key: Any, value: Any) -> None:
    if isinstance(where, nn.Module):
        setattr(where, key, value)
    elif value is MISSING:
        where.pop(key, None)
    else:
        where[key] = value


def _renew(old: Tensor, tensor: Tensor) -> Tensor:
    """The grown tensor as a parameter like the old one, with the marks and hooks that the user put on it."""
    if not isinstance(old, nn.Parameter):
        return tensor
    new = nn.Parameter(tensor, requires_grad=old.requires_grad)
    new.__dict__.update(old.__dict__)
    for hook in (old._backward_hooks or {}).values():
        new.register_hook(hook)
    for hook in (getattr(old, "_post_accumulate_grad_hooks", None) or {}).values():
        new.register_post_accumulate_grad_hook(hook)
    return new


def check_optimizer(optimizer: Any, model: nn.Module) -> None:
    if not isinstance(optimizer, torch.optim.Optimizer):
        raise FireflyError(f"optimizer must be a torch.optim.Optimizer, not {type(optimizer).__name__}")
    if isinstance(optimizer, torch.optim.LBFGS):
        raise FireflyError(
            "LBFGS keeps a history of all parameters as one vector, which cannot follow a growth: pass no optimizer, "
            "and make a new one from model.parameters() afterwards"
        )
    own = {id(p) for p in model.parameters()}
    if not any(id(p) in own for group in optimizer.param_groups for p in group["params"]):
        raise FireflyError(
            "the optimizer holds none of this model's parameters: pass the one made from model.parameters(), "
            "or rebuild it if the model was replaced since"
        )


@torch.no_grad()
def _optimizer_changes(
    optimizer: torch.optim.Optimizer, successors: Successors, plans: Plans, joining: list[Tensor]
) -> list[Change]:
    changes: list[Change] = []
    for group in optimizer.param_groups:
        params = [successors[id(p)][0] if id(p) in successors else p for p in group["params"]]
        params += joining if group is optimizer.param_groups[-1] else []
        changes.append((group, "params", group["params"], params))
        for old in group["params"]:
            if id(old) in successors and old in optimizer.state:
                new, name = successors[id(old)]
                state = optimizer.state[old]
                larger = {key: _grow_state(plans[name], key, value, old, state) for key, value in state.items()}
                whole = all(value is not None or state[key] is None for key, value in larger.items())
                changes.append((optimizer.state, old, state, MISSING))
                changes.append((optimizer.state, new, MISSING, larger if whole else {}))
    if isinstance(optimizer, torch.optim.Adagrad):  # the one optimiser that wants a state before the first step
        start = optimizer.defaults["initial_accumulator_value"]
        olds = [p for group in optimizer.param_groups for p in group["params"] if p not in optimizer.state]
        for new in joining + [successors[id(old)][0] for old in olds if id(old) in successors]:
            state = {"step": torch.tensor(0.0), "sum": torch.full_like(new, start)}
            changes.append((optimizer.state, new, MISSING, state))
    return changes


def _woken(optimizer: torch.optim.Optimizer, changes: list[Change], model: nn.Module) -> list[Tensor]:
    """The parameters of layers that wake up and that the optimiser does not hold yet: they join its last group."""
    held = {id(p) for group in optimizer.param_groups for p in group["params"]}
    own = {id(p) for p in model.parameters()}
    moved = {id(old): (old, new) for _, _, old, new in changes if id(old) in own - held}
    return [new for old, new in moved.values() if not old.numel() and new.numel() and new.requires_grad]


def _grow_state(plan: Plan, key: str, value: Any, old: Tensor, state: Mapping[str, Any]) -> Any:
    """One entry of the state; None where its shape is not the parameter's, which starts the state afresh."""
    if not isinstance(value, Tensor) or value.ndim == 0:
        return value.clone() if isinstance(value, Tensor) else value
    if value.shape != old.shape:
        return None
    if not value.numel():  # a layer that wakes up; Adagrad alone begins with a state
        return carry(plan, value) if key == "sum" else None
    normalised = key == "momentum_buffer" and "square_avg" in state  # RMSprop's has been divided already
    if key == "ax":  # ASGD's average of the parameter itself
        return carry(plan, value)
    if key in GRADIENTS:  # each copy of a split neuron gets half of its gradient, a new one begins at rest
        return carry(plan, value, halve=None if normalised else "makes")
    power = dict.fromkeys(SQUARES, 2.0) | {"exp_inf": 1.0}
    out = carry(plan, value, halve="makes" if key in power else None, power=power.get(key, 1.0))
    born = torch.zeros_like(out, dtype=torch.bool)
    for dim, touched in enumerate(plan.touched):
        if touched:
            born |= per_entry(plan, dim, lambda roster, _: roster.born.float(), 0.0, out) > 0
    # a second moment of zero would make the first steps of a new neuron far too long
    return torch.where(born, value.float().mean().to(out.dtype), out)
