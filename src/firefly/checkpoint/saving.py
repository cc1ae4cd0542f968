"""Save and resume a run: the grown architecture, the weights, the optimiser and the history of growths.

Algorithm 1 alternates training and growth for many rounds, so a run must survive a restart with the architecture it
has grown into. A grown model is the same class with the same modules; only tensors are larger, and the whole numbers
on the modules that mirror them. So the shapes in the tensor file plus those numbers are the architecture: `load` takes
the model as it was first constructed, enlarges its tensors, sets the numbers and fills in the weights.

A checkpoint is a folder of `checkpoint.json`, for people and for all that is not a tensor, and one
`tensors-<token>.safetensors` that it names with its hash. Nothing is ever pickled. Replacing the JSON is the one atomic
moment of a save: whoever is killed at any time leaves the old checkpoint or the new one, whole.
"""

import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from itertools import chain
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy
from torch.optim import Optimizer

from firefly.checkpoint.archive import Json, Tensors, pack, publish, read
from firefly.errors import FireflyError
from firefly.surgery.residual import describe, rebuild, take_out

Folder = str | os.PathLike[str]


def save(folder: Folder, model: nn.Module, optimizer: Optimizer | None = None, grower: Any = None) -> None:
    """Write model, optimiser and grower to `folder`; a checkpoint already there is replaced, in one atomic moment."""
    state = collect_state(model)
    ties = find_ties(state)
    tensors = {f"model/{name}": tensor for name, tensor in state.items() if name not in ties}
    tensors["rng/cpu"] = torch.get_rng_state()
    if torch.cuda.is_available():
        tensors["rng/cuda"] = torch.stack(torch.cuda.get_rng_state_all())  # [devices, bytes]
    modules = model.named_modules(remove_duplicate=False)
    content = {
        "attributes": {path: pack(find_sizes(module), path, tensors) for path, module in modules},
        "ties": ties,
        "deeper": describe(model),
        "optimizer": None if optimizer is None else pack_optimizer(optimizer, state, tensors),
        "grower": None if grower is None else pack(grower.state_dict(), "grower", tensors),
    }
    publish(Path(folder), content, tensors)


def load(
    folder: Folder, model: nn.Module, optimizer: Optimizer | None = None, grower: Any = None, rng: bool = False
) -> nn.Module:
    """Turn the freshly constructed `model`, in place, into the grown one saved in `folder`, and return it.

    The optimiser stays the same object and gets the new parameters with their state; the grower gets its history. With
    `rng=True` torch's generators (CPU, and CUDA where there is one) go on as they would have. All is checked first: a
    FireflyError leaves everything as it was.
    """
    content, tensors = read(Path(folder))
    with rebuilt(model, optimizer, content):
        _load(Path(folder), content, tensors, model, optimizer, grower)
    if rng:
        torch.set_rng_state(tensors["rng/cpu"])
        for device, value in enumerate(tensors.get("rng/cuda", [])[: torch.cuda.device_count()]):
            torch.cuda.set_rng_state(value, device)
    return model


def _load(
    folder: Path, content: Json, tensors: Tensors, model: nn.Module, optimizer: Optimizer | None, grower: Any
) -> None:
    state = collect_state(model)
    weights = {key.removeprefix("model/"): tensors[key] for key in tensors if key.startswith("model/")}
    weights |= {name: weights[first] for name, first in content["ties"].items()}
    check_model(model, state, content, weights)
    for kind, given in (("optimizer", optimizer), ("grower", grower)):
        if given is not None and content[kind] is None:
            raise FireflyError(f"{folder} holds no {kind}: load it without {kind}=")
    if optimizer is not None:
        check_optimizer(optimizer, state, content["optimizer"])
    if grower is not None:
        grower.load_state_dict(content["grower"])  # before the rest: it may refuse
    swapped = restore_model(model, state, content["attributes"], weights)
    if optimizer is not None:
        restore_optimizer(optimizer, swapped, content["optimizer"])


@contextmanager
def rebuilt(model: nn.Module, optimizer: Optimizer | None, content: Json) -> Iterator[None]:
    """The model with the residual layers of the checkpoint (`firefly.deepen`) that it lacks; gone if the block fails.

    Their parameters take the places in the optimiser's groups that they had in the saved one.
    """
    put = rebuild(model, content.get("deeper", ()))
    groups = optimizer.param_groups if optimizer is not None and put else []
    before = [list(group["params"]) for group in groups]
    try:
        fresh = {f"{path}.{name}": p for path in put for name, p in model.get_submodule(path).named_parameters()}
        for group, names in zip(groups, (content["optimizer"] or {}).get("names", ())):
            for place, name in enumerate(names):
                if name in fresh:
                    group["params"].insert(place, fresh[name])
        yield
    except BaseException:
        for group, params in zip(groups, before):
            group["params"][:] = params
        take_out(model, put)
        raise


# The model ------------------------------------------------------------------------------------------------------------


