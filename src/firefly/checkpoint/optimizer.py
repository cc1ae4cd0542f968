"""The optimiser in a checkpoint: the same class over the same parameters, by name, with its groups and its state."""

from contextlib import ExitStack
from itertools import chain
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from firefly.checkpoint.packing import Json, Tensors, pack
from firefly.errors import FireflyError, first_line

ALIKE = "construct it as the saved one was"
ENTRIES = {  # torch's names for state with an entry for each one of the parameter
    *("exp_avg", "exp_avg_sq", "max_exp_avg_sq", "exp_inf", "momentum_buffer", "square_avg", "grad_avg", "acc_delta"),
    *("sum", "ax", "prev"),
}


def name_parameters(optimizer: Optimizer, state: Tensors) -> list[list[str]]:
    """The model's name of every parameter, group by group."""
    names = {id(state[name]): name for name in sorted(state, reverse=True)}
    groups = [group["params"] for group in optimizer.param_groups]
    return [[names.get(id(parameter), "one not of the model") for parameter in group] for group in groups]


def pack_optimizer(optimizer: Optimizer, state: Tensors, tensors: Tensors) -> Json:
    """The optimiser's state_dict as JSON, with its class and the names of its parameters to recognise it by."""
    names = name_parameters(optimizer, state)
    if not any(name in state for name in chain(*names)):
        raise FireflyError("the optimizer holds none of this model's parameters: give the one that trains it")
    saved = optimizer.state_dict()
    return {
        "class": type(optimizer).__name__,
        "names": names,
        "state": pack(saved["state"], "optimizer", tensors),  # optimizer/<parameter index>/<state name>
        "param_groups": pack(saved["param_groups"], "optimizer/groups", tensors),
    }


def insert_layers(optimizer: Optimizer, model: nn.Module, layers: list[str], saved: Json, undo: ExitStack) -> None:
    """Give the parameters of rebuilt residual layers the places in the groups that they had in the saved optimiser."""
    undo.callback(keep(optimizer))
    fresh = {f"{path}.{name}": p for path in layers for name, p in model.get_submodule(path).named_parameters()}
    for group, names in zip(optimizer.param_groups, saved["names"]):
        for place, name in enumerate(names):
            if name in fresh:
                group["params"].insert(place, fresh[name])


def keep(optimizer: Optimizer) -> Any:
    """A function that puts back all that a load may change in the optimiser."""
    values, groups = dict(vars(optimizer)), [(group, dict(group)) for group in optimizer.param_groups]
    members = [(group["params"], list(group["params"])) for group in optimizer.param_groups]

    def put_back() -> None:
        vars(optimizer).clear()
        vars(optimizer).update(values)
        for group, content in groups:
            group.clear()
            group.update(content)
        for params, whole in members:
            params[:] = whole

    return put_back


def check_optimizer(optimizer: Optimizer, state: Tensors, weights: Tensors, saved: Json) -> None:
    """Refuse an optimiser of another class, or over other parameters or groups, and a state that does not fit."""
    if (given := type(optimizer).__name__) != saved["class"]:
        raise FireflyError(f"the saved optimizer is {saved['class']}, the given one {given}: {ALIKE}")
    names = saved["names"], name_parameters(optimizer, state)
    sizes = [[len(group) for group in groups] for groups in names]
    if sizes[0] != sizes[1]:
        raise FireflyError(f"the saved optimizer's groups hold {sizes[0]} parameters, the given {sizes[1]}: {ALIKE}")
    for old, new in zip(*(chain(*groups) for groups in names)):
        if old != new:
            raise FireflyError(f"the saved optimizer holds {old} where the given one holds {new}: {ALIKE}")
    check_groups(optimizer, saved)
    check_state(weights, saved, ENTRIES if type(optimizer).__module__.startswith("torch.optim") else set())


def check_groups(optimizer: Optimizer, saved: Json) -> None:
    """Refuse groups that are not numbered as torch numbers them, or hold something else where a number belongs."""
    counts = [len(group["params"]) for group in saved["param_groups"]]
    indices = [index for group in saved["param_groups"] for index in group["params"]]
    if counts != [len(names) for names in saved["names"]] or indices != list(range(len(indices))):
        raise FireflyError("the saved optimizer's groups do not fit its names: load another checkpoint")
    for place, (own, group) in enumerate(zip(optimizer.param_groups, saved["param_groups"])):
        for key in own.keys() & group.keys():
            value = group[key]
            if key != "params" and not is_alike(own[key], value):
                raise FireflyError(
                    f"the saved optimizer has {key}={value!r:.60} in group {place}, where the given one has "
                    f"{own[key]!r}: load another checkpoint"
                )


def is_alike(own: Any, value: Any) -> bool:
    """Whether there is a number where a number belongs, or as many of them."""
    if type(own) in (tuple, list):
        return type(value) is type(own) and len(value) == len(own) and all(map(is_alike, own, value))
    numbers = (bool, int, float, Tensor, type(None))
    return type(own) not in numbers or isinstance(value, numbers)


def check_state(weights: Tensors, saved: Json, entries: set[str]) -> None:
    """Refuse state of no parameter, or with other entries than its parameter where it has one for each."""
    names = list(chain(*saved["names"]))
    for index, state in saved["state"].items():
        if not 0 <= index < len(names):
            raise FireflyError(f"the saved optimizer has state of parameter {index} of {len(names)}: load another one")
        step = state.get("step", 0)
        if entries and not (type(step) in (int, float) or (is_real(step) and step.numel() == 1)):
            raise FireflyError(
                f"the saved optimizer counts the steps of {names[index]} by {step!r:.60}: load another one"
            )
        for key in entries & state.keys() if names[index] in weights else ():
            weight = weights[names[index]]
            if state[key] is not None and not is_alongside(state[key], weight):
                raise FireflyError(
                    f"the saved optimizer's {key} of {names[index]} is no such tensor of shape {tuple(weight.shape)}: "
                    "load another checkpoint"
                )


def is_real(value: Any) -> bool:
    return isinstance(value, Tensor) and value.dtype in (torch.float32, torch.float64, torch.int32, torch.int64)


def is_alongside(value: Any, weight: Tensor) -> bool:
    """Whether it has an entry for each one of the weight, in any precision."""
    if not isinstance(value, Tensor) or value.shape != weight.shape:
        return False
    return (value.is_floating_point(), value.is_complex()) == (weight.is_floating_point(), weight.is_complex())


def restore_optimizer(optimizer: Optimizer, renewed: dict[int, Tensor], saved: Json) -> None:
    """Put the grown parameters into the optimiser's groups, then load its state."""
    for group, new in zip(optimizer.param_groups, saved["param_groups"]):
        group["params"][:] = [renewed.get(id(parameter), parameter) for parameter in group["params"]]
        for key, value in new.items():
            if isinstance(value, Tensor) and isinstance(group.get(key), Tensor):
                new[key] = value.to(group[key].device)
    try:
        optimizer.load_state_dict({"state": saved["state"], "param_groups": saved["param_groups"]})
    except Exception as error:
        raise FireflyError(f"the given optimizer does not take the saved state: {first_line(error)}") from error
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    for index, parameter in enumerate(parameters):
        for key, value in saved["state"].get(index, {}).items():
            if isinstance(value, Tensor):  # torch casts to the parameter's dtype, which may round
                optimizer.state[parameter][key] = value.to(optimizer.state[parameter][key].device)
