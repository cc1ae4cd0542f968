"""Models that torch's `fully_shard` (FSDP2) has spread over the ranks: whole on each for a growth, then sharded again.

A rank holds a slice of every parameter, and hooks gather them for a forward. `whole` puts the gathered parameters into
the model and the hooks aside. If nothing has grown, all that was there comes back as it was. Else the modules are
sharded anew (`resharding.py`), and the optimiser follows; its state is gathered tensor by tensor, and only where
something has grown (`gather_whole`).
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from firefly.errors import FireflyError
from firefly.ranks.talk import average, count_ranks, explained
from firefly.surgery.guard import unbroken
from firefly.surgery.resharding import Optimizer, Spot, Unit, rekey, shard_anew
from firefly.surgery.swap import exchanged

HOOKS = ("_forward_pre_hooks", "_forward_hooks")


@dataclass(eq=False)
class Shards:
    """What was sharded, and how many bytes of it lay on this rank."""

    units: list[Unit] = field(default_factory=list)
    changed: bool = False  # to be said by whoever writes other values into the parameters
    before: int = 0
    during: int = 0
    after: int = 0

    @property
    def notes(self) -> tuple[str, ...]:
        sizes = [f"{size / 2**20:.3g} MB" for size in (self.before, self.during, self.after)]
        text = "sharded: parameters and optimizer state took {} on this rank, {} while they were whole, {} afterwards"
        return (text.format(*sizes),) if self.units else ()


@contextmanager
def whole(model: nn.Module, optimizer: Optimizer | None = None) -> Iterator[Shards]:
    """Inside the block the model is an ordinary one, the same on every rank; afterwards it is sharded as before."""
    shards = Shards(find_units(model))
    if shards.units:
        check_units(shards.units)
    check_spread(model, shards.units)
    if not shards.units:
        yield shards
        return
    shards.before = count_bytes(model, optimizer)
    gathered = gather_parameters(model, shards.units)
    places = [(m._parameters, key, gathered[p]) for m, key, p in list_places(model) if p in gathered]
    apart = {name for name, p in model.named_parameters() if p not in gathered and p.numel()}
    grown: dict[Spot, nn.Parameter] = {}
    try:
        with exchanged([*places, *set_aside(shards.units)]):
            rekey(optimizer, gathered)
            shards.during = count_bytes(model, optimizer)
            try:
                yield shards
            finally:
                if shards.changed or any(store[key] is not one for store, key, one in places):
                    grown = {(module, key): parameter for module, key, parameter in list_places(model)}
                else:
                    rekey(optimizer, {one: own for own, one in gathered.items()})
    finally:
        if grown:
            with unbroken():
                shard_anew(model, shards.units, grown, apart, optimizer)
        shards.after = count_bytes(model, optimizer)


def find_units(model: nn.Module) -> list[Unit]:
    """The units of a sharded model, the innermost first; none if it is not sharded."""
    if "torch.distributed.fsdp" not in sys.modules:
        return []
    from torch.distributed.fsdp import FSDPModule

    sharded = [module for module in model.modules() if isinstance(module, FSDPModule)]
    states = {id(one): one for one in (module._get_fsdp_state() for module in reversed(sharded))}
    return [Unit(tuple(state._modules), state) for state in states.values()]


def check_spread(model: nn.Module, units: list[Unit]) -> None:
    """Refuse parameters that something else than `fully_shard` has spread, or over some of the ranks only."""
    groups = [group for unit in units for group in unit.groups]
    own = {id(one.sharded_param) for group in groups for one in group.fsdp_params}
    for name, p in model.named_parameters():
        if hasattr(p, "placements") and id(p) not in own:
            raise FireflyError(
                f"{name} is spread as {p.placements}, not by fully_shard (tensor parallelism, say): such a model "
                "cannot grow; grow it before it is spread"
            )
    for ranks in {group.mesh_info.mesh.size() for group in groups} - {count_ranks()}:
        raise FireflyError(
            f"the model is sharded over {ranks} ranks, and {count_ranks()} work together here: all those that share "
            "the model must grow it together, and no others"
        )


def check_units(units: list[Unit]) -> None:
    """Refuse what could not be sharded again as it was."""
    from torch.distributed.fsdp import CPUOffloadPolicy
    from torch.distributed.tensor import Replicate, Shard

    for unit in units:
        for module in unit.modules:
            module.reshard()  # type: ignore[operator]
        for group in unit.groups:
            if isinstance(group.offload_policy, CPUOffloadPolicy):
                raise FireflyError("a model whose shards are offloaded to the CPU cannot grow: shard it without that")
            for one in group.fsdp_params:
                spread = one.sharded_param
                usual = all(isinstance(place, Replicate) or place == Shard(0) for place in spread.placements)
                if not usual or spread.device_mesh != group.mesh_info.mesh:
                    raise FireflyError(
                        f"a parameter of shape {tuple(spread.shape)} is spread as {spread.placements}: only what "
                        "fully_shard alone spreads, along the first dimension, can grow"
                    )


def list_places(model: nn.Module) -> list[tuple[nn.Module, str, nn.Parameter]]:
    """Where each parameter stands, tied ones everywhere."""
    return [(module, key, p) for module in model.modules() for key, p in module._parameters.items() if p is not None]


def gather_whole(value: Any) -> Any:
    """A tensor that is spread over the ranks as one; anything else as it is. All ranks must ask."""
    if not hasattr(value, "full_tensor"):
        return value
    if not value.numel():  # of a dormant layer
        return torch.empty(value.shape, dtype=value.dtype, device=value.to_local().device)
    with explained(), torch.no_grad():
        return value.full_tensor()


def gather_parameters(model: nn.Module, units: list[Unit]) -> dict[nn.Parameter, nn.Parameter]:
    """For each parameter that is spread, the whole one, with its gradient."""
    waiting = gather_waiting(units)
    found = {}
    for parameter in model.parameters():
        if hasattr(parameter, "full_tensor"):
            one = nn.Parameter(gather_whole(parameter.detach()), parameter.requires_grad)
            grad, more = gather_whole(parameter.grad), waiting.get(parameter)
            one.grad = more if grad is None else grad if more is None else grad + more
            found[parameter] = one
    return found


def gather_waiting(units: list[Unit]) -> dict[nn.Parameter, Tensor]:
    """The mean of the gradients that each rank still has for itself (`set_requires_gradient_sync(False)`)."""
    found = {}
    for group in (group for unit in units for group in unit.groups):
        factor = count_ranks() / (getattr(group, "gradient_divide_factor", None) or count_ranks())
        for one in group.fsdp_params:
            grad = one.unsharded_accumulated_grad
            grad = getattr(getattr(one, "_unsharded_param", None), "grad", None) if grad is None else grad
            if grad is not None:
                found[one.sharded_param] = factor * grad.to(one.sharded_param.dtype)
    average(found.values())
    return found


def set_aside(units: list[Unit]) -> list[tuple[Any, str, Any]]:
    """The classes, hooks and methods of modules that are not sharded."""
    changes: list[tuple[Any, str, Any]] = []
    for module in (module for unit in units for module in unit.modules):
        changes.append((module, "__class__", type(module).__mro__[2]))
        for name in HOOKS:
            hooks = getattr(module, name)
            own = type(hooks)((key, hook) for key, hook in hooks.items() if not is_sharding(hook))
            changes.append((vars(module), name, own))
        for name, method in vars(module).items():  # of register_fsdp_forward_method
            if hasattr(method, "__wrapped__") and ".fsdp." in getattr(method, "__globals__", {}).get("__name__", ""):
                changes.append((vars(module), name, method.__wrapped__))
    return changes


def is_sharding(hook: Any) -> bool:
    return ".fsdp." in f"{getattr(hook, '__module__', '')}."


def count_bytes(model: nn.Module, optimizer: Optimizer | None) -> int:
    """Bytes of the parameters and of the optimiser's state that lie on this rank."""
    states = () if optimizer is None else [v for state in optimizer.state.values() for v in state.values()]
    tensors = [*model.parameters(), *(value for value in states if isinstance(value, Tensor))]
    local = [tensor.to_local() if hasattr(tensor, "to_local") else tensor for tensor in tensors]
    return sum(tensor.numel() * tensor.element_size() for tensor in local)
