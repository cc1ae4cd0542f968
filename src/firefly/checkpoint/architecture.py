"""The architecture as data: what growth made of a model, as plain JSON, and a fresh small model made the grown one.

A grown model is the same class with the same modules; only tensors are larger, and the whole numbers on the modules
that mirror them, and dormant layers may have been put in (Sec. 2.3). So the shapes, those numbers and those layers are
the architecture. `firefly.save` writes it, and whatever keeps checkpoints of its own can carry it along.
"""

import copy
from collections.abc import Mapping
from contextlib import ExitStack
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy
from torch.optim.swa_utils import AveragedModel

from firefly.checkpoint.explained import check_growth
from firefly.checkpoint.forms import ARCHITECTURE, check_form
from firefly.checkpoint.model import check_names, find_sizes, find_ties, set_data, set_sizes
from firefly.checkpoint.packing import Json, Tensors
from firefly.errors import FireflyError
from firefly.ranks.wrap import bare, check_wrapper, rewrap
from firefly.surgery import residual
from firefly.surgery.guard import unbroken
from firefly.surgery.shards import whole

HISTORY = "_firefly_history"  # the attribute of a model that holds its growths


def architecture(model: nn.Module) -> Json:
    """What the model has grown into, as plain JSON: `firefly.rebuild` makes a fresh small model the same.

    - `parameters`: how many. `widths`: {name: size} of those that growth has met. `woken`: layers that growth added.
    - `history`: every growth so far, oldest first.
    - `shapes`, `attributes`, `ties`, `deeper`: all that `rebuild` needs.
    """
    if not isinstance(model, nn.Module):
        raise FireflyError(f"architecture takes an nn.Module, not {type(model).__name__}")
    model = bare(model)
    return describe(model, list_tensors(model))


def describe(model: nn.Module, tensors: Tensors) -> Json:
    """The same of a model whose tensors are at hand."""
    history = list_growths(model)
    modules = model.named_modules(remove_duplicate=False)
    return {
        "class": type(model).__name__,
        "parameters": sum(p.numel() for p in model.parameters()),
        "widths": {name: size for growth in history for name, (_, size) in growth["widths"].items()},
        "woken": [path for path, layer in residual.find_layers(model).items() if not layer.dormant],
        "history": history,
        "shapes": {name: list(tensor.shape) for name, tensor in tensors.items()},
        "attributes": {path: as_lists(find_sizes(module)) for path, module in modules},
        "ties": find_ties(tensors),
        "deeper": residual.describe(model),
    }


def as_lists(sizes: Json) -> Json:
    return {name: list(value) if isinstance(value, tuple) else value for name, value in sizes.items()}


def list_tensors(model: nn.Module) -> Tensors:
    """All parameters and buffers, tied ones under each of their names."""
    found = [*model.named_parameters(remove_duplicate=False), *model.named_buffers(remove_duplicate=False)]
    for name, tensor in found:
        if is_lazy(tensor):
            raise FireflyError(f"{name} has no shape yet: first run one forward")
    return dict(found)


def rebuild(model: nn.Module, architecture: Mapping[str, Any], strict: bool = True) -> nn.Module:
    """Make a freshly constructed `model`, in place, the grown one that `architecture` describes, and return it.

    Its tensors have the sizes of the grown model then, and values of the small one's spread: load the saved ones with
    `load_state_dict`, or train it as it is (`reset_parameters()` of a layer scales them to its new size). An optimiser
    made before stays valid if it has made no step (of a sharded model make it afterwards). A model that has grown on
    since becomes what it was then. With `strict=False` parts that only one of the two has, such as another head, are
    left as they are. After an error the model is as it was.
    """
    if not isinstance(model, nn.Module):
        raise FireflyError(f"rebuild takes an nn.Module, not {type(model).__name__}")
    check_form(architecture, ARCHITECTURE, "the architecture")
    given, model = model, bare(model)
    check_wrapper(given)
    with whole(model) as shards:
        enlarge(model, architecture, strict)
        shards.changed = True
    return rewrap(given)


def enlarge(model: nn.Module, architecture: Mapping[str, Any], strict: bool) -> None:
    """The same of a model that is an ordinary one now."""
    with unbroken(), ExitStack() as undo:
        layers = residual.put_again(model, architecture["deeper"])
        undo.callback(residual.take_out, model, layers)
        state = list_tensors(model)
        saved = {**architecture} if strict else keep_common(architecture, model, state)
        imagined = imagine(state, saved["shapes"])
        check_names(model, state, saved, imagined)
        if not is_earlier(saved, model):
            check_growth(model, state, saved["attributes"], imagined)
        larger = draw_tensors(model, state, saved["shapes"])
        for name, old in state.items():  # the same parameters, so that an optimiser that holds them need not know
            if old.shape != larger[name].shape:
                undo.callback(set_data, old, old.data)
                old.data, old.grad = larger[name], None
        set_sizes(model, saved["attributes"], undo)
        set_history(model, saved["history"], undo)
        undo.pop_all()


