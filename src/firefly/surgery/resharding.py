"""Sharding a grown model again (`shards.py`): with `fully_shard`, as it was, and the optimiser follows."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

COPIED = (  # what may have been set on a unit since it was made
    "reduce_grads",
    "all_reduce_grads",
    "reshard_after_backward",
    "gradient_divide_factor",
    "force_sum_reduction_for_comms",
    "unshard_in_backward",
    "reduce_scatter_unused_params",
)
PREFETCHED = ("_states_to_forward_prefetch", "_states_to_backward_prefetch")
Optimizer = torch.optim.Optimizer
Spot = tuple[nn.Module, str]  # where a parameter stands


@dataclass(frozen=True, eq=False)
class Unit:
    """What one call of `fully_shard` took together."""

    modules: tuple[nn.Module, ...]
    state: Any

    @property
    def groups(self) -> list[Any]:
        several = getattr(self.state, "_fsdp_param_groups", None)  # since torch 2.12 or so
        found = [self.state._fsdp_param_group] if several is None else several
        return [group for group in found if group is not None]


def rekey(optimizer: Optimizer | None, successors: Mapping[Any, Any]) -> None:
    """Give the optimiser other parameters for its own; what it remembers stays."""
    if optimizer is None:
        return
    for group in optimizer.param_groups:
        group["params"] = [successors.get(p, p) for p in group["params"]]
    for old, new in successors.items():
        if old in optimizer.state:
            optimizer.state[new] = optimizer.state.pop(old)


def shard_anew(
    model: nn.Module,
    units: list[Unit],
    grown: Mapping[Spot, nn.Parameter],
    apart: set[str],
    optimizer: Optimizer | None,
) -> None:
    """Shard the model with these whole parameters as it was, but for those that stood apart; the optimiser follows."""
    from torch.distributed.fsdp import fully_shard

    for unit in units:
        dissolve(unit)
    for (module, key), parameter in grown.items():
        module._parameters[key] = parameter
    names = dict(model.named_parameters())
    ignored = {p for name, p in names.items() if name in apart}
    states: dict[Any, Any] = {}
    for unit in units:
        how: dict[str, Any] = read_settings(unit) | ({"ignored_params": ignored} if ignored else {})
        modules: Any = unit.modules[0] if len(unit.modules) == 1 else list(unit.modules)
        fully_shard(modules, **how)
        made = Unit(unit.modules, unit.modules[0]._get_fsdp_state())  # type: ignore[operator]
        states[unit.state] = made.state
        for old, new in zip(unit.groups, made.groups):
            for name in COPIED:
                if hasattr(old, name):
                    setattr(new, name, getattr(old, name))
    for old, new in states.items():
        for name in PREFETCHED:
            setattr(new, name, [states.get(one, one) for one in getattr(old, name)])
    successors = {names[name]: p for name, p in model.named_parameters()}
    rekey(optimizer, successors)
    for one, parameter in successors.items():
        parameter.grad = spread_out(one.grad, parameter)
        state = {} if optimizer is None else optimizer.state.get(parameter, {})
        state.update({key: spread_out(value, parameter) for key, value in state.items()})


def read_settings(unit: Unit) -> dict[str, Any]:
    """What `fully_shard` was called with."""
    group = unit.groups[0] if unit.groups else None
    if group is None:
        return {}
    after, mesh = group.post_forward_mesh_info, group.mesh_info
    reshard: Any = after is not None
    if after is not None and after is not mesh and after.shard_mesh_size != mesh.shard_mesh_size:
        reshard = after.shard_mesh_size
    told = {"mesh": mesh.mesh, "mp_policy": group.mp_policy, "offload_policy": group.offload_policy}
    return told | {"reshard_after_forward": None if unit.state._auto_reshard_after_forward else reshard}


def dissolve(unit: Unit) -> None:
    """Make ordinary modules of a unit's, for good."""
    from torch.distributed import _composable_state
    from torch.distributed._composable.contract import REGISTRY_KEY, STATE_KEY

    unit.state._pre_forward_hook_handle.remove()
    unit.state._post_forward_hook_handle.remove()
    for group in unit.groups:
        for one in group.fsdp_params:
            one._post_load_hook_handle.remove()
        for when in ("save", "load"):
            for handle in getattr(group, f"_module_to_pre_{when}_state_dict_hook_handle").values():
                handle.remove()
    for module in unit.modules:
        module.__class__ = type(module).__mro__[2]
        states = vars(module)[STATE_KEY]
        for key in [key for key, state in states.items() if state is unit.state]:
            del states[key]
        vars(module)[REGISTRY_KEY].pop("fully_shard", None)
        _composable_state._module_state_mapping.pop(module, None)


def spread_out(value: Any, parameter: Any) -> Any:
    """A whole tensor of the optimiser's state, spread as its parameter is."""
    from torch.distributed.tensor import distribute_tensor

    if not isinstance(value, Tensor) or hasattr(value, "full_tensor") or not hasattr(parameter, "full_tensor"):
        return value
    if not value.ndim or value.shape != parameter.shape:
        return value
    return distribute_tensor(value, parameter.device_mesh, parameter.placements, src_data_rank=None)
