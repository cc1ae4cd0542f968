"""Which locked neurons a new task begins with (Algorithm 2): all, none, or those that a binary mask keeps.

The mask is one number a neuron, on where it is above 0. Where a neuron is off, the columns that read it are 0, which is
the same as leaving it out. Its gradient goes straight through the step; a small price on every neuron switches off
those that the task has no use for. Meanwhile only masks, norms and the head are trained.
"""

from __future__ import annotations

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
    from firefly.continual.master import Master

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
    """

    how: str = "mask"
    epochs: int = 10
    lr: float = 0.02
    price: float = 0.1

    def __post_init__(self) -> None:
        if self.how not in WAYS:
            raise FireflyError(f"pick={self.how!r}: use {', '.join(map(repr, WAYS))}, or Pick('mask', ...)")
        if not (is_whole(self.epochs, 1) and is_number(self.lr, 0) and is_number(self.price, 0)):
            raise FireflyError(f"{self!r}: epochs is a whole number from 1 up, lr and price are numbers from 0 up")


def read_pick(pick: str | Pick) -> Pick:
    if isinstance(pick, Pick):
        return pick
    return Pick(pick if isinstance(pick, str) else repr(pick))


class Masked(nn.Module):
    """A network whose neurons are on or off."""

    def __init__(self, network: nn.Module, layouts: Mapping[str, Layout], sizes: Mapping[str, int]) -> None:
        super().__init__()
        device = next(network.parameters()).device
        self.network, self.names = network, tuple(sizes)
        self.masks = nn.ParameterList(torch.full((size,), START, device=device) for size in sizes.values())
        self.readers = {name: layout for name, layout in layouts.items() if "reads" in layout.roles}

    def forward(self, *inputs: Any) -> Any:
        on = {name: (mask > 0).to(mask) + (mask - mask.detach()) for name, mask in zip(self.names, self.masks)}
        masked = {}
        for name, layout in self.readers.items():
            tensor, dim = find_tensor(self.network, name), layout.roles.index("reads")
            masked[name] = tensor * along(along_runs(layout.dims[dim], on, 1.0, tensor), dim, tensor.ndim)
        with swapped(self.network, masked):
            return self.network(*inputs)

    @property
    def kept(self) -> dict[str, Tensor]:
        """The places of the neurons that are on; of a width that would have none, the last to go."""
        found = {}
        for name, mask in zip(self.names, self.masks):
            on = (mask.detach() > 0).cpu()
            on[mask.detach().cpu().argmax()] = True
            found[name] = on.nonzero().flatten()
        return found


def pick_neurons(
    master: Master, model: nn.Module, pick: Pick, train: Any, recipe: Recipe, folder: Path | None
) -> dict[str, Tensor]:
    """Train a mask on the task, with the norms and the head of `model`; the places of the neurons that it keeps."""
    recipe, blueprint = settle(recipe), master.blueprint
    model.to(recipe.device)
    sizes = {name: master.born[name] for name in blueprint.sizes}
    masked = Masked(model, {**blueprint.shared, **blueprint.head}, sizes)
    loss = recipe.loss or make_loss(recipe.label_smoothing)
    neurons = sum(sizes.values())

    def priced(network: nn.Module, batch: Any) -> Tensor:
        return loss(network, batch) + pick.price / neurons * sum(mask.clamp(min=0).sum() for mask in masked.masks)

    private = [parameter for name, parameter in model.named_parameters() if name in blueprint.private]
    groups = [{"params": private, "lr": RATE}, {"params": list(masked.masks), "lr": pick.lr}]
    optimizer = torch.optim.Adam(groups)
    fit(masked, train, recipe=replace(recipe, loss=priced), optimizer=optimizer, checkpoint=folder, progress=False)
    return masked.kept