def is_earlier(saved: Mapping[str, Any], model: nn.Module) -> bool:
    """Whether the model has grown out of this architecture: it may become smaller then."""
    past, history = saved["history"], list_growths(model)
    return len(past) < len(history) and all(growth in history for growth in past)


def imagine(state: Tensors, shapes: Mapping[str, list[int]]) -> Tensors:
    """Tensors of these shapes without memory."""
    dtypes = {name: state[name].dtype for name in shapes if name in state}
    return {name: torch.empty(shape, dtype=dtypes.get(name), device="meta") for name, shape in shapes.items()}


def keep_common(architecture: Mapping[str, Any], model: nn.Module, state: Tensors) -> Json:
    """What the architecture says of the model's modules and tensors, and where it says nothing, the model itself."""
    modules, shapes = dict(model.named_modules(remove_duplicate=False)), architecture["shapes"]
    own = {name: list(tensor.shape) for name, tensor in state.items()}
    common = {name: shape for name, shape in shapes.items() if name in own and len(shape) == len(own[name])}
    attributes = {path: sizes for path, sizes in architecture["attributes"].items() if path in modules}
    return {**architecture, "shapes": own | common, "attributes": attributes, "ties": find_ties(state)}


@torch.no_grad()
def draw_tensors(model: nn.Module, state: Tensors, shapes: Mapping[str, list[int]]) -> Tensors:
    """The model's tensors; for those that are to grow, larger ones with values to begin with."""
    generator = torch.Generator().manual_seed(0)
    layers, found = residual.find_layers(model), dict(state)
    for name, old in state.items():
        if list(old.shape) != shapes[name]:
            path = next((path for path in layers if name.startswith(f"{path}.")), None)
            if path is not None:
                found[name] = residual.draw(layers[path], name.removeprefix(f"{path}."), shapes[name], generator)
            else:
                found[name] = draw(old, shapes[name], generator)
    return found


def draw(old: Tensor, shape: list[int], generator: torch.Generator) -> Tensor:
    """Entries drawn from those of the small tensor, so that what is constant stays so and the rest has its spread."""
    numbers = torch.randint(max(old.numel(), 1), shape, generator=generator)
    drawn = old.detach().flatten()[numbers.to(old.device)]
    order = sorted(range(old.ndim), key=old.stride().__getitem__, reverse=True)  # as it lies in memory
    return drawn.permute(order).contiguous().permute([order.index(dim) for dim in range(old.ndim)])


# ---- what has grown so far -------------------------------------------------------------------------------------------


def list_growths(model: nn.Module) -> list[Json]:
    """Every growth of the model or of a part of it, oldest first, by the model's own names; averages grow along."""
    found = []
    averages = [f"{path}." for path, one in model.named_modules() if path and isinstance(one, AveragedModel)]
    for path, module in model.named_modules():
        if path.startswith(tuple(averages)):
            continue
        for growth in vars(module).get(HISTORY, ()):
            found.append(copy.deepcopy(growth) if not path else add_prefix(path, growth))
    return found


def add_prefix(path: str, growth: Json) -> Json:
    """A growth of the part at this path, by the names of the whole."""
    named = {key: growth[key] for key in ("added", "widths", "gains") if key in growth}
    longer = {key: {f"{path}.{name}": value for name, value in of.items()} for key, of in named.items()}
    return copy.deepcopy({**growth, **longer, "woken": [f"{path}.{name}" for name in growth.get("woken", ())]})


def set_history(model: nn.Module, history: list[Json], undo: ExitStack) -> None:
    """Write the history of its growths into the model, in place of what it and its parts have."""
    for module in model.modules():
        if HISTORY in vars(module):
            undo.callback(setattr, module, HISTORY, vars(module).pop(HISTORY))
    if history:
        setattr(model, HISTORY, [*history])
        undo.callback(vars(model).pop, HISTORY)


def note_growth(model: nn.Module, growth: Json) -> None:
    """Add a growth to the history that the model holds; the numbers of the chosen neurons mean nothing later on."""
    brief = {name: value for name, value in growth.items() if name not in ("chosen", "seconds")}
    setattr(model, HISTORY, [*getattr(model, HISTORY, []), brief])
