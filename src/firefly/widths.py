"""`trace(model, example)`: which slices of a model's tensors grow together, or why a width is pinned.

The model's exported graph says which axes are the same (`flow.py`, `rules.py`); this file names the widths, pins what
no one may grow, and then proves every width on the example: with one neuron doubled and its readers halved the model
must still run and compute the same. What fails there is pinned too, with the error as the reason.
"""

from __future__ import annotations

import itertools
import math
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from firefly import axes, rules
from firefly.axes import Axis, Space
from firefly.errors import FireflyError
from firefly.flow import Flow
from firefly.swap import find_tensor, swapped, switched
from firefly.tensors import Layout, Roster, Run, carry, chosen, make_plan

Runs = tuple[Run, ...]


@dataclass(frozen=True)
class Width:
    """Neurons that live in several tensors at once. `pinned` is None, or the reason why it cannot grow."""

    name: str
    size: int
    makers: tuple[str, ...]
    readers: tuple[str, ...]
    followers: tuple[str, ...]
    block: int = 1  # rows of its first maker that one neuron owns
    pinned: str | None = None


@dataclass(frozen=True)
class Anatomy:
    """All widths of a model, by name, and where their neurons lie."""

    widths: Mapping[str, Width]
    layouts: Mapping[str, Layout]
    mirrors: tuple[tuple[str, str, Runs], ...]  # (module, attribute, the axis whose length it equals)
    costs: tuple[tuple[Runs, ...], ...]  # multiply-adds of one example as products of axes
    examples: int  # in the traced batch
    other_parameters: int  # in tensors without a growable width

    def __iter__(self) -> Iterator[Width]:
        return iter(self.widths.values())

    def __len__(self) -> int:
        return len(self.widths)

    def __getitem__(self, name: str) -> Width:
        if name not in self.widths:
            raise FireflyError(f"the model has no width {name!r}; it has {', '.join(self.widths) or 'none'}")
        return self.widths[name]

    def growable(self) -> list[Width]:
        return [width for width in self if width.pinned is None]

    def sizes(self) -> dict[str, int]:
        return {width.name: width.size for width in self}

    def parameters(self, sizes: Mapping[str, int] | None = None) -> int:
        """Parameters of the model, now or with widths of other sizes."""
        own = (layout for layout in self.layouts.values() if layout.parameter)
        return self.other_parameters + sum(math.prod(length(runs, sizes) for runs in one.dims) for one in own)

    def flops(self, sizes: Mapping[str, int] | None = None) -> int:
        """Floating-point operations of one example's forward pass (two per multiply-add)."""
        return 2 * sum(math.prod(length(runs, sizes) for runs in dims) for dims in self.costs) // self.examples

    def resized(self, sizes: Mapping[str, int]) -> Anatomy:
        """The same anatomy with widths of other sizes."""

        def fit(runs: Runs) -> Runs:
            return tuple(replace(run, size=sizes.get(run.width, run.size)) if run.width else run for run in runs)

        return replace(
            self,
            widths={name: replace(width, size=sizes.get(name, width.size)) for name, width in self.widths.items()},
            layouts={n: replace(lay, dims=tuple(map(fit, lay.dims))) for n, lay in self.layouts.items()},
            mirrors=tuple((module, name, fit(runs)) for module, name, runs in self.mirrors),
            costs=tuple(tuple(map(fit, dims)) for dims in self.costs),
        )

    def mirrored(self, sizes: Mapping[str, int]) -> list[tuple[str, str, int]]:
        """(module, attribute, value) for every attribute that changes with these sizes."""
        touched = ((m, a, runs) for m, a, runs in self.mirrors if any(run.width in sizes for run in runs))
        return [(module, attribute, length(runs, sizes)) for module, attribute, runs in touched]

    def __str__(self) -> str:
        rows = [("width", "neurons", "made by", "read by", "")]
        for width in self:
            note = (
                f"pinned: {width.pinned}" if width.pinned else (f"{width.block} rows each" if width.block > 1 else "")
            )
            rows.append((width.name, str(width.size), _few(width.makers), _few(width.readers), note))
        columns = [max(len(row[k]) for row in rows) for k in range(4)]
        lines = ["  ".join([*(cell.ljust(n) for cell, n in zip(row, columns)), row[4]]).rstrip() for row in rows]
        growable = self.growable()
        total = f"{len(growable)} of {len(self)} widths can grow, {sum(w.size for w in growable)} neurons in them"
        return "\n".join([*lines, total])


