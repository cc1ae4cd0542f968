"""Learning one task: pick locked neurons, train, and grow as long as it pays (Sec. 2.4, Algorithm 2).

The task's network is an ordinary model that `fit` and `grow` take as it is. Between two trainings it is kept on the
desk (`desk.py`), so that a learning that was killed goes on from there, or from the last checkpoint of `fit`.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch

from firefly.continual.blueprint import list_tensors
from firefly.continual.data import Data, hash_labels, hold_out, try_images
from firefly.continual.desk import Desk, at_desk
from firefly.continual.growing import grow_round, keep_only
from firefly.continual.lesson import Lesson, Pupil
from firefly.continual.lock import lock
from firefly.continual.ownership import Task
from firefly.continual.picking import pick_neurons, read_pick
from firefly.continual.until import read_until
from firefly.errors import FireflyError
from firefly.training.fit import fit
from firefly.training.optimizer import make_optimizer
from firefly.training.recipe import settle

if TYPE_CHECKING:
    from firefly.continual.master import Master


def learn(master: Master, lesson: Lesson, train: Any, valid: Any) -> Task:
    if lesson.name in master:
        raise FireflyError(
            f"task {lesson.name!r} was learnt already, and stays as it is: give the new one another name"
        )
    lesson.check_kinds(bool(len(master)) and read_pick(lesson.pick).how != "none")
    train, valid = hold_out(lesson.name, train, valid, lesson.classes, lesson.seed)
    check_until(lesson, valid)
    try_images(lesson.name, (train, valid), master.blueprint.build(lesson.classes))
    labels = hash_labels(train, valid)
    with at_desk(master.folder, lesson.name, lesson.classes, lesson.tell(), list(master), labels) as desk:
        pupil = resume(master, lesson, desk) or begin(master, lesson, train, desk)
        while True:
            train_round(master, lesson, pupil, train, valid, desk)
            reason = find_reason(lesson, pupil)
            if reason:
                break
            grow_round(master, lesson, pupil, train)
            keep(pupil, desk)
        told = {"accuracy": pupil.rounds[-1]["accuracy"], "stopped": reason, "images": len(train.labels)}
        unheard = pupil.find_unheard(lesson.listen)
        told |= {"unheard": unheard} if unheard else {}
        told |= {"rounds": pupil.rounds, "growths": pupil.growths, "epochs": pupil.epochs, "lesson": lesson.tell()}
        task = master.add(lesson.name, lesson.classes, pupil.lists, pupil.model, told)
        desk.clear()
    return task


def check_until(lesson: Lesson, valid: Data | None) -> None:
    """Refuse to wait for an accuracy that nothing is held out for."""
    until = read_until(lesson.until)
    if valid is None and (until.accuracy, until.plateau) != (None, None):
        raise FireflyError(
            f"task {lesson.name!r}: valid=False, but {until!r} asks for a held-out accuracy: "
            "give valid=, None to hold a tenth of the images out, or Until(parameters=...)"
        )


def begin(master: Master, lesson: Lesson, train: Data, desk: Desk) -> Pupil:
    """The first network of the task: the locked neurons it picks, or a small one of its own."""
    pick = read_pick(lesson.pick)
    if not len(master) or pick.how == "none":
        pupil = Pupil(*master.begin(lesson.classes, None, lesson.seed))
    else:
        whole = pick.multiple if pick.how == "mask" else 1  # the youngest few beyond a multiple are not asked for
        everyone = {name: torch.arange(size // whole * whole or size) for name, size in master.born.items()}
        pupil = Pupil(*master.begin(lesson.classes, everyone, lesson.seed))
        if pick.how == "mask":
            recipe = replace(lesson.recipe, epochs=pick.epochs, ema=None, stop=None, hold=0.0, warmup=0.0)
            kept = pick_neurons(master.blueprint, pupil, pick, train, recipe, desk.find("mask"))
            keep_only(master, pupil, kept)
            pupil.epochs["mask"] = float(pick.epochs)
    keep(pupil, desk)
    return pupil


def keep(pupil: Pupil, desk: Desk) -> None:
    """Put the network where it is found again: the trainings before it are over."""
    lists = {name: numbers.tolist() for name, numbers in pupil.lists.items()}
    content = {"lists": lists, "rounds": pupil.rounds, "growths": pupil.growths, "epochs": pupil.epochs}
    desk.save(content, list_tensors(pupil.model))


def resume(master: Master, lesson: Lesson, desk: Desk) -> Pupil | None:
    found = desk.load()
    if found is None:
        return None
    content, tensors = found
    lists = {name: torch.tensor(numbers, dtype=torch.long) for name, numbers in content["lists"].items()}
    model = master.rebuild(lesson.classes, lists, tensors)
    return Pupil(model, lists, content["rounds"], content["growths"], content["epochs"])


def train_round(master: Master, lesson: Lesson, pupil: Pupil, train: Data, valid: Data | None, desk: Desk) -> None:
    """Train what is the task's own; what older tasks own stays as it is."""
    number = len(pupil.rounds)
    recipe = settle(lesson.first if lesson.first is not None and not number else lesson.recipe)
    model = pupil.model.to(recipe.device)
    optimizer = make_optimizer(model, recipe) if lesson.optimizer is None else lesson.optimizer(model.parameters())
    handle = lock(optimizer, master.hold(model, pupil.lists, pupil.find_unheard(lesson.listen)))
    history = fit(
        model,
        train,
        recipe=recipe,
        test=valid,
        optimizer=optimizer,
        checkpoint=desk.find(f"round-{number}"),
        progress=lesson.progress,
    )
    handle.remove()
    pupil.model = model if history.average is None else history.average
    pupil.epochs["training"] += len(history)
    told = {"accuracy": history.accuracy, "loss": history[-1].loss, "epochs": len(history)}
    pupil.rounds.append({**told, "parameters": history[-1].parameters, "added": count_added(master, lesson, pupil)})


def find_reason(lesson: Lesson, pupil: Pupil) -> str | None:
    """Why not to grow on, or None."""
    if pupil.growths and not any(sum(kinds.values()) for kinds in pupil.growths[-1]["added"].values()):
        return "no candidate would lower the loss"
    accuracies = [round["accuracy"] for round in pupil.rounds]
    reason = read_until(lesson.until).find_reason(accuracies, pupil.rounds[-1]["added"])
    return reason or (f"{lesson.most} growths" if len(pupil.growths) >= lesson.most else None)


def count_added(master: Master, lesson: Lesson, pupil: Pupil) -> int:
    """Parameters that the task adds to the master as it is now."""
    tensors, blueprint, unheard = list_tensors(pupil.model), master.blueprint, pupil.find_unheard(lesson.listen)
    private = sum(tensors[name].numel() for name in blueprint.private if name in blueprint.parameters)
    own = ((master.find_own(lay, pupil.lists, unheard), tensors[name]) for name, lay in blueprint.shared.items())
    return private + sum(int(free.expand(tensor.shape).sum()) for free, tensor in own)
