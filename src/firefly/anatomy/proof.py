"""Prove every width on the examples: with some of its neurons doubled and their readers halved, the model must still
run and compute the same, and in train mode run at all, forward and backward. What fails there is pinned, with the error
as the reason.

All widths are tried together; where that fails, in halves, so that the widths in the end are proven together and each
one that is pinned has failed by itself, beside those proven before it.
"""

from __future__ import annotations

import itertools
import re
import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn

from firefly.anatomy.examples import Examples, map_examples, run_examples
from firefly.anatomy.graph import Flow
from firefly.anatomy.mirrors import Mirrors, find_companions, make_search
from firefly.anatomy.widths import Anatomy, pinned
from firefly.errors import first_line
from firefly.surgery.quiet import reseed
from firefly.surgery.swap import clone_buffers, find_tensor, renew, swapped, switched
from firefly.tensors import Roster, carry, double, make_plan

# How many neurons of each width in turn are doubled: unequal numbers, so that widths which must stay equal show it.
# Once they are odd and once powers of two, so that a width which takes only several at once, such as two, shows that.
ODD, POWERS = (1, 3, 5, 7), (1, 2, 4)


def prove(model: nn.Module, examples: Examples, flow: Flow, anatomy: Anatomy) -> Anatomy:
    """Run the model with a neuron of each width doubled; pin the widths for which it then breaks or changes."""
    names = [width.name for width in anatomy.growable()]
    if not names:
        return anatomy
    if any(_single(tensor) is not tensor for tensor in model.parameters()):
        examples = map_examples(_single, examples)
    # dead or equal neurons would hide a wrong growth: once with the model's own weights and some noise, once at random
    samples = [Sample(model, examples, anatomy, *how) for how in ((_shake, ODD), (_redraw, POWERS))]
    training = Sample(model, examples, anatomy, _keep, ODD, training=True)
    search = make_search(flow, anatomy)
    proven: dict[str, Mirrors] = {}
    broken: dict[str, str] = {}

    def attempt(more: dict[str, Mirrors], others: Mirrors = ()) -> str | None:
        widths = proven | more
        grown = replace(anatomy, mirrors=_joined(anatomy, widths) + others)
        return next((problem for one in samples if (problem := one.attempt(grown, list(widths)))), None)

    def add(group: list[str]) -> None:
        guess = {name: search.guess(name) for name in group}
        problem = attempt(guess)
        if problem is None:
            proven.update(guess)
        elif len(group) > 1:
            add(group[: len(group) // 2])
            add(group[len(group) // 2 :])
        else:
            found = search.find(group[0], lambda some: attempt({group[0]: some}) is None)
            if found is None:
                broken[group[0]] = problem
            else:
                proven[group[0]] = found

    add(names)
    if proven and training.attempt(replace(anatomy, mirrors=_joined(anatomy, proven)), list(proven)):  # find out which
        samples.append(training)
        again = list(proven)
        proven.clear()
        add(again)
    known = _joined(anatomy, proven)
    companions = find_companions(search, pinned(anatomy, broken), known)
    more = search.sift(companions, lambda some: attempt({}, some) is None)
    return pinned(replace(anatomy, mirrors=known + more), broken)


def _joined(anatomy: Anatomy, found: dict[str, Mirrors]) -> Mirrors:
    return tuple(dict.fromkeys(itertools.chain(anatomy.mirrors, *found.values())))


def _shake(name: str, tensor: Tensor, generator: torch.Generator) -> Tensor:
    noise = torch.randn(tensor.shape, generator=generator).to(tensor)
    return noise.mul_((0.05 * (tensor.float().std(correction=0) + 0.1)).to(tensor.dtype)).add_(tensor)


def _redraw(name: str, tensor: Tensor, generator: torch.Generator) -> Tensor:
    noise = torch.randn(tensor.shape, generator=generator).to(tensor)
    if tensor.ndim < 2:
        return noise.mul_(0.1).add_(0.0 if name.endswith("bias") else 1.0)
    return noise.div_(max(tensor[0].numel(), 1) ** 0.5)


def _keep(name: str, tensor: Tensor, generator: torch.Generator) -> Tensor:
    return tensor.clone()  # a forward may write to it, as that of a teacher which follows its student


@dataclass
class Sample:
    """The model with weights drawn once, and what it computes with them before and after neurons are doubled.

    In training chance plays a part, so that only the shapes are compared, and the gradients must be found.
    """

    model: nn.Module
    examples: Examples
    anatomy: Anatomy
    draw: Callable[[str, Tensor, torch.Generator], Tensor]
    counts: tuple[int, ...]
    training: bool = False

    def attempt(self, anatomy: Anatomy, names: list[str]) -> str | None:
        """None if the model computes the same with neurons of these widths doubled, otherwise what went wrong."""
        rosters = {name: self.rosters[name] for name in names}
        sizes = anatomy.mirrored({name: len(roster) for name, roster in rosters.items()})
        what = "training" if self.training else "the forward"
        try:
            before, known = self.before
        except Exception as error:
            if self.training:  # a batch norm refuses a single example, for one
                return None
            return f"the forward does not run with other weights, in single precision at least: {first_line(error)}"
        try:
            after, warned = self._run(self._grow(rosters), sizes)
        except Exception as error:
            return f"{what} breaks with one more neuron: {first_line(error)}"
        for kind in warned.keys() - known.keys():
            return f"{what} warns with one more neuron: {warned[kind]}"
        if self.training:
            same = [tensor.shape for tensor in before] == [tensor.shape for tensor in after]
            return None if same else "in train mode the forward returns other shapes with one more neuron"
        return None if _equal(before, after) else "the forward does not compute the same with a neuron doubled"

    @cached_property
    def tensors(self) -> dict[str, Tensor]:
        generator = torch.Generator().manual_seed(0)

        def drawn(name: str, tensor: Tensor) -> Tensor:
            tensor = _single(tensor.detach())
            return self.draw(name, tensor, generator) if tensor.is_floating_point() and tensor.numel() else tensor

        return {name: drawn(name, tensor) for name, tensor in self.model.named_parameters()}

    @cached_property
    def rosters(self) -> dict[str, Roster]:
        """How many neurons of each width are doubled."""
        sizes, device = self.anatomy.sizes(), next(self.model.parameters()).device
        names = [width.name for width in self.anatomy.growable()]
        return {name: _doubled(sizes[name], self.counts[k % len(self.counts)], device) for k, name in enumerate(names)}

    @cached_property
    def before(self) -> tuple[list[Tensor], dict[str, str]]:
        return self._run({})

    def _clone_buffers(self) -> dict[str, Tensor]:
        return {name: _single(buffer) for name, buffer in clone_buffers(self.model).items()}

    def _grow(self, rosters: dict[str, Roster]) -> dict[str, Tensor]:
        own = self.tensors | self._clone_buffers()
        larger = {}
        for name, layout in self.anatomy.layouts.items():
            if any(run.width in rosters for runs in layout.dims for run in runs):
                larger[name] = carry(make_plan(layout, rosters, rosters, own[name].device), own[name])
        return larger

    def _run(
        self, larger: dict[str, Tensor], sizes: Iterable[tuple[str, str, int]] = ()
    ) -> tuple[list[Tensor], dict[str, str]]:
        """What the examples return, and the warnings that they gave, by what these say apart from its numbers."""
        own = self.tensors | self._clone_buffers() | larger
        if self.training:  # with the user's hooks
            own = {name: renew(find_tensor(self.model, name), tensor) for name, tensor in own.items()}
        mode = switched(self.model.modules(), self.training)
        with torch.set_grad_enabled(self.training), _full_precision(self.model), mode:
            reseed(0)
            with swapped(self.model, own, sizes), warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always")
                tensors = run_examples(self.model, self.examples)
                _backward(tensors, [own[name] for name in self.anatomy.layouts])
        tensors = [tensor.detach() for tensor in tensors]
        return tensors, {re.sub(r"\d+", "", str(one.message)): str(one.message) for one in caught}


@contextmanager
def _full_precision(model: nn.Module) -> Iterator[None]:
    """Without autocast, and convolutions without TF32: their rounding would hide what the comparison looks for."""
    cudnn: Any = torch.backends.cudnn
    device = next(model.parameters()).device.type
    exact = cudnn.flags(
        enabled=cudnn.enabled, benchmark=cudnn.benchmark, deterministic=cudnn.deterministic, allow_tf32=False
    )
    with torch.autocast(device, enabled=False), exact if device == "cuda" else nullcontext():
        yield


def _backward(outputs: list[Tensor], leaves: Iterable[Tensor]) -> None:
    ends = [tensor.sum() for tensor in outputs if tensor.requires_grad]
    if ends:
        torch.autograd.grad(ends, [leaf for leaf in leaves if leaf.requires_grad], allow_unused=True)


def _doubled(size: int, count: int, device: torch.device) -> Roster:
    return double(torch.arange(count) % max(size, 1), size, device)


def _equal(before: list[Tensor], after: list[Tensor]) -> bool:
    return len(before) == len(after) and all(map(_close, before, after))


def _close(a: Tensor, b: Tensor) -> bool:
    """Equal up to rounding in single precision, and nowhere else infinite or not a number."""
    if a.shape != b.shape or not (a.is_floating_point() or a.is_complex()) or not a.numel():
        return a.shape == b.shape
    a, b = (torch.view_as_real(t) if t.is_complex() else t for t in (a, b))
    epsilon = min(torch.finfo(a.dtype).eps, torch.finfo(torch.float32).eps)
    size = a.nan_to_num(0.0, 0.0, 0.0).abs().max().item() + 1e-6
    same = (a == b) | (a.isnan() & b.isnan()) | ((a - b).abs() <= 8000 * epsilon * size)
    return bool(same.all())


def _single(value: Any) -> Any:
    """Tensors of half precision in single precision: rounding would hide what the comparison looks for."""
    half = isinstance(value, Tensor) and value.dtype in (torch.float16, torch.bfloat16)
    return value.float() if half else value
