"""Growing to known widths, for `growth_pays.py`: any method of Firefly's, so many neurons in every width."""

from __future__ import annotations

import copy
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from pays_after import AFTER, Ages, Birth
from pays_networks import START
from torch import nn

import firefly
from firefly.baselines import gradmax, net2net, uniform
from firefly.method import Method
from firefly.stages.budget import Budget, Limit
from firefly.stages.selection import Ballot, Chosen, select
from firefly.tensors import Run
from firefly.training.find import draw_weights

# method: the kinds of neurons it takes
NEIGHBORHOODS = {
    "firefly": "both",
    "uniform": "split",
    "net2net": "split",
    "gradmax": "new",
    "variance-transfer": "new",
}
METHODS: dict[str, Callable[[], Method]] = {
    "firefly": Method,
    "thrown-away": uniform,
    "uniform": uniform,
    "net2net": net2net,
    "gradmax": gradmax,
    "variance-transfer": uniform,
}
OWN = {"variance-transfer": "pairs:1+rescale:0.5"}  # what a method does after a growth


@dataclass(frozen=True)
class Exactly(Budget):
    """So many neurons in each width."""

    missing: Mapping[str, int]

    def limits(self, anatomy: Any, widths: list[str]) -> list[Limit]:
        return [Limit(f"neurons of {name}", self.missing[name], (((Run(name, 1),),),)) for name in widths]


