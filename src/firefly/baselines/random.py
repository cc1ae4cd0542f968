"""Growing at random (Sec. 3, `RandSearch`): the same candidates as Firefly's, without its step one and its scores.

`random_growth` takes candidates blindly, each with a random direction. `random_search` does that a few times on copies
of the model, tunes each for a while and keeps the best: what Firefly's gradients are worth is measured against it.
"""

from __future__ import annotations

import copy
import dataclasses
import math
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from itertools import islice
from typing import Any

import torch
from torch import nn

from firefly.anatomy.widths import Anatomy, Widths
from firefly.descent import grow
from firefly.errors import FireflyError
from firefly.growth import Growth
from firefly.method import Method
from firefly.neighborhood.kinds import Kind, New, Split
from firefly.neighborhood.overgrown import Directions, OverGrown
from firefly.neighborhood.starts import size_rows
from firefly.ranks.talk import average, decide
from firefly.stages.batches import endless
from firefly.stages.budget import Budget, Neurons
from firefly.stages.losses import Loss, mean_loss, scalar_loss
from firefly.stages.scores import Gains
from firefly.stages.selection import Ballot, Chosen, select
from firefly.stages.step_one import Steps


def random_growth() -> Method:
    """Random candidates with random directions, as a method for `firefly.grow`; it looks at no data."""
    return Method(name="random", descend=draw_directions, score=predict_nothing, select=select_at_random, trust=False)


def random_search(
    model: nn.Module,
    loss: Loss,
    batches: Iterable[Any],
    *,
    example: Any,
    neighborhood: Iterable[Kind] = (Split(), New(50)),
    budget: Budget = Neurons(fraction=0.3),  # noqa: B008
    tries: int = 3,
    tune: Callable[[nn.Module], None] | None = None,
    iterations: int = 100,
    lr: float = 1e-3,
    judge: Callable[[nn.Module], float] | None = None,
    optimizer: torch.optim.Optimizer | None = None,
    widths: Widths = None,
    anatomy: Anatomy | None = None,
    evaluate_on: int = 8,
    seed: int = 0,
) -> Growth:
    """Grow copies of the model at random, tune each, and give the model the size and the weights of the best.

    Args:
        tries: how many random growths to compare (k in the paper).
        tune: trains a grown copy in place; None takes `iterations` steps of Adam with `lr` on the batches.
        judge: a number for a tuned copy, lower is better; None takes the loss on the first `evaluate_on` batches.

    The other arguments are those of `firefly.grow`, but the budget is 30 % of the neurons unless told. The growth that
    comes back describes the best random growth before its tuning; its notes hold what every try reached.
    """
    if tries < 1:
        raise FireflyError(f"random_search(tries={tries!r}): needs a whole number of at least 1")
    if iter(batches) is batches:
        batches = list(islice(batches, max(iterations, evaluate_on)))
    held = list(islice(batches, evaluate_on))
    shared: dict[str, Any] = {
        "loss": loss,
        "batches": batches,
        "example": example,
        "neighborhood": neighborhood,
        "budget": budget,
        "widths": widths,
        "anatomy": anatomy,
        "evaluate_on": evaluate_on,
        "method": random_growth(),
    }
    tune = tune or (lambda child: _tune(child, loss, batches, iterations, lr))
    judge = judge or (lambda child: mean_loss(loss, child, held))
    growths = [partial(grow, **shared, seed=seed * tries + attempt) for attempt in range(tries)]
    growth, reached = keep_best(model, growths, tune, judge, optimizer, seed)
    return dataclasses.replace(growth, notes=(*growth.notes, f"the best of {tries} random growths, tuned: {reached}"))


def keep_best(
    model: nn.Module,
    growths: Sequence[Callable[..., Growth]],
    tune: Callable[[nn.Module], None],
    judge: Callable[[nn.Module], float],
    optimizer: torch.optim.Optimizer | None = None,
    seed: int = 0,
    **along: Any,
) -> tuple[Growth, str]:
    """Try each growth on a copy of the model, tune and judge it; the model gets the size and weights of the best.

    What is to grow `along` with the model itself is given to its own growth alone.

    Until the best is known nothing of the model changes. Comes back with what every copy reached, as text.
    """
    values: list[float] = []
    best = model
    with torch.random.fork_rng():
        for attempt, grow_one in enumerate(growths):
            child = copy.deepcopy(model)
            torch.manual_seed(seed + attempt)
            grow_one(child)
            tune(child)
            value = decide(float(judge(child)))
            best = child if not values or value < min(values) else best
            values.append(math.inf if math.isnan(value) else value)
    if min(values) == math.inf:
        raise FireflyError(f"none of the {len(values)} tuned copies reached a finite value: check tune and judge")
    growth = growths[values.index(min(values))](model, optimizer=optimizer, **along)
    model.load_state_dict(best.state_dict())
    tuned = dict(best.named_buffers())
    with torch.no_grad():
        for name, buffer in model.named_buffers():  # also those that a state_dict leaves out
            if name in tuned and tuned[name].shape == buffer.shape:
                buffer.copy_(tuned[name])
    return growth, ", ".join(f"{value:.4g}" for value in values)


@torch.no_grad()
def draw_directions(over: OverGrown, loss: Loss, batches: Iterable[Any], steps: Steps) -> Directions:
    """Instead of step one: every δ from a normal distribution, inside the ball."""
    generator = make_generator(1)
    found = {}
    for name, delta in over.delta.items():
        drawn = torch.randn(delta.shape, generator=generator, dtype=delta.dtype).to(delta.device)
        found[name] = size_rows(over.layouts[name], drawn, over.slots, over.scale, full=True)
    over.balls.project(found)
    return Directions(found, over.epsilon)


def predict_nothing(over: OverGrown, loss: Loss, batches: list[Any], path: str) -> Gains:
    return {name: torch.zeros_like(epsilon) for name, epsilon in over.epsilon.items()}


def select_at_random(ballot: Ballot) -> Chosen:
    """Candidates in a random order until the budget is spent, whatever each of them costs."""
    generator = make_generator(2)
    order = {name: torch.rand(len(gain), generator=generator) for name, gain in ballot.gains.items()}
    return select(dataclasses.replace(ballot, keys=order), everyone=True, power=0.0)


def make_generator(stage: int) -> torch.Generator:
    """A stream of its own for each stage of a growth: what is chosen must not depend on the directions drawn."""
    return torch.Generator().manual_seed(torch.initial_seed() % 2**31 * 8 + stage)


def _tune(model: nn.Module, loss: Loss, batches: Iterable[Any], iterations: int, lr: float) -> None:
    optimizer = torch.optim.Adam(model.parameters(), lr=lr)
    for batch in islice(endless(batches), iterations):
        optimizer.zero_grad()
        scalar_loss(loss, model, batch).backward()
        average(p.grad for p in model.parameters() if p.grad is not None)
        optimizer.step()
    optimizer.zero_grad()
