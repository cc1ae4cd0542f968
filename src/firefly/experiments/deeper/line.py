"""One network's life in the experiment of growing deeper: that of `lineage.py`, with layers in it (App. B.2).

A network is known by its widths, a list per block: the channels of the block, then the neurons of each residual layer.
Its structure in short is the number of layers per block, such as 4-3-5-2. Dormant layers count for nothing.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import nn

import firefly
from firefly.baselines import AutoGrow
from firefly.experiments.lineage import Line, State
from firefly.experiments.notes import is_begun, is_growth_due, read_epochs
from firefly.experiments.rows import Row
from firefly.experiments.setting import Setting
from firefly.stages.budget import Budget
from firefly.surgery.residual import Residual
from firefly.training import fit
from firefly.vision.data import hold_out
from firefly.vision.models import BLOCKS, ResidualLayer


@dataclass(frozen=True)
class Deep(Setting):
    """What a run is; `sizes` are upper bounds where `budget` is "neurons"."""

    dormant: int = 11  # layers that sleep in each block at first
    layers: int = 4  # that a growth may wake
    hidden: int = 16  # neurons of a new layer of NASH
    offer: int = 0  # dormant layers of each block that stand for election; 0 for all of them
    neighbours: int = 8  # that NASH compares
    interval: int = 1  # epochs between two growths of AutoGrow
    patience: int = 20  # epochs without gain that close a stage of AutoGrow
    search: int = 120  # epochs after which AutoGrow ends


@dataclass
class DeepLine(Line):
    """A line whose networks grow deeper, too."""

    setting: Deep

    def budget(self, step: int, present: int) -> Budget:
        found = super().budget(step, present)
        bounded = self.setting.budget == "neurons"
        return found & firefly.Parameters(self.room(step, present)) if bounded else found

    def make_row(self, state: State, step: int, final: bool) -> Row:
        widths = list_blocks(state.model)
        more = {"structure": name_structure(widths), "widths": widths}
        return super().make_row(state, step, final) | more


def run_autogrow(line: DeepLine) -> None:
    """AutoGrow: deeper at a constant learning rate until that no longer helps on training images held out; then `long`.

    The channels are 16-32-64-128 from the start, a new unit is a residual layer with random weights.
    """
    how, world, folder = line.setting, line.world, line.folder("search")
    train, held = hold_out(world.train, min(5000, len(world.train) // 5), seed=line.seed)
    torch.manual_seed(10_000 + line.seed)
    model = world.make([block[:1] for block in BLOCKS]).to(world.place.device)
    optimizer = line.make_optimizer(model)
    policy: dict[str, int] = {"interval": how.interval, "patience": how.patience, "epochs": how.search}
    auto = AutoGrow(lambda stage: append_layer(model, optimizer, stage), **policy)
    if is_begun(folder):
        auto.rebuild([row["test_accuracy"] for row in read_epochs(folder)], is_growth_due(folder))
    history = fit(
        model,
        train,
        how.search,
        test=held,
        optimizer=optimizer,
        schedule="constant",
        batch=how.batch,
        augment=world.augment,
        seed=1000 * line.seed,
        grower=auto,
        stop=auto.stop,
        checkpoint=folder,
        device=world.place.device,
        progress=False,
    )
    final = replace(line.train_long(model, line.folder("long"), how.long, 300), before=len(history))
    line.write(final, 0, True, {"search_seconds": round(history.seconds, 2), "search": len(history)})


def append_layer(model: nn.Module, optimizer: torch.optim.Optimizer, stage: int) -> None:
    """One more residual layer at the end of a block, with random weights."""
    block: Any = model.get_submodule("features")[stage]  # type: ignore[index]
    channels, device = block[0].out_channels, block[0].weight.device
    layer = ResidualLayer(channels, channels)
    layer.read.reset_parameters()
    block.append(layer.to(device))
    optimizer.param_groups[0]["params"].extend(layer.parameters())


# ---- what a network is -----------------------------------------------------------------------------------------------


def list_blocks(model: nn.Module) -> list[list[int]]:
    """The widths as `blocks` takes them: per block its channels and the neurons of its layers that are awake."""
    blocks: Any = model.get_submodule("features")
    found: list[list[int]] = []
    for block in blocks:
        layers: list[Any] = [one for one in block.modules() if isinstance(one, (Residual, ResidualLayer))]
        hidden = [layer.make.out_channels for layer in layers]
        found.append([block[0].out_channels, *(size for size in hidden if size)])
    return found


def name_structure(widths: list[list[int]]) -> str:
    return "-".join(str(len(block)) for block in widths)
