"""The ways to a network of a given size, for `find_pays.py`: each gives a trained network and all that it cost."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import torch
from find_bench import Bench, Cost, count_images, even_widths, fill, scale_widths, start_widths
from find_tasks import judge
from gpt_text import take_apart
from torch import Tensor, nn

import firefly
from firefly.anatomy.widths import Anatomy
from firefly.baselines.pruning import find_scales, prune, score_magnitude, score_slimming, score_taylor
from firefly.surgery.swap import find_tensor
from firefly.training.resident import Batches, draw, upload
from firefly.vision.data import Images, hold_out

LEAST = 4  # neurons that pruning leaves in every width
HELD = 4  # batches that a growth is judged on


def take_fixed(bench: Bench, cost: Cost) -> nn.Module:
    """Equal widths, or those of the full network scaled alike."""
    choose = even_widths if bench.words.method == "uniform" else scale_widths
    sizes = choose(bench.full, bench.fits)
    model = bench.build(sizes)
    bench.train_on(model, bench.full.flops(sizes), cost)
    return model


def take_longer(bench: Bench, cost: Cost) -> nn.Module:
    """The widths of somebody who knows nothing, trained longer by what a finding costs."""
    sizes, recipe = pick_plain(bench), bench.recipe
    flops = bench.full.flops(sizes)
    epochs = recipe.epochs + round(plan_finding(bench) / (3.0 * flops * count_images(bench.train, recipe.batch)))
    model = bench.build(sizes)
    bench.train_on(model, flops, cost, replace(recipe, epochs=epochs))
    return model


def take_full(bench: Bench, cost: Cost) -> nn.Module:
    """The full network; kept for those who prune it."""
    torch.manual_seed(bench.seed)
    model, recipe = bench.task.make(), bench.recipe
    if bench.words.method == "full-l1":
        scales = list(find_scales(model, bench.full))
        recipe = replace(recipe, loss=punish(scales, bench.words.l1, recipe.loss or cross_entropy))
    bench.train_on(model, bench.full.flops(), cost, recipe)
    bench.keep_full(model, cost)
    return model


def punish(scales: list[str], strength: float, loss: Any) -> Any:
    """Network slimming: the sum of |γ| beside the loss."""

    def total(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
        own = [find_tensor(model, name) for name in scales]  # what stands in for them while it trains
        out: Tensor = loss(model, batch) + strength * torch.cat([scale.float().abs() for scale in own]).sum()
        return out

    return total


def cross_entropy(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
    return nn.functional.cross_entropy(model(batch[0]).float(), batch[1])


# ---- the finder ------------------------------------------------------------------------------------------------------


def take_found(bench: Bench, cost: Cost) -> nn.Module:
    """Firefly's finder: short rounds of growth, then the training, on or anew."""
    task, words = bench.task, bench.words
    model = bench.build(start_widths(task, bench.full))
    begun = time.perf_counter()
    found = firefly.find(
        model,
        bench.train,
        bench.recipe,
        **bench.limits,
        growths=words.growths or task.growths or None,
        rounds=words.rounds,
        then=words.method.removeprefix("find-"),
        optimizer=lambda parameters: task.optimizer(parameters, bench.recipe.lr),
        example=task.example,
        neighborhood=list_kinds(bench),
        steps=words.steps,
        evaluate_on=HELD,
        progress=False,
    )
    cost.seconds += time.perf_counter() - begun
    cost.growing += found.seconds["growths"]
    assert found.training is not None
    cost.epochs += [len(found.finding), len(found.training)]
    for growth in found.growths:
        cost.finding += cost_round(bench, {name: before for name, (before, _) in growth["widths"].items()})
    images = count_images(bench.train, bench.recipe.batch)
    cost.flops += cost.finding + 3.0 * found.flops[1] * images * len(found.training)
    return model


def list_kinds(bench: Bench) -> list[Any]:
    return [kind for kind in bench.task.kinds if bench.words.kinds in ("", kind.name)]


def cost_round(bench: Bench, sizes: Mapping[str, int]) -> float:
    """A round and the growth after it: step one, three points of the integral, passes for losses.

    The over-grown network is counted with all of its candidates, as if no pair were folded, which is too much.
    """
    words, batch, kinds = bench.words, bench.recipe.batch, list_kinds(bench)
    now = bench.full.resized(sizes)
    times = 2 if any(kind.name == "split" for kind in kinds) else 1
    over = {n: times * size + sum(kind.count_new(now[n]) for kind in kinds) for n, size in sizes.items()}
    rounds = 3.0 * now.flops() * count_images(bench.train, batch) * words.rounds
    return rounds + 3.0 * now.flops(over) * batch * (words.steps + 5 * HELD)


