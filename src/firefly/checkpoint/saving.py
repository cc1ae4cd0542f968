"""Save and resume a run: the grown architecture, the weights, the optimiser and the history of growths.

Algorithm 1 alternates training and growth for many rounds, so a run must survive a restart with the architecture it
has grown into. A grown model is the same class with the same modules; only tensors are larger, and the whole numbers
on the modules that mirror them. So the shapes in the tensor file plus those numbers are the architecture: `load` takes
the model as it was first constructed, enlarges its tensors, sets the numbers and fills in the weights.

A checkpoint is a folder of `checkpoint.json`, for people and for all that is not a tensor, and one
`tensors-<token>.safetensors` that it names with its hash. Nothing is ever pickled. Replacing the JSON is the one atomic
moment of a save: whoever is killed at any time leaves the old checkpoint or the new one, whole.
"""

import json
import os
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn.modules.module import _IncompatibleKeys
from torch.optim import Optimizer

from firefly.checkpoint.architecture import describe, set_history
from firefly.checkpoint.archive import publish, read
from firefly.checkpoint.explained import check_growth
from firefly.checkpoint.model import check_names, collect_state, fill_model, gather_weights, renew_tensors, set_sizes
from firefly.checkpoint.optimizer import check_optimizer, insert_layers, pack_optimizer, restore_optimizer
from firefly.checkpoint.packing import Json, Tensors, pack
from firefly.errors import FireflyError, first_line
from firefly.ranks.talk import find_rank
from firefly.ranks.wrap import bare, check_wrapper, rewrap
from firefly.surgery.guard import unbroken
from firefly.surgery.residual import put_again, take_out
from firefly.surgery.shards import gather_whole, whole

Folder = str | os.PathLike[str]


def save(folder: Folder, model: nn.Module, optimizer: Optimizer | None = None, grower: Any = None) -> None:
    """Write model, optimiser and grower to `folder`; a checkpoint already there is replaced, in one atomic moment.

    Of a model that is sharded over several ranks all must call this, and the first one writes it as a whole. One in
    DistributedDataParallel is the same on all ranks: the first one writes it, whoever else calls.
    """
    given, model = model, bare(model)
    place = check_arguments(folder, model, optimizer, grower)
    if (place / "fit.json").exists():
        raise FireflyError(f"{place} is the folder of a run, which load reads there: save to another one, or inside it")
    with whole(model, optimizer) as shards:
        content, tensors = collect(model, optimizer, grower)
        if find_rank() == 0 or (given is model and not shards.units):
            publish(place, content, tensors)


def collect(model: nn.Module, optimizer: Optimizer | None, grower: Any) -> tuple[Json, Tensors]:
    """All that a checkpoint holds."""
    state = collect_state(model)
    content = describe(model, state)
    tensors = {f"model/{name}": tensor for name, tensor in state.items() if name not in content["ties"]}
    tensors["rng/cpu"] = torch.get_rng_state()
    if torch.cuda.is_available():
        tensors["rng/cuda"] = torch.stack(torch.cuda.get_rng_state_all())  # [devices, bytes]
    content |= {
        "history": pack(content["history"], "history", tensors),
        "optimizer": None if optimizer is None else pack_optimizer(optimizer, state, tensors),
        "grower": None if grower is None else pack(grower.state_dict(), "grower", tensors),
    }
    return content, {name: gather_whole(tensor) for name, tensor in tensors.items()}


def load(
    folder: Folder, model: nn.Module, optimizer: Optimizer | None = None, grower: Any = None, rng: bool = False
) -> nn.Module:
    """Turn the freshly constructed `model`, in place, into the grown one saved in `folder`, and return it.

    The folder may also be that of a run of `fit` or `firefly grow`: then it is the last checkpoint there. The optimiser
    stays the same object and gets the new parameters with their state; the grower gets its history. With `rng=True`
    torch's generators (CPU, and CUDA where there is one) go on as they would have. All or nothing: after an error
    everything is as it was, and an interrupt waits until the load is over.
    """
    given, model = model, bare(model)
    check_wrapper(given)
    place = find_latest(check_arguments(folder, model, optimizer, grower))
    with whole(model, optimizer) as shards:
        fill(place, model, optimizer, grower, rng)
        shards.changed = True
    for hook in model._load_state_dict_post_hooks.values():  # a config follows (`carry_architecture`)
        hook(model, _IncompatibleKeys([], []))
    return rewrap(given)