def collect_state(model: nn.Module) -> Tensors:
    """The model's state_dict, as the very tensors that its modules hold."""
    state = dict(model.state_dict(keep_vars=True))
    held = {id(tensor) for module in model.modules() for tensor in (module._parameters | module._buffers).values()}
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
    """The module's public attributes that are whole numbers, or tuples or lists of them."""

    def is_size(value: Any) -> bool:
        items = value if type(value) in (tuple, list, torch.Size) and value else [value]
        return all(type(item) is int for item in items)

    return {name: value for name, value in vars(module).items() if not name.startswith("_") and is_size(value)}


def check_model(model: nn.Module, state: Tensors, content: Json, weights: Tensors) -> None:
    """Refuse a model that growth cannot have turned into the saved one."""
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
        raise FireflyError(f"this checkpoint is of another model: it has {what}: {listed}; {way_out}")


@torch.no_grad()
def restore_model(model: nn.Module, state: Tensors, attributes: Json, weights: Tensors) -> dict[int, Tensor]:
    """Enlarge the tensors that grew, set sizes and weights; returns {id of a small tensor: the one in its place}."""
    grown = {id(old): (old, weights[name]) for name, old in state.items() if old.shape != weights[name].shape}
    swapped = {key: enlarge(*pair) for key, pair in grown.items()}
    for path, module in model.named_modules(remove_duplicate=False):
        for name, old in (module._parameters | module._buffers).items():
            if id(old) in swapped:
                setattr(module, name, swapped[id(old)])
        set_sizes(module, attributes.get(path, {}))
    for name, old in state.items():
        if is_extra(name):
            model.get_submodule(name.rpartition(".")[0]).set_extra_state(weights[name].to(old.device))
        elif id(old) not in swapped and old.stride() == weights[name].stride():
            old.copy_(weights[name])
        elif id(old) not in swapped:
            old.data = weights[name].to(old.device)
    return swapped


def enlarge(old: Tensor, value: Tensor) -> Tensor:
    """A tensor to take the place of `old`, of its kind and on its device, with the user's own marks on it."""
    new = value.to(old.device)
    if isinstance(old, nn.Parameter):
        new = nn.Parameter(new, requires_grad=old.requires_grad)
    vars(new).update(vars(old))
    return new


def set_sizes(module: nn.Module, saved: Json) -> None:
    """Set the whole numbers that grew; a name that is new here, or of another kind, is left alone."""
    for name, old in find_sizes(module).items():
        kind = tuple if isinstance(old, tuple) else type(old)
        if isinstance(saved.get(name), kind) and saved[name] != old:
            setattr(module, name, type(old)(saved[name]))


# The optimiser --------------------------------------------------------------------------------------------------------


def name_parameters(optimizer: Optimizer, state: Tensors) -> list[list[str]]:
    """The model's name of every parameter, group by group."""
    names = {id(state[name]): name for name in sorted(state, reverse=True)}
    groups = [group["params"] for group in optimizer.param_groups]
    return [[names.get(id(parameter), "one not of the model") for parameter in group] for group in groups]


def pack_optimizer(optimizer: Optimizer, state: Tensors, tensors: Tensors) -> Json:
    """The optimiser's state_dict as JSON, with its class and the names of its parameters to recognise it by."""
    saved = optimizer.state_dict()
    return {
        "class": type(optimizer).__name__,
        "names": name_parameters(optimizer, state),
        "state": pack(saved["state"], "optimizer", tensors),  # optimizer/<parameter index>/<state name>
        "param_groups": pack(saved["param_groups"], "optimizer/groups", tensors),
    }


def check_optimizer(optimizer: Optimizer, state: Tensors, saved: Json) -> None:
    """Refuse an optimiser of another class, or over other parameters or groups."""
    alike = "construct it as the saved one was"
    if (given := type(optimizer).__name__) != saved["class"]:
        raise FireflyError(f"the saved optimizer is {saved['class']}, the given one {given}: {alike}")
    names = saved["names"], name_parameters(optimizer, state)
    sizes = [[len(group) for group in groups] for groups in names]
    if sizes[0] != sizes[1]:
        raise FireflyError(f"the saved optimizer's groups hold {sizes[0]} parameters, the given {sizes[1]}: {alike}")
    for old, new in zip(*(chain(*groups) for groups in names)):
        if old != new:
            raise FireflyError(f"the saved optimizer holds {old} where the given one holds {new}: {alike}")


def restore_optimizer(optimizer: Optimizer, swapped: dict[int, Tensor], saved: Json) -> None:
    """Put the grown parameters into the optimiser's groups, then load its state."""
    for group, new in zip(optimizer.param_groups, saved["param_groups"]):
        group["params"][:] = [swapped.get(id(parameter), parameter) for parameter in group["params"]]
        for key, value in new.items():
            if isinstance(value, Tensor) and isinstance(group.get(key), Tensor):
                new[key] = value.to(group[key].device)
    optimizer.load_state_dict({"state": saved["state"], "param_groups": saved["param_groups"]})
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    for index, parameter in enumerate(parameters):
        for key, value in saved["state"].get(index, {}).items():
            if isinstance(value, Tensor):  # torch casts to the parameter's dtype, which may round
                optimizer.state[parameter][key] = value.to(optimizer.state[parameter][key].device)
