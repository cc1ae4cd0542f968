"""The optimiser grows along: the same object, its groups with the grown parameters, its state with the neurons."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from firefly.errors import FireflyError
from firefly.surgery.shards import gather_whole
from firefly.surgery.swap import find_tensor
from firefly.tensors import Plan, carry, per_entry

# How an optimiser's per-parameter state follows its neuron: like the gradient, like its square, or as it stands.
GRADIENTS = {"momentum_buffer", "exp_avg", "grad_avg", "prev", "mu"}
SQUARES = {"exp_avg_sq", "max_exp_avg_sq", "square_avg", "sum", "nu"}
NEWBORN = {
    "exp_avg_sq": 0.01,
    "max_exp_avg_sq": 0.01,
}  # Adam's second moment of a new neuron, as a share of the others'

Plans = dict[str, Plan]

MISSING = object()
Change = tuple[Any, Any, Any, Any]  # (a dict or module, a key or attribute, what is there, what shall be there)
Successors = dict[int, tuple[Tensor, str]]  # id of a tensor: its successor, and its name


def check_optimizer(optimizer: Any, model: nn.Module) -> None:
    """Refuse what cannot grow along; there may be none."""
    if optimizer is None:
        return
    if not isinstance(optimizer, torch.optim.Optimizer):
        raise FireflyError(f"optimizer must be a torch.optim.Optimizer, not {type(optimizer).__name__}")
    if isinstance(optimizer, torch.optim.LBFGS):
        raise FireflyError(
            "LBFGS keeps a history of all parameters as one vector, which cannot follow a growth: pass no optimizer, "
            "and make a new one from model.parameters() afterwards"
        )
    if type(optimizer).__name__ == "ZeroRedundancyOptimizer":
        raise FireflyError(
            "a ZeroRedundancyOptimizer keeps the state of other ranks elsewhere, which cannot follow a growth: use a "
            "plain optimizer, or fully_shard, which shares the state out and grows"
        )
    own = {id(p) for p in model.parameters()}
    if not any(id(p) in own for group in optimizer.param_groups for p in group["params"]):
        raise FireflyError(
            "the optimizer holds none of this model's parameters: pass the one made from model.parameters(), "
            "or rebuild it if the model was replaced since"
        )


def tell_missing(optimizer: Any, model: nn.Module, names: Iterable[str]) -> tuple[str, ...]:
    """What of the grown parameters the optimiser does not hold, as perhaps another one does."""
    held = {id(p) for group in optimizer.param_groups for p in group["params"]} if optimizer is not None else set()
    grown = {name: find_tensor(model, name) for name in names}
    left = [name for name, p in grown.items() if p.requires_grad and p.numel() and id(p) not in held]
    if optimizer is None or not left:
        return ()
    few = ", ".join(left[:3]) + (" and others" if len(left) > 3 else "")
    return (f"{few}: grown, but not in the optimizer; if another one trains them, make that one anew",)


@torch.no_grad()
def follow(
    optimizer: torch.optim.Optimizer, successors: Successors, plans: Plans, joining: list[Tensor]
) -> list[Change]:
    inner = [one for one in vars(optimizer).values() if isinstance(one, torch.optim.Optimizer)]  # as SAM has
    changes: list[Change] = [change for one in inner for change in follow(one, successors, plans, joining)]
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


def list_woken(optimizer: torch.optim.Optimizer, changes: list[Change], model: nn.Module) -> list[Tensor]:
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
    value = gather_whole(value)
    if not value.numel():  # a layer that wakes up; Adagrad alone begins with a state
        return carry(plan, value) if key == "sum" else None
    normalised = key == "momentum_buffer" and "square_avg" in state  # RMSprop's has been divided already
    if key == "ax":  # ASGD's average of the parameter itself
        return carry(plan, value)
    if key in GRADIENTS:  # each copy gets its share of the gradient, a new neuron begins at rest
        return carry(plan, value, shared=None if normalised else "makes")
    power = dict.fromkeys(SQUARES, 2.0) | {"exp_inf": 1.0}
    out = carry(plan, value, shared="makes" if key in power else None, power=power.get(key, 1.0))
    born = torch.zeros_like(out, dtype=torch.bool)
    for dim, touched in enumerate(plan.touched):
        if touched:
            born |= per_entry(plan, dim, lambda roster, _: roster.born.float(), 0.0, out) > 0
    # zero would make the first steps of a new neuron far too long, its elders' size for long too short
    return torch.where(born, (NEWBORN.get(key, 1.0) * value.float().mean()).to(out.dtype), out)