def _few(names: tuple[str, ...], limit: int = 2) -> str:
    shown = [name.removesuffix(".weight") for name in names if not name.endswith(".bias")] or list(names)
    return ", ".join(shown[:limit]) + (f" +{len(shown) - limit}" if len(shown) > limit else "")


def length(runs: Runs, sizes: Mapping[str, int] | None = None) -> int:
    sizes = sizes or {}
    return sum((sizes.get(run.width, run.size) if run.width else run.size) * run.block for run in runs)


# ---- trace -----------------------------------------------------------------------------------------------------------


def trace(model: nn.Module, example: Any) -> Anatomy:
    """Find the widths of a model.

    Args:
        model: any `nn.Module`, unmodified.
        example: what its forward takes: a tensor, a tuple of arguments, or a dict of keyword arguments.

    Returns:
        The anatomy: print it, or iterate over its widths (`name`, `size`, `pinned`).
    """
    check_model(model)
    args, kwargs = as_arguments(example)
    programs = _export(model, args, kwargs)
    found = [_read(model, programs, args, kwargs, prefer_inner) for prefer_inner in (False, True)]
    flow, anatomy = max(found, key=lambda pair: len(pair[1].growable()))
    return prove(model, args, kwargs, flow, anatomy)


def check_model(model: Any) -> None:
    if not isinstance(model, nn.Module):
        raise FireflyError(f"the model must be an nn.Module, not {type(model).__name__}")
    wrapped = "module" if hasattr(model, "module") and "Parallel" in type(model).__name__ else None
    wrapped = "_orig_mod" if type(model).__name__ == "OptimizedModule" else wrapped
    if wrapped:
        raise FireflyError(
            f"the model is wrapped in {type(model).__name__}, which keeps the tensors it was made with: "
            f"pass the module inside it (model.{wrapped}) and wrap that again after growth"
        )


def as_arguments(example: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    if isinstance(example, Mapping):
        return (), dict(example)
    return (tuple(example) if isinstance(example, (tuple, list)) else (example,)), {}


def _export(model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[torch.export.ExportedProgram]:
    """The graph in the model's own mode; where that leaves parameters out, the one of the other mode too."""
    programs = [_export_once(model, args, kwargs)]
    used = {spec.arg.name for spec in programs[0].graph_signature.input_specs if spec.target is not None}
    idle = [n for n in programs[0].graph.find_nodes(op="placeholder") if n.name in used and not n.users]
    if idle:
        try:
            with switched(model.modules(), not model.training):
                programs.append(_export_once(model, args, kwargs))
        except FireflyError:
            pass  # parameters that this example never reaches in either mode stay as they are
    return programs


def _export_once(model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> torch.export.ExportedProgram:
    try:
        with warnings.catch_warnings(), torch.enable_grad():
            warnings.simplefilter("ignore")
            return torch.export.export(model, args, kwargs, strict=False)
    except Exception as error:
        try:
            with torch.no_grad(), swapped(model, {n: b.clone() for n, b in model.named_buffers()}):
                model(*args, **kwargs)
        except Exception as own:
            raise FireflyError(f"the model does not run on the example: {_first_line(own)}") from own
        raise FireflyError(
            f"torch.export cannot follow {type(model).__name__}.forward: {_first_line(error)}. A branch on the values "
            "of a tensor is the usual cause; growing the part of the model without it works"
        ) from error


def _first_line(error: BaseException) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0]


def _read(
    model: nn.Module, programs: list[Any], args: tuple[Any, ...], kwargs: dict[str, Any], prefer_inner: bool
) -> tuple[Flow, Anatomy]:
    flow = Flow(model, prefer_inner=prefer_inner)
    for k, program in enumerate(programs):
        costs = flow.costs
        flow.walk(program, rules.find)
        if k:
            flow.costs = costs[: len(costs)]
    _pin_conflicts(flow)
    tensors = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Tensor) and leaf.ndim]
    return flow, _describe(flow, tensors[0].shape[0] if tensors else 1)


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
    if layer and (leaf in ("weight", "bias") or type(model.get_submodule(layer)).__module__.startswith("torch.nn")):
        return layer
    return tensor


