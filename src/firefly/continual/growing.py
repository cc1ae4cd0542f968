"""One growth of a task's network (Sec. 2.4): unlocking and new neurons in one ranking, under one budget.

After it the original of an unlocked neuron is read by nobody in this task: the copy, a newborn neuron that belongs to
the task, takes its place in the task's list.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch

from firefly.continual.blueprint import fit_plain, list_tensors
from firefly.continual.data import Data
from firefly.continual.lesson import Lesson, Pupil
from firefly.continual.lock import put_back
from firefly.continual.ownership import Lists, count_born, find_places
from firefly.descent import STEPS, grow
from firefly.growth import Growth
from firefly.neighborhood.kinds import Kind, New, Split, Unlock, read_neighborhood
from firefly.stages.capturing import capturing
from firefly.stages.losses import Loss
from firefly.training.capture import Step
from firefly.training.recipe import make_loss, settle
from firefly.training.resident import Batches, draw, upload

if TYPE_CHECKING:
    from firefly.continual.master import Master

CANDIDATES = 15  # brand-new ones in every width (app. B.4)


def grow_round(master: Master, lesson: Lesson, pupil: Pupil, train: Data) -> None:
    """One growth on the training images of the task."""
    recipe = settle(lesson.recipe)
    device, number = torch.device(recipe.device or "cpu"), len(pupil.growths)
    last = bool(recipe.channels_last)
    data = upload(train, device, augment=recipe.augment, cutout=recipe.cutout, channels_last=last)
    batches = Batches(data, draw(data, recipe.batch, recipe.seed + lesson.seed, recipe.epochs + number))
    with capturing(Step if device.type == "cuda" and recipe.graph is not False else None):
        grow_pupil(master, lesson, pupil, recipe.loss or make_loss(recipe.label_smoothing), batches)
    pupil.epochs["step one"] += lesson.growing.get("steps", STEPS) * recipe.batch / len(data)


def grow_pupil(master: Master, lesson: Lesson, pupil: Pupil, loss: Loss, batches: Iterable[Any]) -> None:
    """One growth on these batches, and the lists that belong to it; the network is on the CPU afterwards."""
    growth = grow(
        pupil.model.train(),
        loss,
        batches,
        example=master.blueprint.example,
        neighborhood=list_kinds(master, lesson, pupil),
        budget=lesson.budget,
        seed=lesson.seed + len(pupil.growths),
        anatomy=master.blueprint.find_anatomy(lesson.classes, pupil.sizes),
        **lesson.growing,
    )
    settle_lists(master, pupil, growth)
    told = growth.to_dict()
    pupil.growths.append({key: told[key] for key in TOLD})
    put_back(master.hold(pupil.model.cpu(), pupil.lists, pupil.find_unheard(lesson.listen)))


TOLD = ("added", "widths", "loss_before", "loss_overgrown", "loss_after", "predicted", "parameters", "seconds")


def list_kinds(master: Master, lesson: Lesson, pupil: Pupil) -> list[Kind]:
    """How the task may grow; what older tasks own may be unlocked, but neither moved nor split."""
    locked = {name: numbers < master.born[name] for name, numbers in pupil.lists.items()}
    any_locked = any(bool(one.any()) for one in locked.values())
    if lesson.neighborhood is None:
        return [Unlock(locked=locked) if any_locked else Split(), New(CANDIDATES)]
    lesson.check_kinds(any_locked)
    kinds = read_neighborhood(lesson.neighborhood)
    return [replace(kind, locked=locked) if isinstance(kind, Unlock) else kind for kind in kinds]


def settle_lists(master: Master, pupil: Pupil, growth: Growth) -> None:
    """Number the newborn neurons, and let the copy of an unlocked one stand where its original stood."""
    order, lists = {}, {}
    for name, known in pupil.lists.items():
        before, after = growth.widths.get(name, (len(known), len(known)))
        first = max(master.born[name], count_born(known))
        numbers = torch.cat([known, torch.arange(first, first + after - before)])
        unlocked = torch.tensor(sorted(growth.chosen.get(name, {}).get("unlock", [])), dtype=torch.long)
        stays = torch.arange(before)
        stays[unlocked] = torch.arange(before, before + len(unlocked))  # copies stand behind, in the same order
        order[name] = torch.cat([stays, torch.arange(before + len(unlocked), after)])
        lists[name] = numbers[order[name]]
    sizes = {name: growth.widths.get(name, (0, len(known)))[1] for name, known in pupil.lists.items()}
    reorder(master, pupil, order, sizes)
    pupil.lists = lists


def keep_only(master: Master, pupil: Pupil, kept: Lists) -> None:
    """Leave out all neurons but these, by their places in the network."""
    reorder(master, pupil, kept, pupil.sizes)
    pupil.lists = {name: pupil.lists[name][places] for name, places in kept.items()}


def reorder(master: Master, pupil: Pupil, order: Lists, sizes: Mapping[str, int]) -> None:
    """Let the network hold these of its neurons, in this order; `sizes` says how many it has."""
    blueprint, tensors = master.blueprint, list_tensors(pupil.model.cpu())
    fewer = {}
    for name, layout in {**blueprint.shared, **blueprint.followers, **blueprint.head}.items():
        places = find_places(fit_plain(layout, tensors[name]), order, sizes)
        fewer[name] = tensors[name].detach()[places]
    blueprint.resize(pupil.model, fewer, {name: len(one) for name, one in order.items()})
