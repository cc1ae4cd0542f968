"""Which locked neurons a new task begins with (Algorithm 2): all, none, or those that a binary mask keeps.

The mask is one number a neuron, on where it is above 0. Where a neuron is off, the columns that read it are 0, which is
the same as leaving it out. Its gradient goes straight through the step; a small price on every neuron switches off
those that the task has no use for. Meanwhile only masks, norms and the head are trained.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from firefly.errors import FireflyError
from firefly.surgery.swap import find_tensor, swapped
from firefly.tensors import Layout, along, along_runs
from firefly.training.fit import fit
from firefly.training.recipe import Recipe, is_number, is_whole, make_loss, settle

if TYPE_CHECKING:
    from firefly.continual.blueprint import Blueprint
    from firefly.continual.lesson import Pupil

START = 0.5  # of a mask: the way to off, in units of the learning rate of Adam
RATE = 0.01  # of norms and head meanwhile
WAYS = ("all", "none", "mask")


@dataclass(frozen=True)
class Pick:
    """How to pick.

    how: "all", "none" or "mask".
    epochs: of training the mask.
    lr: its learning rate.
    price: what all neurons together cost, in units of the loss.
    multiple: of a mask's neurons so many are kept in every layer, or twice as many, ...: 8 trains faster on a GPU. The
        youngest few of a layer that is no such multiple cannot be picked.
    """

    how: str = "mask"
    epochs: int = 10
    lr: float = 0.02
    price: float = 0.1
    multiple: int = 1

    def __post_init__(self) -> None:
        if self.how not in WAYS:
            raise FireflyError(f"pick={self.how!r}: use {', '.join(map(repr, WAYS))}, or Pick('mask', ...)")
        counts = is_whole(self.epochs, 1) and is_whole(self.multiple, 1)
        if not (counts and is_number(self.lr, 0) and is_number(self.price, 0)):
            raise FireflyError(
                f"{self!r}: epochs and multiple are whole numbers from 1 up, lr and price are numbers from 0 up"
            )


def read_pick(pick: str | Pick) -> Pick:
    if isinstance(pick, Pick):
        return pick
    return Pick(pick if isinstance(pick, str) else repr(pick))


class Masked(nn.Module):
    """A network whose neurons are on or off."""

    def __init__(self, network: nn.Module, layouts: Mapping[str, Layout], sizes: Mapping[str, int]) -> None:
        super().__init__()
        device = next(network.parameters()).device
        self.network, self.sizes = network, dict(sizes)
        self.mask = nn.Parameter(torch.full((sum(sizes.values()),), START, device=device))
        self.readers = {name: layout for name, layout in layouts.items() if "reads" in layout.roles}

    def forward(self, *inputs: Any) -> Any:
        on = self.part((self.mask > 0).to(self.mask) + (self.mask - self.mask.detach()))
        masked = {}
        for name, layout in self.readers.items():
            tensor, dim = find_tensor(self.network, name), layout.roles.index("reads")
            masked[name] = tensor * along(along_runs(layout.dims[dim], on, 1.0, tensor), dim, tensor.ndim)
        with swapped(self.network, masked):
            return self.network(*inputs)

    def part(self, values: Tensor) -> dict[str, Tensor]:
        """A number per neuron, width by width."""
        return dict(zip(self.sizes, values.split(list(self.sizes.values()))))

    def list_kept(self, multiple: int = 1) -> dict[str, Tensor]:
        """The places of the neurons that are on, and of the last to go if they are none or no such multiple."""
        found = {}
        for name, mask in self.part(self.mask.detach().cpu()).items():
            count = max(1, int((mask > 0).sum()))
            most = len(mask) // multiple * multiple or len(mask)
            count = min(math.ceil(count / multiple) * multiple, most)
            found[name] = mask.argsort(descending=True, stable=True)[:count].sort().values
        return found


def pick_neurons(
    blueprint: Blueprint, pupil: Pupil, pick: Pick, train: Any, recipe: Recipe, folder: Path | None
) -> dict[str, Tensor]:
    """Train a mask on the task, with the norms and the head of its network; the places of the neurons that it keeps."""
    recipe = settle(recipe)
    model = pupil.model.to(recipe.device)
    masked = Masked(model, {**blueprint.shared, **blueprint.head}, pupil.sizes)
    loss = recipe.loss or make_loss(recipe.label_smoothing)

    def priced(network: nn.Module, batch: Any) -> Tensor:
        return loss(network, batch) + pick.price * masked.mask.clamp(min=0).sum() / len(masked.mask)

    private = [parameter for name, parameter in model.named_parameters() if name in blueprint.private]
    groups = [{"params": private, "lr": RATE}, {"params": [masked.mask], "lr": pick.lr}]
    optimizer = torch.optim.Adam(groups)
    recipe = replace(recipe, loss=priced, mixup=0.0)
    fit(masked, train, recipe=recipe, optimizer=optimizer, checkpoint=folder, progress=False)
    return masked.list_kept(pick.multiple)