def _width(flow: Flow, space: Space, known: dict[str, list[str]], taken: set[str]) -> Width:
    first = known["makes"][0]
    name = _layer_of(flow.model, first)
    block, offset = 1, 0
    for dim, axis in enumerate(flow.tensors[first].dims):
        if "makes" in flow.roles.get((first, dim), ()):
            start = 0
            for term in axes.resolve(axis):
                if term.space is space:
                    block, offset = term.block, start
                    break
                start += term.length
    if name in taken:
        name = f"{name}[{offset}:{offset + space.size * block}]"
    while name in taken:
        name += "'"
    return Width(
        name, space.size, tuple(known["makes"]), tuple(known["reads"]), tuple(known["follows"]), block, space.pinned
    )


# ---- prove -----------------------------------------------------------------------------------------------------------


def prove(model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], flow: Flow, anatomy: Anatomy) -> Anatomy:
    """Run the model with a neuron of each width doubled; pin the widths for which it then breaks or changes."""

    def attempt(candidate: Anatomy, names: Iterable[str]) -> str | None:
        return _difference(model, args, kwargs, candidate, list(names))

    names = [width.name for width in anatomy.growable()]
    if not names or attempt(anatomy, names) is None:
        return anatomy
    broken: dict[str, str] = {}
    for name in names:
        problem = attempt(anatomy, [name])
        if problem is not None:
            found = _find_mirrors(model, flow, anatomy, name, attempt)
            if found is None:
                broken[name] = problem
            else:
                anatomy = replace(anatomy, mirrors=anatomy.mirrors + found)
    anatomy = pinned(anatomy, broken)
    left = [name for name in names if name not in broken]
    problem = attempt(anatomy, left) if left else None
    return anatomy if problem is None else pinned(anatomy, dict.fromkeys(left, problem))


def pinned(anatomy: Anatomy, reasons: Mapping[str, str]) -> Anatomy:
    """The anatomy with these widths pinned."""
    if not reasons:
        return anatomy

    def fix(runs: Runs) -> Runs:
        return tuple(Run(None, run.size * run.block) if run.width in reasons else run for run in runs)

    def lay(layout: Layout) -> Layout:
        dims = tuple(map(fix, layout.dims))
        roles = tuple(r if any(run.width for run in runs) else None for r, runs in zip(layout.roles, dims))
        return replace(layout, dims=dims, roles=roles)

    return replace(
        anatomy,
        widths={n: replace(w, pinned=reasons[n]) if n in reasons else w for n, w in anatomy.widths.items()},
        layouts={n: lay(layout) for n, layout in anatomy.layouts.items()},
        mirrors=tuple((m, a, fix(runs)) for m, a, runs in anatomy.mirrors),
        costs=tuple(tuple(map(fix, dims)) for dims in anatomy.costs),
    )


def _find_mirrors(
    model: nn.Module, flow: Flow, anatomy: Anatomy, name: str, attempt: Callable[[Anatomy, Iterable[str]], str | None]
) -> tuple[tuple[str, str, Runs], ...] | None:
    """The module attributes that spell out this width's size (self.n_head), found by trying those of equal value."""
    space = _names(flow, anatomy)
    candidates: dict[tuple[str, str], Runs] = {}
    for path, axis in flow.shaped:
        terms = axes.resolve(axis)
        if not any(space.get(term.space) == name for term in terms):
            continue
        runs = tuple(
            Run(space[t.space], t.space.size, t.block) if space.get(t.space) == name else Run(None, t.length)
            for t in terms
        )
        for attribute, value in vars(model.get_submodule(path)).items():
            if type(value) is int and value == axes.length(terms):
                candidates[path, attribute] = runs
    options = [(path, attribute, runs) for (path, attribute), runs in candidates.items()][:6]
    for count in range(1, len(options) + 1):
        for subset in itertools.combinations(options, count):
            if attempt(replace(anatomy, mirrors=anatomy.mirrors + subset), [name]) is None:
                return subset
    return None