class Grower(firefly.Firefly):
    """Grows to a share of the full widths each time it is due, and then does what the recipe says."""

    def __init__(self, model: nn.Module, example: Any, recipe: Any, epochs: int, steps: int, seed: int) -> None:
        self.recipe, self.epochs, self.steps = recipe, epochs, steps
        self.milestones = [max(k + 1, round(share * epochs)) for k, share in enumerate(recipe.grow_at)]
        method = METHODS[recipe.method]()
        self.inner = partial(select, everyone=True) if method.select is select else method.select
        options = {"steps": recipe.steps, "evaluate_on": recipe.batches}
        super().__init__(
            model,
            example,
            schedule=firefly.Milestones([epoch - 1 for epoch in self.milestones]),
            seed=seed,
            method=replace(method, select=self.choose),
            **options,
        )
        self.seconds, self.told = 0.0, []
        self.sizes: list[dict[str, int]] = []
        self.over: list[int] = []  # FLOPs of the over-grown networks
        self.ages: Ages | None = None

    @property
    def full(self) -> dict[str, int]:
        first = self.sizes[0] if self.sizes else self.anatomy.sizes()
        return {name: round(size / START) for name, size in first.items()}

    def choose(self, ballot: Ballot) -> Chosen:
        """The best in every width, also those that promise nothing: the widths are known."""
        self.chosen = self.inner(ballot)
        return self.chosen

    def grow(self, loss: Any, batches: Any, optimizer: Any = None, also: Iterable[nn.Module] = ()) -> firefly.Growth:
        start = time.perf_counter()
        before = dict(self.anatomy.sizes())
        self.sizes += [before] if not self.sizes else []
        missing = self.set_up(before, len(self.history))
        growth = super().grow(loss, batches, optimizer)
        after = self.anatomy.sizes()
        wanted = {name: before[name] + count for name, count in missing.items()}
        assert {**before, **wanted} == after, (growth.notes, wanted, after)
        slots = self.chosen.slots
        parents = {name: numbers[numbers < before[name]] for name, numbers in slots.items()}
        new = {name: int((numbers >= before[name]).sum()) for name, numbers in slots.items()}
        birth = Birth(self.model, optimizer, self.anatomy, before, parents, new, self.seed)
        self.finish(birth, loss, batches)
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        self.seconds += time.perf_counter() - start
        self.sizes.append(dict(after))
        return growth

    def set_up(self, before: dict[str, int], stage: int) -> dict[str, int]:
        """The budget and the neighbourhood of this growth."""
        share = self.recipe.shares[stage]
        missing = {w.name: round(share * self.full[w.name]) - before[w.name] for w in self.anatomy.growable()}
        missing = {name: count for name, count in missing.items() if count}
        self.budget, self.widths = Exactly(missing), list(missing)
        self.neighborhood = tuple(self.list_kinds(max(missing.values())))
        self.over.append(self.anatomy.flops(self.overgrown(before, missing)))
        return missing

    def list_kinds(self, count: int) -> list[Any]:
        split, new = firefly.Split(self.recipe.split), firefly.New(self.count_new(count), self.recipe.new)
        return {"both": [split, new], "split": [split], "new": [new]}[self.kinds]

    @property
    def kinds(self) -> str:
        return self.recipe.kinds or NEIGHBORHOODS.get(self.recipe.method, "new")

    def count_new(self, most: int) -> int:
        return {"both": self.recipe.count, "split": 1, "new": most}[self.kinds]

    def overgrown(self, before: Mapping[str, int], missing: Mapping[str, int]) -> dict[str, int]:
        """The sizes of the network with all candidates, as if no pair were folded."""
        new = self.count_new(max(missing.values())) if self.kinds != "split" else 0
        times = 1 if self.kinds == "new" else 2
        every = {name: max(1, new // self.anatomy[name].block) if new else 0 for name in missing}  # heads are fewer
        return {name: times * size + every[name] if name in missing else size for name, size in before.items()}

    @torch.no_grad()
    def finish(self, birth: Birth, loss: Any, batches: Any) -> None:
        """What the recipe does to the newborn; the loss before and after it is told."""
        recipe = self.recipe
        last = len(self.history) == len(recipe.shares)
        at = [find_loss(self.model, loss, batches)]
        for item in "+".join(part for part in (OWN.get(recipe.method, ""), recipe.after) if part).split("+"):
            if item:
                name, number = item.split(":")
                AFTER[name](birth, float(number))
        if recipe.age != 1:
            self.ages = self.ages or Ages(birth.optimizer, recipe.fade * self.steps)
            self.ages.bear(birth, recipe.age)
        if recipe.method == "thrown-away" and last:
            begin_anew(self.model, birth.optimizer)
        at.append(find_loss(self.model, loss, batches))
        grown = self.history[-1]
        kinds = [kind for added in grown["added"].values() for kind in added.items()]
        told = {kind: sum(count for name, count in kinds if name == kind) for kind in ("split", "new")}
        losses = [grown["loss_before"], grown["loss_overgrown"], grown["loss_after"], *at]
        self.told.append(told | {"losses": [round(value, 4) for value in losses], "shortened": grown["shortened"]})

    def sizes_by_epoch(self, epochs: int) -> list[dict[str, int]]:
        return [self.sizes[sum(epoch >= at for at in self.milestones)] for epoch in range(epochs)]

    def flops_spent(self, batch: int) -> int:
        """Of all growths: step one, three points of the integral, and five passes for losses and statistics."""
        if self.recipe.method in ("uniform", "net2net", "variance-transfer", "thrown-away"):
            steps = 5 * self.recipe.batches / 3  # forward only
        elif self.recipe.method == "gradmax":
            steps = 2 * 10 * 8 + 6 * self.recipe.batches
        else:
            steps = self.recipe.steps + 5 * self.recipe.batches
        return round(3 * steps * batch * sum(self.over))

    def plan_flops(self, epochs: int, images: int, batch: int) -> int:
        """What a run will cost, before it is made."""
        self.sizes = [dict(self.anatomy.sizes())]
        for share in self.recipe.shares:
            before = self.sizes[-1]
            missing = {w.name: round(share * self.full[w.name]) - before[w.name] for w in self.anatomy.growable()}
            self.over.append(self.anatomy.flops(self.overgrown(before, missing)))
            self.sizes.append({**before, **{name: before[name] + count for name, count in missing.items()}})
        forward = sum(self.anatomy.flops(sizes) for sizes in self.sizes_by_epoch(epochs))
        return 3 * images * forward + self.flops_spent(batch)


@torch.no_grad()
def find_loss(model: nn.Module, loss: Any, batches: Any) -> float:
    """On the first batches, with the statistics of the batch; the model's buffers stay."""
    twin = copy.deepcopy(model).train()
    return torch.stack([loss(twin, batches[number]) for number in range(min(4, len(batches)))]).mean().item()


def begin_anew(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    """All weights are drawn again; nothing of what was learnt is left."""
    draw_weights(model)
    optimizer.state.clear()
