"""What may be done to newborn neurons after a growth, for `growth_pays.py`: each an answer to why they learn late.

All of it works on the model that `firefly.grow` leaves behind, where every width lists its old neurons first, then the
copies of those that were split, then the new ones.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from firefly.anatomy.widths import Anatomy


@dataclass(frozen=True)
class Birth:
    """A growth that has just been: `before` are the sizes, `parents` whom the copies are of, `new` how many are new."""

    model: nn.Module
    optimizer: torch.optim.Optimizer
    anatomy: Anatomy  # afterwards
    before: Mapping[str, int]
    parents: Mapping[str, Tensor]
    new: Mapping[str, int]
    seed: int

    def tensors(self) -> Iterator[tuple[str, Tensor, tuple[str | None, ...], tuple[str | None, ...]]]:
        """Every tensor with its widths and roles per dimension."""
        own = {**dict(self.model.named_parameters()), **dict(self.model.named_buffers())}
        for name, layout in self.anatomy.layouts.items():
            assert all(len(runs) == 1 for runs in layout.dims), name
            yield name, own[name].detach(), tuple(runs[0].width for runs in layout.dims), layout.roles

    def grown(self, width: str | None) -> bool:
        return width in self.before and self.anatomy[str(width)].size > self.before[str(width)]

    def born(self, tensor: Tensor, widths: tuple[str | None, ...]) -> Tensor:
        """Which entries belong to a neuron that was not there before."""
        old = torch.ones_like(tensor, dtype=torch.bool)
        for dim, width in enumerate(widths):
            if self.grown(width):
                first = self.before[str(width)] * self.anatomy[str(width)].block
                old &= along(torch.arange(tensor.shape[dim]) < first, dim, tensor.ndim).to(old.device)
        return ~old

    def pairs(self, width: str, twins: bool) -> tuple[Tensor, Tensor]:
        """Entries of neurons that can cancel each other: split ones and their copies, or the new ones two by two."""
        first = self.before[width] + len(self.parents.get(width, ()))
        if twins:
            half = self.new.get(width, 0) // 2
            one, other = torch.arange(first, first + half), torch.arange(first + half, first + 2 * half)
        else:
            other = torch.arange(self.before[width], first)
            one = self.parents.get(width, other[:0]).cpu()
        inner = torch.arange(block := self.anatomy[width].block)
        return (one[:, None] * block + inner).flatten(), (other[:, None] * block + inner).flatten()


@torch.no_grad()
def forget(birth: Birth, _: float) -> None:
    """The optimiser's state begins anew."""
    birth.optimizer.state.clear()


@torch.no_grad()
def set_moments(birth: Birth, share: float) -> None:
    """Second moments of newborn entries begin as this share of the mean of the old ones."""
    parameters = dict(birth.model.named_parameters())
    for name, tensor, widths, _ in birth.tensors():
        state = birth.optimizer.state.get(parameters.get(name), {})
        if "exp_avg_sq" in state:
            born = birth.born(tensor, widths)
            state["exp_avg_sq"][born] = share * state["exp_avg_sq"][~born].mean()


@torch.no_grad()
def pair_up(birth: Birth, strength: float) -> None:
    """New neurons become twins: the same rows, and columns that are half of the first one's, plus and minus Z.

    What they add to the network stays that of the first; Z is random, `strength` times as large as the old columns.
    """
    for _, tensor, widths, roles in birth.tensors():
        for dim, width in enumerate(widths):
            if birth.grown(width) and roles[dim] != "reads":
                first, second = birth.pairs(str(width), True)
                part = tensor.index_select(dim, first.to(tensor.device))
                tensor.index_copy_(dim, second.to(tensor.device), part)
    cancel(birth, strength, True, 0.5)


@torch.no_grad()
def unequal(birth: Birth, strength: float) -> None:
    """A split neuron and its copy, which are read alike, are read unlike: plus and minus Z, random."""
    cancel(birth, strength, False, None)


def cancel(birth: Birth, strength: float, twins: bool, share: float | None) -> None:
    """Columns of pairs: plus and minus Z; with `share` each gets that share of the first one's besides."""
    generator = torch.Generator().manual_seed(birth.seed)
    for _, tensor, widths, roles in birth.tensors():
        for dim, width in enumerate(widths):
            if not birth.grown(width) or roles[dim] != "reads":
                continue
            first, second = (part.to(tensor.device) for part in birth.pairs(str(width), twins))
            size = old_size(birth, tensor, widths)
            columns, twin = tensor.index_select(dim, first), tensor.index_select(dim, second)
            z = strength * size * torch.randn(columns.shape, generator=generator).to(tensor.device)
            z = alike(birth, z, dim, widths, roles)
            if share is not None:
                columns, twin = share * columns, share * columns
            tensor.index_copy_(dim, first, columns + z)
            tensor.index_copy_(dim, second, twin - z)


