"""Prove every width on the example: with some of its neurons doubled and their readers halved, the model must still
run and compute the same. What fails there is pinned, with the error as the reason; attributes of the user's own modules
that spell out a size (`self.n_head`) are found here, by trying.
"""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from firefly.anatomy import axes
from firefly.anatomy.axes import Space
from firefly.anatomy.graph import Flow
from firefly.anatomy.widths import Anatomy, Runs, pinned
from firefly.errors import first_line
from firefly.surgery.swap import find_tensor, swapped, switched
from firefly.tensors import Roster, Run, carry, chosen, make_plan


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
    """None if the model computes the same with neurons of these widths doubled, otherwise what went wrong.

    Tried with the model's own weights and with random ones, since dead or equal neurons would hide a wrong growth.
    """
    own = _compare(model, args, kwargs, anatomy, names, _shake)
    return own if own is not None else _compare(model, args, kwargs, anatomy, names, _redraw)


def _shake(name: str, tensor: Tensor, generator: torch.Generator) -> Tensor:
    noise = torch.randn(tensor.shape, generator=generator).to(tensor)
    return tensor + 0.05 * noise * (tensor.float().std(correction=0) + 0.1).to(tensor.dtype)


def _redraw(name: str, tensor: Tensor, generator: torch.Generator) -> Tensor:
    noise = torch.randn(tensor.shape, generator=generator).to(tensor)
    if tensor.ndim < 2:
        return 0.1 * noise + (0.0 if name.endswith("bias") else 1.0)
    return noise / max(tensor[0].numel(), 1) ** 0.5


def _compare(
    model: nn.Module,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    anatomy: Anatomy,
    names: list[str],
    draw: Callable[[str, Tensor, torch.Generator], Tensor],
) -> str | None:
    sizes = anatomy.sizes()
    # unequal numbers of doubled neurons, so that widths which must stay equal show it
    device = next(model.parameters()).device
    rosters = {name: _doubled(sizes[name], 1 + k % 3, device) for k, name in enumerate(names)}
    generator = torch.Generator().manual_seed(0)
    plain, larger = {}, {}
    for name, tensor in itertools.chain(model.named_parameters(), model.named_buffers()):
        tensor = tensor.detach()
        if isinstance(find_tensor(model, name), nn.Parameter) and tensor.is_floating_point() and tensor.numel():
            tensor = draw(name, tensor, generator)
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
        return f"the forward breaks with one more neuron: {first_line(error)}"
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