def fill(place: Path, model: nn.Module, optimizer: Optimizer | None, grower: Any, rng: bool) -> None:
    """Bring the model, and what is given with it, to what the folder holds; all or nothing."""
    content, tensors = read(place)
    for kind, given in (("optimizer", optimizer), ("grower", grower)):
        if given is not None and content[kind] is None:
            raise FireflyError(f"{place} holds no {kind}: load it without {kind}=")
    with unbroken(), ExitStack() as undo:
        layers = put_again(model, content["deeper"])
        undo.callback(take_out, model, layers)
        if optimizer is not None:
            insert_layers(optimizer, model, layers, content["optimizer"], undo)
        state, weights = collect_state(model), gather_weights(content["ties"], tensors)
        check_names(model, state, content, weights)
        check_growth(model, state, content["attributes"], weights)
        if optimizer is not None:
            check_optimizer(optimizer, state, weights, content["optimizer"])
        if grower is not None:
            restore_grower(grower, content["grower"], undo)
        renewed = renew_tensors(model, state, weights, undo)
        set_sizes(model, content["attributes"], undo)
        fill_model(model, state, renewed, weights, undo)
        set_history(model, content["history"], undo)
        if optimizer is not None:
            restore_optimizer(optimizer, renewed, content["optimizer"])
        if rng:
            restore_generators(tensors, undo)
        undo.pop_all()


def check_arguments(folder: Any, model: Any, optimizer: Any, grower: Any) -> Path:
    """The folder, if all are what they should be."""
    if not isinstance(folder, (str, os.PathLike)) or "\0" in os.fsdecode(folder):
        raise FireflyError(f"folder={folder!r:.60}: give the path of a folder")
    if not isinstance(model, nn.Module):
        raise FireflyError(f"the model must be an nn.Module, not {type(model).__name__}")
    if optimizer is not None and not isinstance(optimizer, Optimizer):
        raise FireflyError(f"optimizer must be a torch.optim.Optimizer, not {type(optimizer).__name__}")
    stateful = callable(getattr(grower, "state_dict", None)) and callable(getattr(grower, "load_state_dict", None))
    if grower is not None and (not stateful or isinstance(grower, (nn.Module, Optimizer))):
        raise FireflyError(f"grower must be a firefly.Firefly, or have a state_dict, not {type(grower).__name__}")
    return Path(os.fsdecode(folder))


def find_latest(place: Path) -> Path:
    """The folder, or in that of a run, whose `fit.json` names its checkpoint, that one."""
    if (place / "checkpoint.json").exists() or not (place / "fit.json").is_file():
        return place
    try:
        name = json.loads((place / "fit.json").read_bytes())["checkpoint"]
        return place / Path(name).name
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise FireflyError(f"{place / 'fit.json'} names no checkpoint: load one of the folders beside it") from error


def restore_grower(grower: Any, state: Any, undo: ExitStack) -> None:
    """Give the grower its state; what it and its schedule held comes back if the load fails."""
    for owner in (grower, getattr(grower, "schedule", None)):
        if hasattr(owner, "__dict__"):
            undo.callback(remember(vars(owner)))
    try:
        grower.load_state_dict(state)
    except FireflyError:
        raise
    except Exception as error:
        raise FireflyError(
            f"the saved grower does not fit the given {type(grower).__name__} ({type(error).__name__}: "
            f"{first_line(error)}): construct it as the saved one was, or load without grower="
        ) from error


def remember(values: Json) -> Any:
    """A function that puts back what the dict holds now, and what the lists in it hold."""
    kept, lists = dict(values), [(value, list(value)) for value in values.values() if isinstance(value, list)]

    def put_back() -> None:
        values.clear()
        values.update(kept)
        for value, items in lists:
            value[:] = items

    return put_back


def restore_generators(tensors: Tensors, undo: ExitStack) -> None:
    """Set torch's random generators."""
    undo.callback(torch.set_rng_state, torch.get_rng_state())
    try:
        torch.set_rng_state(tensors["rng/cpu"])
        for device, value in enumerate(tensors.get("rng/cuda", [])[: torch.cuda.device_count()]):
            undo.callback(torch.cuda.set_rng_state, torch.cuda.get_rng_state(device), device)
            torch.cuda.set_rng_state(value, device)
    except (KeyError, RuntimeError, TypeError, ValueError) as error:
        raise FireflyError(
            f"the checkpoint holds no state of torch's generators ({first_line(error)}): load it without rng="
        ) from error