def alike(birth: Birth, z: Tensor, dim: int, widths: tuple[str | None, ...], roles: tuple[str | None, ...]) -> Tensor:
    """Twins that are made by these columns have to stay alike: the same Z in both rows."""
    for other, width in enumerate(widths):
        if other != dim and birth.grown(width) and roles[other] == "makes":
            first, second = (part.to(z.device) for part in birth.pairs(str(width), True))
            z = z.index_copy(other, second, z.index_select(other, first))
    return z


def old_size(birth: Birth, tensor: Tensor, widths: tuple[str | None, ...]) -> Tensor:
    """The root mean square of the old entries."""
    return tensor[~birth.born(tensor, widths)].square().mean().sqrt()


@torch.no_grad()
def rescale(birth: Birth, power: float, ndim: int = 4) -> None:
    """Variance transfer: weights in front of a norm shrink with the root of their grown fan-in (power 0.5)."""
    for name, tensor, widths, roles in birth.tensors():
        for dim, width in enumerate(widths):
            if tensor.ndim == ndim and birth.grown(width) and roles[dim] == "reads":
                multiply(birth, name, tensor, (birth.before[str(width)] / birth.anatomy[str(width)].size) ** power)


def shrink(birth: Birth, power: float) -> None:
    """The same of linear layers, which no norm follows: the function changes."""
    rescale(birth, power, ndim=2)


@torch.no_grad()
def renorm(birth: Birth, size: float) -> None:
    """Weights in front of a norm get `size` times the size of fresh ones, all entries of a weight alike.

    The function stays; but a step of the same length turns them further, as it turned them when they were young.
    """
    for name, tensor, _, _ in birth.tensors():
        if tensor.ndim == 4:
            fresh = (3 * tensor[0].numel()) ** -0.5  # as torch draws them
            multiply(birth, name, tensor, size * fresh / tensor.square().mean().sqrt())


def multiply(birth: Birth, name: str, tensor: Tensor, factor: Any) -> None:
    """A weight times a factor; what the optimiser remembers of its gradients, divided by it."""
    tensor *= factor
    state = birth.optimizer.state.get(dict(birth.model.named_parameters())[name], {})
    for key, power in (("momentum_buffer", 1), ("exp_avg", 1), ("exp_avg_sq", 2)):
        if state.get(key) is not None:
            state[key] /= factor**power


@torch.no_grad()
def perturb(birth: Birth, share: float) -> None:
    """Noise on all weights, as a share of their size."""
    generator = torch.Generator().manual_seed(birth.seed)
    for _, tensor, _, _ in birth.tensors():
        if tensor.ndim == 4:
            noise = torch.randn(tensor.shape, generator=generator).to(tensor.device)
            tensor += share * tensor.square().mean().sqrt() * noise


class Ages:
    """Learning rates by age: a factor per entry inside the same optimiser, which fades to 1; also in CUDA graphs."""

    def __init__(self, optimizer: torch.optim.Optimizer, steps: float) -> None:
        self.fade = 0.5 ** (1 / max(steps, 1.0))
        self.excess: dict[Tensor, Tensor] = {}  # factor - 1
        self.kept: list[Tensor] = []
        optimizer.register_step_pre_hook(self.remember)
        optimizer.register_step_post_hook(self.adjust)

    def bear(self, birth: Birth, factor: float) -> None:
        """Entries born now learn `factor` times as fast at first (factor < 0: the old ones learn 1/-factor as fast)."""
        own = dict(birth.model.named_parameters())
        before = self.named()
        self.excess, self.kept = {}, []
        for name, tensor, widths, _ in birth.tensors():
            if name not in own:
                continue
            born = birth.born(tensor, widths)
            fresh, aged = (factor - 1, 0.0) if factor > 0 else (0.0, -1 / factor - 1)
            excess = torch.where(born, fresh, aged).to(tensor.dtype)
            if name in before and factor > 0:
                old = before[name]
                excess[tuple(slice(size) for size in old.shape)] += old
            self.excess[own[name]] = torch.empty_like(tensor).copy_(excess)
        self.names = {id(own[name]): name for name in own}

    def named(self) -> dict[str, Tensor]:
        return {self.names[id(parameter)]: excess for parameter, excess in self.excess.items()} if self.excess else {}

    @torch.no_grad()
    def remember(self, *_: Any) -> None:
        if self.excess:
            if not self.kept:
                self.kept = [torch.empty_like(parameter) for parameter in self.excess]
            torch._foreach_copy_(self.kept, list(self.excess))

    @torch.no_grad()
    def adjust(self, *_: Any) -> None:
        """w <- w + (factor - 1)·(the step that was taken)."""
        if self.excess:
            parameters, excess = list(self.excess), list(self.excess.values())
            steps = torch._foreach_sub(parameters, self.kept)
            torch._foreach_mul_(steps, excess)
            torch._foreach_add_(parameters, steps)
            torch._foreach_mul_(excess, self.fade)


def along(vector: Tensor, dim: int, ndim: int) -> Tensor:
    return vector.view([-1 if d == dim else 1 for d in range(ndim)])


AFTER = {
    "forget": forget,
    "moments": set_moments,
    "pairs": pair_up,
    "unequal": unequal,
    "rescale": rescale,
    "shrink": shrink,
    "renorm": renorm,
    "perturb": perturb,
}
