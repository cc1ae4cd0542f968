"""`trace(model, example)`: which slices of a model's tensors grow together, or why a width is pinned.

The model's exported graph says which axes are the same (`graph.py`, `rules/`); this file names the widths, pins what
no one may grow, and has every width proved on the example (`proof.py`).
"""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils._pytree import tree_leaves

from firefly.anatomy import axes, rules
from firefly.anatomy.axes import Axis, Space
from firefly.anatomy.choices import read_best
from firefly.anatomy.examples import Call, Examples, as_calls, bring
from firefly.anatomy.exporting import export, reached
from firefly.anatomy.graph import Choice, Flow
from firefly.anatomy.proof import prove
from firefly.anatomy.reach import pin_unreached
from firefly.anatomy.widths import Anatomy, Runs, Width
from firefly.errors import FireflyError
from firefly.ranks.wrap import bare
from firefly.surgery.norms import unsynced
from firefly.surgery.quiet import chance_kept
from firefly.surgery.residual import Residual, awake, find_dormant
from firefly.surgery.shards import whole
from firefly.surgery.swap import find_tensor, swapped
from firefly.tensors import Layout, Run


def trace(model: nn.Module, example: Any) -> Anatomy:
    """Find the widths of a model.

    Args:
        model: any `nn.Module`, unmodified.
        example: what its forward takes: a tensor, a tuple of arguments, or a dict of keyword arguments; or
            `firefly.Examples`, one for each path through the model. What no example reaches pins what may feed it.

    Returns:
        The anatomy: print it, or iterate over its widths (`name`, `size`, `pinned`).
    """
    model = bare(model)
    check_model(model)
    calls = as_calls(bring(example, model))
    with whole(model), unsynced(model):
        return _trace_whole(model, calls)


def _trace_whole(model: nn.Module, calls: tuple[Call, ...]) -> Anatomy:
    layers = find_dormant(model)
    stuck: dict[str, Width] = {}
    while True:
        with awake(model, layers):
            anatomy = _trace(model, calls)
        known = {path: anatomy.widths[path] for path in layers if path in anatomy.widths}
        stuck |= {path: replace(width, size=0) for path, width in known.items() if width.pinned}
        wakes = {path: layer for path, layer in layers.items() if path in known and path not in stuck}
        if wakes.keys() == layers.keys():
            return replace(anatomy, widths={**anatomy.widths, **stuck}).resized(dict.fromkeys(layers, 0))
        layers = wakes  # once more, with those left asleep that cannot grow or are not reached


def _trace(model: nn.Module, calls: tuple[Call, ...]) -> Anatomy:
    with chance_kept(model), swapped(model, {}):
        programs = export(model, calls)
        tensors = [leaf for leaf in tree_leaves((calls[0].args, calls[0].kwargs)) if isinstance(leaf, Tensor)]
        batch = next((tensor.shape[0] for tensor in tensors if tensor.ndim), 1)
        if not batch:
            raise FireflyError(f"the example has shape {tuple(tensors[0].shape)}, so nothing in it: give one or more")
        flow, anatomy = read_best(lambda choices: _read(model, programs, batch, choices))
        return prove(model, Examples(*calls), flow, anatomy)


def check_model(model: Any) -> None:
    if not isinstance(model, nn.Module):
        raise FireflyError(f"the model must be an nn.Module, not {type(model).__name__}")
    if any(type(module).__name__ == "FullyShardedDataParallel" for module in model.modules()):
        raise FireflyError("FullyShardedDataParallel's flat parameters cannot grow: spread the model with fully_shard")
    inner = next((n for n, m in model.named_modules() if n and isinstance(m, DistributedDataParallel)), None)
    if inner is not None:
        raise FireflyError(
            f"{inner} is a DistributedDataParallel inside the model, which would not hear of a growth: wrap the whole "
            f"model instead of its parts, or grow model.{inner} by itself"
        )
    wrapped = "module" if hasattr(model, "module") and "Parallel" in type(model).__name__ else None
    wrapped = "_orig_mod" if type(model).__name__ == "OptimizedModule" else wrapped
    if wrapped:
        raise FireflyError(
            f"the model is wrapped in {type(model).__name__}, which keeps the tensors it was made with: "
            f"pass the module inside it (model.{wrapped}) and wrap that again after growth"
        )
    if isinstance(model, torch.jit.ScriptModule):
        raise FireflyError("a TorchScript model cannot grow: pass the module that it was made from")
    empty = next((name for name, tensor in model.named_parameters() if tensor.is_meta), None)
    if empty is not None:
        raise FireflyError(f"{empty} is on the meta device, without values: load or initialise the model first")


def _read(model: nn.Module, programs: list[Any], batch: int, choices: dict[Choice, int]) -> tuple[Flow, Anatomy]:
    flow = Flow(model, choices=choices, rows=max(batch, 2))
    for k, program in enumerate(programs):
        costs = list(flow.costs)
        flow.walk(program, rules.find)
        if k:
            flow.costs = costs
    _pin_conflicts(flow)
    pin_unreached(flow, reached(model, programs))
    return flow, _describe(flow, batch)


