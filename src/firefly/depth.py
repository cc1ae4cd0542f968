"""`deepen(model, example)`: dormant residual layers at every fitting place of a model (Sec. 2.3, App. B.2).

The paper writes a network as f = g_d ∘ … ∘ g_1 and puts new layers between the g's. So a place fits where the output
of a module is all that the rest of the model sees of what came before it: after a convolution or linear layer with its
norm and activation, after a block of a ResNet or transformer, not inside a branch. Others serve when they are named.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import ExitStack
from typing import Any

import torch
from torch import nn

from firefly.anatomy.calls import Call, watch
from firefly.anatomy.tracing import check_model, trace
from firefly.anatomy.widths import Anatomy
from firefly.errors import FireflyError
from firefly.ranks.wrap import bare
from firefly.stages.optimizer import check_optimizer
from firefly.surgery.guard import interruptible, unbroken
from firefly.surgery.residual import CONVOLUTIONS, NAME, Residual, find_layers, is_activation, put, take_out

Sites = str | type[nn.Module] | Iterable[str | type[nn.Module]] | None

WEIGHTED = (nn.Linear, *CONVOLUTIONS.values())
BATCH_NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.SyncBatchNorm)
NORMS = (*BATCH_NORMS, nn.GroupNorm, nn.InstanceNorm1d, nn.InstanceNorm2d, nn.InstanceNorm3d)


def deepen(
    model: nn.Module,
    example: Any,
    sites: Sites = None,
    *,
    count: int = 1,
    kernel: int = 3,
    activation: type[nn.Module] = nn.ReLU,
    norm: bool | None = None,
    optimizer: torch.optim.Optimizer | None = None,
) -> list[str]:
    """Put dormant residual layers I + h into a model; it computes exactly what it did until a growth wakes one.

    Args:
        model: any `nn.Module`; it keeps its classes, its names and its forward.
        example: what its forward takes: a tensor, a tuple of arguments, or a dict of keyword arguments.
        sites: the modules behind which to put them, by name or type; None takes every fitting place.
        count: so many in a row at each place.
        kernel: the size of their convolutions; where the model is made of linear layers they are linear.
        activation: their activation, as a class.
        norm: a batch norm in each; None for one where the model itself has batch norms. Linear ones have none.
        optimizer: gets their parameters in its last group; without it they join that group when they wake up.

    Returns:
        Their names, which are those of their widths.
    """
    model = bare(model)
    check_model(model)
    _check_options(count, kernel, activation)
    check_optimizer(optimizer, model)
    calls = watch(model, example)
    names, must = _find_sites(model, calls, sites)
    norm = any(isinstance(module, BATCH_NORMS) for module in model.modules()) if norm is None else norm
    done: list[str] = []
    with interruptible(), ExitStack() as undo:
        undo.callback(take_out, model, done)
        for name in names:
            with unbroken():
                done.append(put(model, name, _make(model, calls[name], kernel, norm, activation)))
        fitting = _keep_fitting(model, example, done, must)
        with unbroken():
            take_out(model, [path for path in done if path not in fitting])
            done[:] = fitting
            for site in [_site(path) for path in fitting] * (count - 1):
                done.append(put(model, site, _make(model, calls[site], kernel, norm, activation)))
            fresh = [p for path in done for p in model.get_submodule(path).parameters()]
            if optimizer is not None:
                optimizer.param_groups[-1]["params"].extend(fresh)
            undo.pop_all()
    order = list(find_layers(model))
    return sorted(done, key=order.index)


def _check_options(count: Any, kernel: Any, activation: Any) -> None:
    if type(count) is not int or count < 1:
        raise FireflyError(f"deepen(count={count!r}): needs a whole number of layers, at least 1")
    if type(kernel) is not int or kernel < 1 or not kernel % 2:
        raise FireflyError(f"deepen(kernel={kernel!r}): must be an odd whole number, so that the size stays the same")
    if not is_activation(activation):
        raise FireflyError(
            f"deepen(activation={activation!r}): give a module class without arguments, such as torch.nn.ReLU"
        )


def _site(path: str) -> str:
    return path.rpartition(f".{NAME}.")[0]


# ---- choosing the places ---------------------------------------------------------------------------------------------


def _find_sites(model: nn.Module, calls: dict[str, Call], sites: Sites) -> tuple[list[str], set[str]]:
    """The names of the modules to try, and those of them that the user asked for by name."""
    ours = find_layers(model)
    own = [name for name in calls if not any(f"{name}.".startswith(f"{path}.") for path in ours)]
    if sites is None:
        found = _default_sites([calls[name] for name in own if name])
        if not found:
            raise FireflyError("no fitting place for a new layer: name modules behind which to put one, sites=[...]")
        return found, set()
    wanted = list(sites) if isinstance(sites, Iterable) and not isinstance(sites, (str, type)) else [sites]
    found, must = [], set()
    for one in wanted:
        if isinstance(one, type):
            typed = [name for name in own if name and isinstance(calls[name].module, one)]
            fitting = [name for name in (_last(calls, name) for name in typed) if not calls[name].misfit]
            if not fitting:
                raise FireflyError(f"sites: the model has no {one.__name__} behind which a layer fits")
            found += fitting
        else:
            name = _check_name(model, calls, one)
            found.append(name)
            must.add(name)
    return list(dict.fromkeys(found)), must


def _check_name(model: nn.Module, calls: dict[str, Call], name: Any) -> str:
    if name not in dict(model.named_modules()) or name == "":
        raise FireflyError(f"sites: the model has no module {name!r}; model.named_modules() lists them")
    if name not in calls:
        raise FireflyError(f"sites: {name!r} is not called in a forward on the example")
    last = _last(calls, name)
    if problem := calls[last].misfit:
        raise FireflyError(f"sites: no layer fits behind {name!r}: {problem}")
    return last


def _last(calls: dict[str, Call], name: str) -> str:
    """The module whose output this one returns: the last one of a Sequential, which must get no children itself."""
    module = calls[name].module
    while isinstance(module, nn.Sequential) and type(module).forward is nn.Sequential.forward and len(module):
        child = list(module._modules)[-1]
        if f"{name}.{child}" not in calls:
            break
        name, module = f"{name}.{child}", module[-1]
    return name


def _default_sites(calls: list[Call]) -> list[str]:
    """After each layer with its norm and activation, and after each block, where the model is divided there."""
    ends: dict[str, Call] = {}
    for call in calls:
        block = bool(list(call.module.children())) and not isinstance(call.module, nn.Sequential)
        chain = [call] if block else _chain(call, calls) if isinstance(call.module, WEIGHTED) else []
        fitting = [one for one in chain if one.divides and not one.misfit]
        if fitting:
            ends[fitting[-1].name] = fitting[-1]
    found: list[Call] = []
    for call in sorted(ends.values(), key=lambda one: one.order):
        since = found[-1].order if found else -1
        if any(_has_weights(one.module) and since < one.order <= call.order for one in calls):
            found.append(call)
    return [call.name for call in found]


def _chain(call: Call, calls: list[Call]) -> list[Call]:
    """A layer and the norm, activation and dropout that follow it, as far as they keep the shape."""
    chain = [call]
    for one in calls:
        if one.order > chain[-1].order and one.given is chain[-1].output and _follows(one.module):
            chain.append(one)
    return chain


def _has_weights(module: nn.Module) -> bool:
    return isinstance(module, WEIGHTED) or any(p is not None and p.ndim > 1 for p in module._parameters.values())


def _follows(module: nn.Module) -> bool:
    kind = type(module)
    activation = kind.__module__ == nn.ReLU.__module__ and kind is not nn.MultiheadAttention
    return activation or isinstance(module, (*NORMS, nn.modules.dropout._DropoutNd))


# ---- the layers ------------------------------------------------------------------------------------------------------


def _make(model: nn.Module, call: Call, kernel: int, norm: bool, activation: type[nn.Module]) -> Residual:
    """A dormant layer that fits the output of this call."""
    space = _space(call)
    channels = call.output.shape[1 if space else -1]
    dtype = next((p.dtype for p in model.parameters() if p.is_floating_point()), call.output.dtype)
    return Residual(channels, space, kernel, norm, activation, call.output.device, dtype)


def _space(call: Call) -> int:
    """How many dimensions of the output a convolution would slide over; 0 where the channels come last."""
    ndim, origin = call.output.ndim, call
    while origin.source is not None and not isinstance(origin.module, WEIGHTED) and not list(origin.module.children()):
        origin = origin.source  # a norm or an activation: what did it get?
    if ndim == 2 or isinstance(origin.module, nn.Linear):
        return 0
    inside = {type(module) for module in origin.module.modules()}
    return 0 if ndim == 3 and (nn.Linear in inside or nn.Conv1d not in inside) else ndim - 2


def _keep_fitting(model: nn.Module, example: Any, paths: list[str], must: set[str]) -> list[str]:
    """The layers that can grow where they are; an error for one that the user asked for by name."""
    calls = watch(model, example)
    anatomy = trace(model, example)
    ours = {f"{path}.{name}" for path, layer in find_layers(model).items() for name, _ in layer.named_parameters()}
    fitting = []
    for path in paths:
        times = calls[path].times if path in calls else 0
        problem = (
            _misfit(anatomy, path, ours) if times == 1 else f"its forward calls its children itself ({times} times)"
        )
        if problem is None:
            fitting.append(path)
        elif _site(path) in must:
            raise FireflyError(f"sites: no layer fits behind {_site(path)!r}: {problem}")
    if not fitting:
        raise FireflyError("no fitting place for a new layer: what the modules there return is read by nothing else")
    return fitting


def _misfit(anatomy: Anatomy, path: str, ours: set[str]) -> str | None:
    """Why a layer could not grow here, or would be of no use."""
    if path not in anatomy.widths:
        return "torch.export does not reach it"
    if anatomy[path].pinned:
        return anatomy[path].pinned
    stream = [width for width in anatomy if f"{path}.read.weight" in width.makers]
    if not any(set(width.makers) - ours for width in stream):
        return "what it returns has no channels that a layer makes"
    if not any(set(width.readers) - ours for width in stream):
        return "no layer reads what it returns, as that is the output of the model"
    return None