def plan_finding(bench: Bench) -> float:
    """About what a finding costs, for others who may spend as much."""
    first, last = start_widths(bench.task, bench.full), pick_plain(bench)
    ratio = max(math.log(goal / getattr(bench.full, what)(first)) for what, goal in bench.limits.items())
    growths = bench.words.growths or bench.task.growths or max(1, round(ratio / math.log(1.5)))
    way = [{n: round(first[n] * (last[n] / first[n]) ** (k / growths)) for n in first} for k in range(growths)]
    return sum(cost_round(bench, sizes) for sizes in way)


# ---- random search ---------------------------------------------------------------------------------------------------


def take_random(bench: Bench, cost: Cost) -> nn.Module:
    """Random widths of the size, an epoch each, the best on data apart trained anew; for the cost of a finding."""
    inner, apart = part(bench.train)
    generator = torch.Generator().manual_seed(bench.seed)
    equal, alike = pick_plain(bench), scale_widths(bench.full, bench.fits)
    purse, best, tried = bench.words.finding * plan_finding(bench), (math.inf, equal), 0
    while cost.flops < purse or tried < 2:
        between = torch.rand((), generator=generator).item()
        spread = {name: math.exp(0.4 * torch.randn((), generator=generator).item()) for name in equal}
        shape = {name: equal[name] ** between * alike[name] ** (1 - between) * spread[name] for name in equal}
        sizes = fill(shape, bench.fits)
        model = bench.build(sizes)
        bench.train_on(model, bench.full.flops(sizes), cost, replace(bench.recipe, epochs=1), inner)
        best = min(best, (judge(bench.task, model, apart)["loss"], sizes), key=lambda one: one[0])
        tried += 1
    cost.finding = cost.flops
    model = bench.build(best[1])
    bench.train_on(model, bench.full.flops(best[1]), cost)
    return model


def pick_plain(bench: Bench) -> dict[str, int]:
    """The widths of somebody who knows nothing."""
    return (even_widths if bench.task.alike else scale_widths)(bench.full, bench.fits)


def part(train: Any) -> tuple[Any, Any]:
    """A tenth of the training data apart, for choices."""
    if isinstance(train, Images):
        return hold_out(train, len(train) // 10, seed=1)
    return take_apart(train, len(train[1]) // 10)


# ---- pruning ---------------------------------------------------------------------------------------------------------


def take_pruned(bench: Bench, cost: Cost) -> nn.Module:
    """The trained full network, pruned to the size and trained on."""
    model = bench.load_full(cost)
    begun = time.perf_counter()
    scores = score(bench, model, cost)
    pruned = prune(model, scores, bench.full, **bench.limits, least=LEAST)
    cost.seconds += time.perf_counter() - begun
    cost.finding = cost.flops
    bench.train_on(model, pruned.flops(), cost)
    return model


def score(bench: Bench, model: nn.Module, cost: Cost) -> Mapping[str, Tensor]:
    full: Anatomy = bench.full
    if bench.words.method == "slimming":
        return score_slimming(model, full)
    if bench.words.method == "magnitude":
        return score_magnitude(model, full)
    recipe = bench.recipe
    data = upload(bench.train, next(model.parameters()).device, augment=recipe.augment)
    batches = Batches(data, draw(data, recipe.batch, bench.seed, 0)[:40])
    model.eval()
    cost.flops += 3.0 * full.flops() * recipe.batch * len(batches)
    return score_taylor(model, full, recipe.loss or cross_entropy, batches)


METHODS: dict[str, Callable[[Bench, Cost], nn.Module]] = {
    "full": take_full,
    "full-l1": take_full,
    "uniform": take_fixed,
    "scaled": take_fixed,
    "longer": take_longer,
    "find-on": take_found,
    "find-anew": take_found,
    "random": take_random,
    "slimming": take_pruned,
    "taylor": take_pruned,
    "magnitude": take_pruned,
}
NEEDS = {"slimming": "full-l1", "taylor": "full", "magnitude": "full"}  # what has to be trained before