def _pin_conflicts(flow: Flow) -> None:
    for name, value in flow.tensors.items():
        by_role: dict[str, list[Axis]] = {"makes": [], "reads": []}
        for dim, axis in enumerate(value.dims):
            roles = flow.roles.get((name, dim), set())
            if len(roles) > 1:
                axes.pin((axis,), f"{name} both makes and reads it (tied weights)")
            for role in roles:
                by_role[role] += [axis] if axes.growable(axis) else []
        for role, several in by_role.items():
            axes.pin(several[1:], f"{name} {role} two widths at once")
        tensor = find_tensor(flow.model, name)
        if isinstance(tensor, nn.Parameter) and not tensor.requires_grad:
            axes.pin(value.dims, f"{name} is frozen")
        if tensor.is_complex():
            axes.pin(value.dims, f"{name} holds complex numbers, and growth knows real ones")
        known = ("mean of data", "variance of data", "as registered")
        if not isinstance(tensor, nn.Parameter) and flow.starts.get(name) not in known:
            axes.pin(value.dims, f"the buffer {name} has an entry for each neuron, and who knows which for a new one")


def _describe(flow: Flow, examples: int) -> Anatomy:
    """Name the spaces that layers make, and lay out every tensor in terms of them."""
    members: dict[Space, dict[str, list[str]]] = {}
    everywhere = [(name, dim) for name, value in flow.tensors.items() for dim in range(len(value.dims))]
    for name, dim in dict.fromkeys([*flow.roles, *everywhere]):  # roles are in the order of execution
        role = flow.role(name, dim)
        for term in axes.resolve(flow.tensors[name].dims[dim]):
            known = members.setdefault(term.space, {"makes": [], "reads": [], "follows": []})
            known[role] += [name] if name not in known[role] else []
    names: dict[Space, str] = {}
    widths: dict[str, Width] = {}
    for space, known in members.items():
        if known["makes"]:
            if not known["reads"]:
                space.pinned = space.pinned or "nothing reads it"
            width = _width(flow, space, known, set(widths))
            names[space], widths[width.name] = width.name, width
    grows = {name for name, width in widths.items() if width.pinned is None}

    def runs(axis: Axis) -> Runs:
        found = [(names.get(term.space), term) for term in axes.resolve(axis)]
        return tuple(Run(name, t.space.size, t.block) if name in grows else Run(None, t.length) for name, t in found)

    layouts = {}
    for name, value in flow.tensors.items():
        dims = tuple(runs(axis) for axis in value.dims)
        if any(run.width for dim in dims for run in dim):
            layouts[name] = _layout(flow, name, dims)
    mirrors = [(m.module, m.attribute, runs(m.axis)) for m in flow.mirrors]
    return Anatomy(
        widths,
        layouts,
        tuple(dict.fromkeys(m for m in mirrors if any(run.width for run in m[2]))),
        tuple(tuple(runs(axis) for axis in dims) for dims in flow.costs),
        examples,
        sum(p.numel() for n, p in flow.model.named_parameters() if n not in layouts),
        frozenset(n for n, p in flow.model.named_parameters() if not p.requires_grad),
    )


def _layout(flow: Flow, name: str, dims: tuple[Runs, ...]) -> Layout:
    roles = tuple(flow.role(name, d) if any(run.width for run in runs) else None for d, runs in enumerate(dims))
    parameter = isinstance(find_tensor(flow.model, name), nn.Parameter)
    return Layout(name, dims, roles, flow.starts.get(name, "random" if "makes" in roles else "mean"), parameter)


def _layer_of(model: nn.Module, tensor: str) -> str:
    """The layer a tensor belongs to, or the tensor's own name where it stands bare in a larger module."""
    layer, _, leaf = tensor.partition(".parametrizations.")[0].rpartition(".")
    if ".parametrizations." in tensor:
        return f"{layer}.{leaf}".lstrip(".")
    owner = model.get_submodule(layer)
    above = layer.removesuffix(".make")
    if above != layer and isinstance(model.get_submodule(above), Residual):
        return above
    listed = isinstance(owner, (nn.ParameterList, nn.ParameterDict))
    known = type(owner).__module__.startswith("torch.nn") or isinstance(owner, nn.MultiheadAttention)
    named = leaf in ("weight", "bias") or known
    return layer if layer and named and not listed else tensor


def _width(flow: Flow, space: Space, known: dict[str, list[str]], taken: set[str]) -> Width:
    first = known["makes"][0]
    name = _layer_of(flow.model, first)
    dims = [d for d in range(len(flow.tensors[first].dims)) if flow.role(first, d) == "makes"]
    terms = [term for d in dims for term in axes.resolve(flow.tensors[first].dims[d])]
    block = next((term.block for term in terms if term.space is space), 1)
    names = itertools.chain([name], (f"{name}#{k}" for k in itertools.count(2)))
    name = next(one for one in names if one not in taken)
    return Width(
        name, space.size, tuple(known["makes"]), tuple(known["reads"]), tuple(known["follows"]), block, space.pinned
    )
