"""Prune, pick and grow (CPG; Hung et al., 2019) without fully connected layers: a rival of Firefly.

One network of which every weight has an owner, or none yet. A task trains the weights that nobody owns, and a binary
mask that picks among the others (straight-through); if it stays below its goal, the network is widened and it trains
anew. Then it is compacted: the smallest of its own weights go, a few in every epoch, in stages, each kept if the goal
is still met; what is left is the task's own for ever. The goal is the held-out accuracy of a network of its own
(`individual`), or `until`. Norms and heads are private, as in all methods here.

Here the network becomes as large as Firefly's in the end, not larger, and training and compaction together take the
epochs of the others; a growth takes more, and the row says so. Once the network cannot be widened, or where a task
misses its goal, it keeps at most its share of what is left of the widest one, the tasks to come counted. Masks are
trained by SGD on gradients of one size per layer, and during compaction too, instead of a second time after it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from firefly.continual.blueprint import Blueprint, list_tensors, read_blueprint
from firefly.continual.data import hold_out
from firefly.continual.lock import Held, lock
from firefly.experiments.continual.classroom import Class, Stream, count_epochs, how_to_fit
from firefly.experiments.continual.course import Part, find_network
from firefly.surgery.swap import find_tensor, swapped
from firefly.training import fit
from firefly.training.recipe import Recipe

STAGES = (0.5, 0.75, 0.9, 0.95)  # of compaction: the share of the entries at hand that a task does without
START, RATE = 1.0, 0.01  # of a mask, which is on above 0: where it begins, and its learning rate
NARROW, WIDENINGS = 0.7, 2  # the channels to begin with, as a share of the most; steps from there

Tensors = dict[str, Tensor]


@dataclass(eq=False)
class Union:
    """All weights, and whose they are: 0 nobody's, 1 the first task's, ..."""

    room: Class
    blueprint: Blueprint
    most: int  # channels
    widths: int = 0
    weights: Tensors = field(default_factory=dict)
    owners: Tensors = field(default_factory=dict)

    def widen(self, widths: int, number: int) -> None:
        """Room for so many channels; what nobody owns is drawn anew."""
        fresh = list_tensors(self.room.build(widths, number))
        for name in self.blueprint.shared:
            new, owners = fresh[name].detach(), torch.zeros(fresh[name].shape, dtype=torch.uint8)
            self.owners[name] = paste(owners, self.owners.get(name))
            self.weights[name] = torch.where(self.owners[name] > 0, paste(new, self.weights.get(name)), new)
        self.widths = widths

    def count(self) -> int:
        return sum(int((owners > 0).sum()) for owners in self.owners.values())

    def find_least(self, left: int) -> float:
        """The share of the entries at hand that a task must do without, so that each of those left gets as many."""
        widest = list_tensors(self.room.build(self.most, 0))
        whole = sum(widest[name].numel() for name in self.owners)
        free = sum(int((owners == 0).sum()) for owners in self.owners.values())
        return max(0.0, 1 - (whole - self.count()) / left / max(free, 1))


@dataclass(frozen=True)
class Learnt:
    """What a task needs beside the union: which of its entries, and what is private."""

    widths: int
    used: Tensors
    private: Tensors
    bits: int  # of its mask
    spent: dict[str, int]  # epochs


def paste(large: Tensor, small: Tensor | None) -> Tensor:
    """The larger tensor with the smaller one in its corner."""
    large = large.clone()
    if small is not None:
        large[tuple(slice(0, size) for size in small.shape)] = small
    return large


class Picked(nn.Module):
    """A network whose older entries are on or off, by a mask each."""

    def __init__(self, network: nn.Module, old: Tensors) -> None:
        super().__init__()
        self.network = network
        self.old = {name: one for name, one in old.items() if bool(one.any())}
        self.masks = nn.ParameterList(torch.full(one.shape, START, device=one.device) for one in self.old.values())

    def forward(self, images: Tensor) -> Any:
        masked = {}
        for (name, old), mask in zip(self.old.items(), self.masks):
            tensor = find_tensor(self.network, name)
            masked[name] = tensor * torch.where(old, switch(mask), 1.0).to(tensor)
        with swapped(self.network, masked):
            return self.network(images)

    @property
    def picks(self) -> Tensors:
        return {name: old & (mask.detach() > 0) for (name, old), mask in zip(self.old.items(), self.masks)}


def switch(mask: Tensor) -> Tensor:
    """1 where the mask is on, else 0; its gradient goes straight through, and is of one size on the mean."""
    soft = mask * 1
    if soft.requires_grad:
        soft.register_hook(lambda slope: slope / slope.square().mean().sqrt().clamp(min=1e-12))
    return (mask > 0).to(mask) + (soft - soft.detach())


def run_cpg(room: Class) -> Stream:
    room = replace(room, parts=[set_apart(part, room.course.classes) for part in room.parts])
    blueprint = read_blueprint(lambda classes: room.make(classes, 2), find_network(room.course)[1])
    union, learnt = Union(room, blueprint, room.fit_shared()), dict[str, Learnt]()
    union.widen(min(union.most, room.round_up(max(1, round(NARROW * union.most)))), 0)
    names = [name for name in blueprint.private if name in blueprint.parameters]
    for number, part in enumerate(room.parts):
        goal = find_goal(room, part, number)
        before = list(learnt.values())[-1] if learnt else None
        task = learnt[part.name] = learn(union, number, goal, before)
        scores = {one.name: room.score(rebuild(union, learnt[one.name]), one) for one in room.parts[: number + 1]}
        owned, private = union.count(), sum(one.private[name].numel() for one in learnt.values() for name in names)
        ids = math.ceil(math.log2(len(room.parts) + 1)) * sum(one.numel() for one in union.owners.values())
        told: dict[str, Any] = {"owned": owned, "private": private, "mask_bits": task.bits, "owner_bits": ids}
        told |= {"goal": goal, "widths": union.widths, "spent": task.spent, "epochs": sum(task.spent.values())}
        yield scores, owned + private, told


def set_apart(part: Part, classes: int) -> Part:
    """It chooses by held-out images, so it needs some where the others train on all, too."""
    if part.valid is not None:
        return part
    train, valid = hold_out(part.name, part.train, None, classes, 2000)
    return replace(part, train=train, valid=valid)


def find_goal(room: Class, part: Part, number: int) -> float:
    """The held-out accuracy that the task should have: that of a network of its own, unless the course says."""
    if room.course.until is not None:
        return room.course.until
    if number in room.goals:
        return room.goals[number]
    how = how_to_fit(room, part)
    how["checkpoint"] = room.folder / f"goal-{number + 1}"
    return fit(room.build(room.course.own, number), part.train, **how).accuracies[-1]


def learn(union: Union, number: int, goal: float, before: Learnt | None) -> Learnt:
    """Train, widen if need be, and compact; the union then holds what became the task's own."""
    room, whole = union.room, count_epochs(union.room)
    stage = max(1, whole // 8)
    recipe = room.course.recipe(room.device, max(1, whole - len(STAGES) * stage))
    model = begin(union, number, before)
    accuracy = train(union, number, model, recipe, f"widths-{union.widths}")
    spent = {"training": recipe.epochs, "compacting": 0}
    if accuracy < goal and union.widths < union.most:
        step = math.ceil((1 - NARROW) * union.most / WIDENINGS)
        union.widen(min(union.most, room.round_up(union.widths + step)), number)
        model = begin(union, number, before)
        accuracy = train(union, number, model, recipe, f"widths-{union.widths}")
        spent["training"] += recipe.epochs
    bound = accuracy < goal or union.widths == union.most
    least = union.find_least(len(room.parts) - number) if bound else 0.0
    slow = room.course.recipe(room.device, stage, lr=room.course.lr / 10)
    share, kept = 0.0, keep(model)
    for aim in sorted({least, *STAGES} - {0.0}):
        if aim >= least:
            accuracy = train(union, number, model, slow, f"without-{aim:.4f}", (share, aim))
            spent["compacting"] += stage
            if accuracy < goal and aim > least:
                break
            share, kept = aim, keep(model)
    model.load_state_dict(kept)
    return settle(union, number, model, spent)


def keep(model: nn.Module) -> Tensors:
    return {name: tensor.detach().clone() for name, tensor in model.state_dict().items()}


def begin(union: Union, number: int, before: Learnt | None) -> Picked:
    """The union's weights and a mask over those of older tasks, with the norms of the last one and a fresh head."""
    model = union.room.build(union.widths, number)
    with torch.no_grad():
        for name, tensor in list_tensors(model).items():
            if name in union.weights:
                tensor.copy_(union.weights[name])
            elif before is not None and name not in union.blueprint.head:
                tensor.copy_(paste(tensor, before.private[name]))
    old = {name: (owners > 0).to(union.room.device) for name, owners in union.owners.items()}
    return Picked(model.to(union.room.device), old)


def train(
    union: Union, number: int, model: Picked, recipe: Recipe, name: str, shares: tuple[float, float] = (0.0, 0.0)
) -> float:
    """Train what nobody owns, and the mask; without a rising share of it, if there are two. The held-out accuracy."""
    part, own = union.room.parts[number], dict(model.network.named_parameters())
    groups: list[dict[str, Any]] = [{"params": list(own.values())}]
    quick = {"lr": RATE * recipe.lr / union.room.course.lr, "weight_decay": 0.0, "nesterov": False}
    groups += [{"params": list(model.masks), **quick}] if len(model.masks) else []
    heavy, nesterov = recipe.momentum, recipe.nesterov and recipe.momentum > 0
    optimizer = torch.optim.SGD(groups, recipe.lr, heavy, nesterov=nesterov, weight_decay=recipe.weight_decay)
    held = []
    for key, owners in union.owners.items():
        free = owners.to(own[key].device) == 0
        held.append(Held(own[key], free & (own[key] != 0), torch.where(free, 0, own[key].detach())))
    handle = lock(optimizer, held)
    prune_some = partial(prune, union, held, recipe.epochs, shares) if shares[1] else None
    folder = union.room.folder / part.name.replace(" ", "-") / name
    history = fit(
        model,
        part.train,
        recipe=recipe,
        test=part.valid,
        optimizer=optimizer,
        each_epoch=prune_some,
        checkpoint=folder,
        progress=False,
    )
    handle.remove()
    return history.accuracies[-1]


@torch.no_grad()
def prune(union: Union, held: list[Held], epochs: int, shares: tuple[float, float], epoch: int, *_: Any) -> None:
    """Before an epoch: of the entries that no older task owns, the smallest go; all of the share in half the epochs."""
    first, last = shares
    rest = max(0.0, 1 - (epoch + 1) / math.ceil(epochs / 2))
    share = last + (first - last) * rest**3
    for one, owners in zip(held, union.owners.values()):
        free = owners.to(one.free.device) == 0
        sizes = one.parameter.detach().abs()
        count = round(share * int(free.sum()))
        if count:
            one.free.copy_(free & (sizes > sizes[free].kthvalue(count).values))


@torch.no_grad()
def settle(union: Union, number: int, model: Picked, spent: dict[str, int]) -> Learnt:
    """What is left of the entries that nobody owned is the task's."""
    tensors = {name: tensor.detach().cpu() for name, tensor in list_tensors(model.network).items()}
    used, bits = {}, 0
    for name, owners in union.owners.items():
        bits += int((owners > 0).sum())
        own = (owners == 0) & (tensors[name] != 0)
        picks = model.picks[name].cpu() if name in model.old else torch.zeros_like(own)
        used[name] = own | picks
        union.weights[name] = torch.where(own, tensors[name], union.weights[name])
        union.owners[name] = torch.where(own, number + 1, owners)
    private = {name: tensors[name].clone() for name in union.blueprint.private}
    return Learnt(union.widths, used, private, bits, spent)


@torch.no_grad()
def rebuild(union: Union, task: Learnt) -> nn.Module:
    """The network of a task, out of the union."""
    model = union.room.build(task.widths, 0)
    for name, tensor in list_tensors(model).items():
        if name in task.private:
            tensor.copy_(task.private[name])
        else:
            corner = tuple(slice(0, size) for size in tensor.shape)
            tensor.copy_(union.weights[name][corner] * task.used[name])
    return model
