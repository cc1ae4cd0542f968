"""The model in a checkpoint: its tensors, ties and sizes, and how they come back into a fresh one."""

from collections.abc import Iterable
from contextlib import ExitStack
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from firefly.checkpoint.forms import is_size
from firefly.checkpoint.packing import Json, Tensors
from firefly.errors import FireflyError, first_line
from firefly.surgery.swap import renew, set_size

CARRIED = "firefly_architecture"  # the name in a state_dict of the architecture that it carries


def collect_state(model: nn.Module) -> Tensors:
    """The model's state_dict, as the very tensors that its modules hold."""
    state = dict(model.state_dict(keep_vars=True))
    held = {id(tensor) for module in model.modules() for tensor in (module._parameters | module._buffers).values()}
    state = {name: value for name, value in state.items() if not name.endswith(CARRIED)}
    for name, value in state.items():
        if not isinstance(value, Tensor):
            kind = type(value).__name__
            raise FireflyError(f"{name} is a {kind}, a checkpoint holds tensors: make get_extra_state return a tensor")
        if id(value) not in held and not is_extra(name):
            raise FireflyError(f"{name} of the state_dict is no parameter or buffer: remove the hook that adds it")
        if is_lazy(value) or value.is_meta:
            raise FireflyError(f"{name} has no values yet: first run one forward, or model.to_empty(device=…)")
    return state


def is_extra(name: str) -> bool:
    """Whether this is torch's name for what a module's get_extra_state returns."""
    return name.rpartition(".")[2] == "_extra_state"


def find_ties(state: Tensors) -> dict[str, str]:
    """{name: the first name of the same tensor}, for tensors of several names."""
    first: dict[int, str] = {}
    names = {name: first.setdefault(id(state[name]), name) for name in sorted(state)}
    return {name: other for name, other in names.items() if name != other}


def find_sizes(module: nn.Module) -> Json:
    """The module's attributes that are whole numbers, and the public ones that are tuples or lists of them."""
    return {n: value for n, value in vars(module).items() if type(value) is int or (n[0] != "_" and is_size(value))}


def gather_weights(ties: dict[str, str], tensors: Tensors) -> Tensors:
    """The saved tensors of the model under all their names."""
    weights = {key.removeprefix("model/"): tensor for key, tensor in tensors.items() if key.startswith("model/")}
    refuse("ties to tensors that it lacks", {name for name, first in ties.items() if first not in weights})
    return weights | {name: weights[first] for name, first in ties.items()}


def check_names(model: nn.Module, state: Tensors, content: Json, weights: Tensors) -> None:
    """Refuse a model of other modules, tensors or ties, or with tensors of other kinds."""
    modules = dict(model.named_modules(remove_duplicate=False))
    refuse("modules that the model lacks", content["attributes"].keys() - modules.keys())
    refuse("tensors that the model lacks", weights.keys() - state.keys())
    refuse("none of the model's tensors", state.keys() - weights.keys())
    refuse("other ties than the model's", {name for name, _ in find_ties(state).items() ^ content["ties"].items()})
    for name, own in state.items():
        saved = weights[name]
        if not is_extra(name) and (saved.ndim, saved.dtype) != (own.ndim, own.dtype):
            kinds = [f"{t.dtype} of shape {tuple(t.shape)}" for t in (saved, own)]
            refuse(f"{kinds[0]} where the model has {kinds[1]}", [name])


def refuse(what: str, names: Iterable[str]) -> None:
    """Raise if there are any `names` that do not fit."""
    if some := sorted(names):
        listed = ", ".join(some[:5]) + (f" and {len(some) - 5} more" if len(some) > 5 else "")
        way_out = "construct the model as it was before growth"
        raise FireflyError(f"what was saved is of another model: it has {what}: {listed}; {way_out}")


@torch.no_grad()
def renew_tensors(model: nn.Module, state: Tensors, weights: Tensors, undo: ExitStack) -> dict[int, Tensor]:
    """Put larger tensors where they grew; returns {id of a small tensor: the one in its place}."""
    grown = {id(old): (old, weights[name]) for name, old in state.items() if old.shape != weights[name].shape}
    renewed = {key: renew(*pair) for key, pair in grown.items() if not is_lazy(pair[0])}
    for module in model.modules():
        for name, old in (module._parameters | module._buffers).items():
            if id(old) in renewed:
                set_attribute(module, name, renewed[id(old)], undo)
    return renewed


def set_sizes(model: nn.Module, attributes: Json, undo: ExitStack) -> None:
    """Set the whole numbers on the modules that grew along."""
    for path, module in model.named_modules(remove_duplicate=False):
        for name, value in find_new_sizes(module, attributes.get(path, {})).items():
            set_attribute(module, name, value, undo)


def fill_model(model: nn.Module, state: Tensors, renewed: dict[int, Tensor], weights: Tensors, undo: ExitStack) -> None:
    """Give the tensors that did not grow their weights, and the modules their extra state."""
    for name, old in state.items():
        if is_extra(name):
            set_extra(model.get_submodule(name.rpartition(".")[0]), name, weights[name].to(old.device), undo)
        elif id(old) not in renewed:
            fill(old, weights[name], undo)


def set_attribute(module: nn.Module, name: str, value: Any, undo: ExitStack) -> None:
    undo.callback(set_size, module, name, getattr(module, name))
    set_size(module, name, value)


def find_new_sizes(module: nn.Module, saved: Json) -> Json:
    """The whole numbers that differ in the checkpoint; a name that is new here, or of another kind, is left alone."""
    found = {}
    for name, old in find_sizes(module).items():
        kind, value = (tuple, list) if isinstance(old, (tuple, list)) else int, saved.get(name)
        if isinstance(value, kind) and type(old)(value) != old:
            found[name] = type(old)(value)
    return found


def set_extra(module: nn.Module, name: str, value: Tensor, undo: ExitStack) -> None:
    undo.callback(module.set_extra_state, module.get_extra_state())
    try:
        module.set_extra_state(value)
    except Exception as error:
        raise FireflyError(f"{name}: set_extra_state does not take the saved tensor: {first_line(error)}") from error


@torch.no_grad()
def fill(old: Tensor, value: Tensor, undo: ExitStack | None = None) -> None:
    """Give a tensor these values: in its own memory where that has the same format."""
    if old.stride() != value.stride():
        kept = old.data
        if undo is not None:
            undo.callback(set_data, old, kept)
        old.data = value.to(old.device)
        return
    if undo is not None:
        undo.callback(fill, old, old.detach().clone())
    old.copy_(value)


def set_data(tensor: Tensor, data: Tensor) -> None:
    tensor.data = data