def _names(flow: Flow, anatomy: Anatomy) -> dict[Space, str]:
    names: dict[Space, str] = {}
    for layout in anatomy.layouts.values():
        for axis, runs in zip(flow.tensors[layout.name].dims, layout.dims):
            for term, run in zip(axes.resolve(axis), runs):
                if run.width:
                    names[term.space] = run.width
    return names


def _difference(
    model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], anatomy: Anatomy, names: list[str]
) -> str | None:
    """None if the model computes the same with a neuron of these widths doubled, otherwise what went wrong."""
    sizes = anatomy.sizes()
    # unequal numbers of doubled neurons, so that widths which must stay equal show it
    device = next(model.parameters()).device
    rosters = {name: _doubled(sizes[name], 1 + k % 3, device) for k, name in enumerate(names)}
    generator = torch.Generator().manual_seed(0)
    plain, larger = {}, {}
    for name, tensor in itertools.chain(model.named_parameters(), model.named_buffers()):
        tensor = tensor.detach()
        if isinstance(find_tensor(model, name), nn.Parameter) and tensor.is_floating_point():
            # a little noise, since zeros and equal values would hide a wrong growth
            noise = torch.randn(tensor.shape, generator=generator).to(tensor)
            tensor = tensor + 0.05 * noise * (tensor.float().std(correction=0) + 0.1).to(tensor.dtype)
        plain[name] = tensor.clone()
        layout = anatomy.layouts.get(name)
        if layout is not None:
            plan = make_plan(layout, rosters, rosters, tensor.device)
            larger[name] = carry(plan, tensor)
        else:
            larger[name] = plain[name]
    grown_sizes = {name: len(roster) for name, roster in rosters.items()}
    try:
        with torch.no_grad(), switched(model.modules(), False), _full_precision(device):
            with swapped(model, plain):
                before = _run(model, args, kwargs)
            with swapped(model, larger, anatomy.mirrored(grown_sizes)):
                after = _run(model, args, kwargs)
    except Exception as error:
        return f"the forward breaks with one more neuron: {_first_line(error)}"
    return None if _equal(before, after) else "the forward does not compute the same with a neuron doubled"


def _full_precision(device: torch.device) -> AbstractContextManager[Any]:
    """Convolutions without TF32, whose rounding would hide what the comparison looks for."""
    cudnn: Any = torch.backends.cudnn
    if device.type != "cuda":
        return nullcontext()
    return cudnn.flags(
        enabled=cudnn.enabled, benchmark=cudnn.benchmark, deterministic=cudnn.deterministic, allow_tf32=False
    )


def _doubled(size: int, count: int, device: torch.device) -> Roster:
    return chosen(torch.arange(min(count, size)), torch.arange(0), size, 0, device)


def _run(model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Tensor]:
    torch.manual_seed(0)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        return [leaf for leaf in tree_leaves(model(*args, **kwargs)) if isinstance(leaf, Tensor)]


def _equal(before: list[Tensor], after: list[Tensor]) -> bool:
    if len(before) != len(after) or any(a.shape != b.shape for a, b in zip(before, after)):
        return False
    for a, b in zip(before, after):
        if a.is_floating_point():
            tolerance = 8000 * torch.finfo(a.dtype).eps * (a.abs().max().item() + 1e-6) if a.numel() else 0.0
            if not torch.allclose(a.nan_to_num(), b.nan_to_num(), rtol=0.0, atol=tolerance):
                return False
    return True
