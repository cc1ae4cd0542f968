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
SQUARES = {"exp_avg_sq", "max_exp_avg_sq", "square_avg", "sum", "acc_delta", "nu"}

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
        base = over.base[name] if model is None else find_tensor(model, name).detach()
        tensor = over.grown(name, plan, epsilon, base)
        channels_last = tensor.ndim == 4 and base.is_contiguous(memory_format=torch.channels_last)
        keep = channels_last and not base.is_contiguous()
        out[name] = tensor.contiguous(memory_format=torch.channels_last if keep else torch.contiguous_format)
    return out


def commit(
    model: nn.Module,
    tensors: Mapping[str, Tensor],
    sizes: Iterable[tuple[str, str, int]],
    plans: Plans,
    optimizer: torch.optim.Optimizer | None = None,
) -> None:
    """Put the grown tensors and sizes into the model and the optimiser; on any failure everything is as before."""
    fresh = {name: _renew(find_tensor(model, name), tensor) for name, tensor in tensors.items()}
    found = places(model, fresh)
    attributes = [(model.get_submodule(path), name, value) for path, name, value in sizes]
    own = [(module, name, getattr(module, name)) for module, name, _ in attributes]
    successors = {id(old): (old, new, name) for name, new in fresh.items() for old in [find_tensor(model, name)]}
    groups = optimizer.param_groups if optimizer is not None else []
    members = [list(group["params"]) for group in groups]
    states = _grow_states(optimizer, successors, plans) if optimizer is not None else []
    try:
        for store, key, _, new in found:
            store[key] = new
        for module, name, value in attributes:
            setattr(module, name, value)
        for group in groups:
            group["params"][:] = [successors[id(p)][1] if id(p) in successors else p for p in group["params"]]
        for old, new, _, state in states:
            optimizer.state.pop(old, None)  # type: ignore[union-attr]
            optimizer.state[new] = state  # type: ignore[union-attr]
    except BaseException:
        for store, key, old, _ in found:
            store[key] = old
        for module, name, value in own:
            setattr(module, name, value)
        for group, params in zip(groups, members):
            group["params"][:] = params
        for old, new, before, _ in states:
            optimizer.state.pop(new, None)  # type: ignore[union-attr]
            optimizer.state[old] = before  # type: ignore[union-attr]
        raise


def _renew(old: Tensor, tensor: Tensor) -> Tensor:
    return nn.Parameter(tensor, requires_grad=old.requires_grad) if isinstance(old, nn.Parameter) else tensor


def check_optimizer(optimizer: Any, model: nn.Module) -> None:
    if not isinstance(optimizer, torch.optim.Optimizer):
        raise FireflyError(f"optimizer must be a torch.optim.Optimizer, not {type(optimizer).__name__}")
    own = {id(p) for p in model.parameters()}
    if not any(id(p) in own for group in optimizer.param_groups for p in group["params"]):
        raise FireflyError(
            "the optimizer holds none of this model's parameters: pass the one made from model.parameters(), "
            "or rebuild it if the model was replaced since"
        )


@torch.no_grad()
def _grow_states(
    optimizer: torch.optim.Optimizer, successors: Mapping[int, tuple[Tensor, Tensor, str]], plans: Plans
) -> list[tuple[Tensor, Tensor, dict[str, Any], dict[str, Any]]]:
    """(old parameter, new parameter, its state, the state grown)."""
    grown = []
    for group in optimizer.param_groups:
        for old in group["params"]:
            if id(old) in successors and old in optimizer.state:
                _, new, name = successors[id(old)]
                state = optimizer.state[old]
                larger = {key: _grow_state(plans[name], key, value, old) for key, value in state.items()}
                whole = all(value is not None or state[key] is None for key, value in larger.items())
                grown.append((old, new, state, larger if whole else {}))
    return grown


def _grow_state(plan: Plan, key: str, value: Any, old: Tensor) -> Any:
    """One entry of the state; None where its shape is not the parameter's, which starts the state afresh."""
    if not isinstance(value, Tensor) or value.ndim == 0:
        return value.clone() if isinstance(value, Tensor) else value
    if value.shape != old.shape:
        return None
    if key in GRADIENTS:  # each copy of a split neuron gets half of its gradient, a new one begins at rest
        return carry(plan, value, halve="makes")
    squares = key in SQUARES
    out = carry(plan, value, halve="makes" if squares else None, power=2.0)
    born = torch.zeros_like(out, dtype=torch.bool)
    for dim, touched in enumerate(plan.touched):
        if touched:
            born |= per_entry(plan, dim, lambda roster, _: roster.born.float(), 0.0, out) > 0
    # a second moment of zero would make the first steps of a new neuron far too long
    return torch.where(born, value.float().mean().to(out.dtype), out)
