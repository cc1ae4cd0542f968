"""Pruning: the opposite of growth, and what a practitioner would do instead. Neurons of a trained network are dropped.

    anatomy = prune(model, score_magnitude(model, anatomy), anatomy, parameters=100_000)

Each neuron of each width has a score; the best over all widths stay, as many as the size allows. Three scores: the
scale of its batch norm (network slimming), the size of its weights, and what the loss would rise by without it, to
first order (Taylor). The last two are divided by their mean in the width, so that widths can be compared.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from firefly.anatomy.widths import Anatomy
from firefly.errors import FireflyError
from firefly.stages.losses import Loss
from firefly.surgery.swap import find_tensor, places, renew, set_size
from firefly.tensors import Layout, Roster, entries, sum_neurons

Scores = Mapping[str, Tensor]  # per width one number a neuron
Sizes = dict[str, int]


def prune(
    model: nn.Module,
    scores: Scores,
    anatomy: Anatomy,
    *,
    parameters: float | None = None,
    flops: float | None = None,
    least: int = 4,
) -> Anatomy:
    """Keep the best neurons, in place, so that the network has at most so many parameters and FLOPs.

    Every width keeps at least `least` of them. An optimiser has to be made anew. Returns the widths as they are now.
    """
    sizes = fit_sizes(scores, anatomy, parameters, flops, least)
    best = {name: scores[name].cpu().topk(size).indices.sort().values for name, size in sizes.items()}
    return keep_neurons(model, anatomy, best)


def fit_sizes(scores: Scores, anatomy: Anatomy, parameters: float | None, flops: float | None, least: int) -> Sizes:
    """How many neurons each width keeps when the best of all are taken: the most that the limits allow."""
    if parameters is None and flops is None:
        raise FireflyError("prune to which size? Give parameters=, flops= or both")
    names = [width.name for width in anatomy.growable() if width.name in scores]
    for name in names:
        if not bool(scores[name].isfinite().all()):
            raise FireflyError(f"a score of {name} is not finite: check the weights, or the loss that scored them")
    floor = {name: min(least, anatomy[name].size) for name in names}
    ranked = sorted(
        (
            (score, name)
            for name in names
            for score in scores[name].sort(descending=True).values.tolist()[floor[name] :]
        ),
        key=lambda one: -one[0],
    )

    def count(taken: int) -> Sizes:
        sizes = dict(floor)
        for _, name in ranked[:taken]:
            sizes[name] += 1
        return sizes

    def fits(taken: int) -> bool:
        sizes = count(taken)
        small = parameters is None or anatomy.parameters(sizes) <= parameters
        return small and (flops is None or anatomy.flops(sizes) <= flops)

    if not fits(0):
        found = f"{anatomy.parameters(floor):,} parameters and {anatomy.flops(floor):,} FLOPs"
        raise FireflyError(
            f"with {least} neurons in every width the network still has {found}: allow more, or give a lower least="
        )
    low, high = 0, len(ranked) + 1
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return count(low)


@torch.no_grad()
def keep_neurons(model: nn.Module, anatomy: Anatomy, kept: Mapping[str, Tensor]) -> Anatomy:
    """Only these neurons of each width stay, in this order; all tensors and sizes of the model follow, in place."""
    still = torch.zeros(0)
    rosters = {name: Roster(anatomy[name].size, 0, numbers, still, still) for name, numbers in kept.items()}
    sizes = {name: len(numbers) for name, numbers in kept.items()}
    fresh = {}
    for name, layout in anatomy.layouts.items():
        old = find_tensor(model, name)
        tensor = old.detach()
        for dim, runs in enumerate(layout.dims):
            if any(run.width in kept for run in runs):
                where = torch.as_tensor(entries(runs, rosters, compact=False))
                tensor = tensor.index_select(dim, where.to(tensor.device))
        if tensor.shape != old.shape:
            fresh[name] = renew(old, tensor)
    for store, key, _, new in places(model, fresh):
        store[key] = new
    for path, attribute, value in anatomy.mirrored(sizes):
        set_size(model.get_submodule(path), attribute, value)
    return anatomy.resized(sizes)


# ---- scores ----------------------------------------------------------------------------------------------------------


def find_scales(model: nn.Module, anatomy: Anatomy) -> dict[str, Tensor]:
    """The scales of the norms that follow a width: what network slimming keeps small while it trains."""
    return {name: find_tensor(model, name) for name, layout in anatomy.layouts.items() if is_scale(layout)}


def is_scale(layout: Layout) -> bool:
    return layout.parameter and layout.start == "one" and layout.roles == ("follows",)


def score_slimming(model: nn.Module, anatomy: Anatomy) -> dict[str, Tensor]:
    """|γ| of the batch norm behind each neuron, the largest where there are several, as it is in all widths."""
    found: dict[str, Tensor] = {}
    for name, scale in find_scales(model, anatomy).items():
        mine = sum_neurons(anatomy.layouts[name].dims[0], scale.detach().abs(), 0)
        for width, value in mine.items():
            found[width] = torch.maximum(found[width], value) if width in found else value
    missing = [width.name for width in anatomy.growable() if width.name not in found]
    if missing:
        raise FireflyError(f"network slimming needs a batch norm behind every width; {missing[0]!r} has none")
    return found


def score_magnitude(model: nn.Module, anatomy: Anatomy) -> dict[str, Tensor]:
    """The sum of the squares of all weights that make, scale or read a neuron, against the mean of its width."""
    layouts = [layout for layout in anatomy.layouts.values() if layout.parameter and layout.start != "zero"]
    return sum_up(anatomy, {layout.name: find_tensor(model, layout.name).detach() ** 2 for layout in layouts})


def score_taylor(model: nn.Module, anatomy: Anatomy, loss: Loss, batches: Iterable[Any]) -> dict[str, Tensor]:
    """The sum of |w · ∂L/∂w| over the weights that make or read a neuron, the gradient summed over the batches."""
    names = [name for name, layout in anatomy.layouts.items() if layout.free and layout.start != "zero"]
    weights = [find_tensor(model, name) for name in names]
    total = [torch.zeros_like(weight) for weight in weights]
    for batch in batches:
        gradients = torch.autograd.grad(loss(model, batch), weights, allow_unused=True)
        total = [one if grad is None else one + grad for one, grad in zip(total, gradients)]
    values = {name: (weight * grad).detach().abs() for name, weight, grad in zip(names, weights, total)}
    return sum_up(anatomy, values)


def sum_up(anatomy: Anatomy, values: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Per neuron, over the entries of these tensors, as a share of the width's mean."""
    found: dict[str, Tensor] = {}
    for name, entry in values.items():
        for dim, runs in enumerate(anatomy.layouts[name].dims):
            for width, value in sum_neurons(runs, entry, dim).items():
                found[width] = found[width] + value if width in found else value
    return {width: value / value.mean().clamp(min=1e-30) for width, value in found.items()}
