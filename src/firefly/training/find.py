"""`find`: which widths should a network of this size have? Grow it quickly in short rounds, then train what was found.

    found = firefly.find(model, data, Recipe(100, lr=0.1), parameters=800_000)

On VGG-19 it is the widths that help, on a GPT the grown weights (docs/when-growth-pays.md). The rounds are short, an
epoch or two each, the rate falling in each of them; the training that counts comes after them, with the weights as they
are or drawn anew.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from inspect import signature
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

from firefly.anatomy.examples import bring
from firefly.descent import Firefly
from firefly.errors import FireflyError
from firefly.growth import Growth
from firefly.schedule import Every
from firefly.stages.budget import Budget, Flops, Multiples, Parameters
from firefly.stages.losses import Loss
from firefly.training.fit import fit
from firefly.training.history import History
from firefly.training.optimizer import make_optimizer
from firefly.training.recipe import Recipe, check_words, is_whole, settle
from firefly.training.resident import finish, upload

OWN = ("model", "example", "seed")  # what a finder has from the call itself
FACTOR = 1.5  # by which a growth enlarges the network, if nobody says how many there shall be
Then = str | Callable[[nn.Module], Any] | None


@dataclass(frozen=True, eq=False)
class Found:
    """What `find` found; the model itself was grown and trained in place."""

    widths: Mapping[str, tuple[int, int]]  # neurons before and now
    parameters: tuple[int, int]
    flops: tuple[int, int]  # of one example, forward
    growths: tuple[dict[str, Any], ...]  # each as `Growth.to_dict` gives it
    finding: History  # the rounds
    training: History | None  # what came after them
    optimizer: Optimizer

    @property
    def seconds(self) -> dict[str, float]:
        grown = sum(sum(growth["seconds"].values()) for growth in self.growths)
        after = self.training.seconds if self.training is not None else 0.0
        return {"rounds": self.finding.seconds, "growths": grown, "training": after}

    def __str__(self) -> str:
        (few, many), (light, heavy) = self.parameters, self.flops
        longest = max(map(len, self.widths), default=0)
        lines = [f"{name:{longest}}  {before:>5} -> {after}" for name, (before, after) in self.widths.items()]
        total = f"parameters {few:,} -> {many:,}, FLOPs {light:,} -> {heavy:,}, {len(self.growths)} growths"
        parts = ", ".join(f"{name} {value:.1f}" for name, value in self.seconds.items())
        return "\n".join([*lines, total, f"seconds: {parts}"])


def find(
    model: nn.Module,
    data: Any,
    recipe: Recipe,
    *,
    parameters: int | None = None,
    flops: int | None = None,
    growths: int | None = None,
    rounds: int = 1,
    then: Then = "on",
    test: Any = None,
    optimizer: Callable[[Any], Optimizer] | None = None,
    example: Any = None,
    multiple: int = 1,
    checkpoint: Any = None,
    progress: bool = True,
    **how: Any,
) -> Found:
    """Grow a small network to a size, in place, then train it for as long as the recipe says.

    - `data`, `test`, `recipe`: as `fit` takes them; the recipe's epochs come after the last growth, its warm-up there
      and before the first.
    - `parameters`, `flops`: the size to grow to, either or both; FLOPs are those of one example's forward pass.
    - `growths`: how many there are, each by the same factor; None for factors of about 1.5.
    - `rounds`: epochs before each growth.
    - `then`: "on" trains the grown weights on, "anew" draws all of them anew first, by `reset_parameters` of the
      modules; a function of the model draws them in your way; None trains no further.
    - `optimizer`: a function that makes one of the parameters; None for the recipe's SGD.
    - `example`: what the model takes; None for a few inputs of the data.
    - `multiple`: of which the widths are multiples.
    - `checkpoint`: a folder; the same call goes on there where it was stopped.
    - the rest are options of `firefly.Firefly`: neighborhood, widths, steps, method ...
    """
    check_what(recipe, parameters, flops, growths, rounds, then)
    check_words("find", how, [name for name in signature(Firefly).parameters if name not in OWN])
    place = torch.device(settle(recipe).device or "cpu")
    model.to(place)
    if example is None:
        resident = upload(data, place)
        example = finish(resident, resident.images[:8])
    make = optimizer or (lambda _: make_optimizer(model, recipe))
    finder = Finder(model, bring(example, model), parameters, flops, growths, rounds, multiple, seed=recipe.seed, **how)
    anatomy, own = finder.anatomy, make(model.parameters())
    kept = "training" if then == "on" else "training-anew"
    folders = [None if checkpoint is None else Path(checkpoint) / name for name in ("finding", kept)]
    epochs = rounds * finder.growths
    finding = fit(
        model,
        data,
        recipe=replace(
            recipe,
            epochs=epochs + 1,
            schedule=lambda time: fall(time / rounds),
            warmup=min(recipe.warmup, rounds),
            hold=0.0,
            stop=None,
            ema=None,
        ),
        optimizer=own,
        grower=finder,
        each_epoch=lambda epoch, history, model: epoch >= epochs,  # so that the last growth comes, and no epoch more
        checkpoint=folders[0],
        progress=progress,
    )
    training = None
    if then is not None:
        own = begin_anew(model, then, make, recipe.seed) if then != "on" else own
        training = fit(model, data, recipe=recipe, test=test, optimizer=own, checkpoint=folders[1], progress=progress)
    now, before = finder.anatomy, anatomy.sizes()
    return Found(
        {width.name: (before[width.name], width.size) for width in now.growable()},
        (anatomy.parameters(), now.parameters()),
        (anatomy.flops(), now.flops()),
        tuple(finder.history),
        finding,
        training,
        own,
    )


class Finder(Firefly):
    """A grower that reaches a size in so many growths, each by the same factor."""

    def __init__(
        self,
        model: nn.Module,
        example: Any,
        parameters: int | None,
        flops: int | None,
        growths: int | None,
        rounds: int,
        multiple: int,
        **how: Any,
    ) -> None:
        for name in ("budget", "schedule"):
            if name in how:
                raise FireflyError(f"find plans its own {name}: give parameters=, flops=, growths= and rounds=")
        super().__init__(model, example, **how)
        self.even = Multiples(multiple)
        now = self.anatomy
        self.ways = {}  # what is limited: (now, to be)
        for kind, present, target in ((Parameters, now.parameters(), parameters), (Flops, now.flops(), flops)):
            if target is not None and target <= present:
                raise FireflyError(
                    f"{kind.__name__.lower()}={target:,}: the model has {present:,} already: begin smaller"
                )
            if target is not None:
                self.ways[kind] = (present, target)
        most = max(math.log(target / present) for present, target in self.ways.values())
        self.growths = growths or max(1, round(most / math.log(FACTOR)))
        self.schedule = Every(rounds, times=self.growths)
        self.budget = self.plan_budget()

    def plan_budget(self) -> Budget:
        """Up to the next size on the way."""
        budget: Budget = self.even
        done = (len(self.history) + 1) / self.growths
        for kind, (first, target) in self.ways.items():
            now = self.anatomy.parameters() if kind is Parameters else self.anatomy.flops()
            budget = kind(max(1.0, first * (target / first) ** min(done, 1.0) - now)) & budget
        return budget

    def grow(
        self, loss: Loss, batches: Iterable[Any], optimizer: Any = None, also: Iterable[nn.Module] = (), **how: Any
    ) -> Growth:
        self.budget = self.plan_budget()
        return super().grow(loss, batches, optimizer, also, **how)


def fall(rounds: float) -> float:
    """The factor of the rate: from 1 to 0 along a cosine in every round."""
    return 0.5 * (1 + math.cos(math.pi * (rounds % 1)))


def begin_anew(model: nn.Module, then: Then, make: Callable[[Any], Optimizer], seed: int) -> Optimizer:
    """Draw all weights again, at the sizes that they have now; and a new optimiser."""
    draw = then if callable(then) else draw_weights
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        draw(model)
    return make(model.parameters())


def draw_weights(model: nn.Module) -> None:
    """As the modules draw them; children before parents, who may know better."""
    for name, module in reversed(list(model.named_modules())):
        if any(not one.numel() for one in module.parameters(recurse=False)):
            continue  # of a dormant layer, which has nothing to draw
        draw = getattr(module, "reset_parameters", None) or getattr(module, "_reset_parameters", None)
        if draw is not None:
            draw()
        elif any(True for _ in module.parameters(recurse=False)):
            kind = f"{name or 'the model'} ({type(module).__name__})"
            raise FireflyError(f"{kind} has weights and no reset_parameters: give then= a function that draws them")


def check_what(
    recipe: Any, parameters: int | None, flops: int | None, growths: int | None, rounds: int, then: Then
) -> None:
    """Refuse what says no size or no way there."""
    if not isinstance(recipe, Recipe):
        raise FireflyError(f"recipe is a {type(recipe).__name__}: give a firefly.training.Recipe(epochs, ...)")
    if parameters is None and flops is None:
        raise FireflyError("find which size? Give parameters=, flops= or both")
    for name, value in (("parameters", parameters), ("flops", flops), ("growths", growths), ("rounds", rounds)):
        if value is not None and not is_whole(value, 1):
            raise FireflyError(f"{name}={value!r}: give a whole number from 1 up")
    if then not in ("on", "anew", None) and not callable(then):
        raise FireflyError(f"then={then!r}: give 'on', 'anew', a function that draws the model's weights, or None")
