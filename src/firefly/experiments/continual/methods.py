"""Who learns the tasks: Firefly and its variants, and what it is compared with, all with the same recipe and epochs.

A method is a generator: after each task it says how well every task seen so far does, and how many parameters all of
them take. Every training is kept in a folder of its own, so what was done is not done again after a stop. Each task
has a head and norms of its own in every method; only `joint` has one network for all.

    firefly       Algorithm 2: unlocking and new neurons in one ranking
    firefly-unlock, firefly-new   only one of the two kinds
    firefly-all, firefly-mask, firefly-none   old neurons are picked all, by a trained mask, or not at all
    firefly-deaf  locked neurons do not listen to brand-new ones
    firefly-random   the same candidates, with the directions of step one, chosen at random
    random, uniform   no step one: random candidates in random directions, or the same number in every layer
    frozen        one network as large as Firefly's in the end, trained on the first task; then norms and heads only
    individual    a network per task, as large as one likes;  equal: all of them together as large as Firefly's
    last          the same as equal, but each begins with the weights of the one before
    fine-tune     one network as large as Firefly's, trained on one task after the other
    ewc           the same, held back by elastic weight consolidation (Kirkpatrick et al., 2017)
    cpg           one network at most as large as Firefly's: prune, pick and grow (Hung et al., 2019)
    joint         the same as fine-tune, trained on all tasks at once: the ceiling
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import firefly
from firefly.baselines.random import select_at_random
from firefly.continual import Master, Pick, metrics
from firefly.experiments.continual.classroom import Class, Scores, Stream
from firefly.experiments.continual.course import find_network
from firefly.experiments.continual.cpg import run_cpg
from firefly.experiments.continual.rivals import run_equal, run_individual, run_joint, run_shared
from firefly.method import Method


def run_firefly(room: Class, kinds: str = "both", pick: str | None = None, **more: Any) -> Stream:
    course = room.course
    pick = pick or course.pick
    neighborhood = {"both": (0, 1), "unlock": (0,), "new": (1,)}[kinds]
    new = firefly.New(course.candidates, course.new_epsilon)
    split = [firefly.Split(course.split_epsilon), new]
    later = split if pick == "none" else [(firefly.Unlock(course.unlock_epsilon), new)[k] for k in neighborhood]
    add: Any = firefly.Neurons(course.neurons) if course.neurons else firefly.Parameters(course.parameters)
    how: dict[str, Any] = {"steps": course.steps, "lr": course.rate, "method": "firefly", **more}
    begin = course.recipe(room.device, course.start_epochs)
    start = firefly.Parameters(course.start) & firefly.Multiples(course.multiple)
    first = {"neighborhood": split, "budget": start, "first": begin}
    warm = course.recipe(room.device, course.first_epochs)
    rest = {"neighborhood": later, "budget": add, "growths": course.growths, "until": course.until, "first": warm}
    picked = Pick(pick, epochs=course.mask_epochs, price=course.price, multiple=course.multiple)
    yield from run_master(room, course.widths, first, {**rest, "pick": picked}, how)


def run_frozen(room: Class) -> Stream:
    yield from run_master(room, room.fit_shared(), {"growths": 0}, {"growths": 0}, {})


def run_master(room: Class, widths: int, first: dict[str, Any], rest: dict[str, Any], how: dict[str, Any]) -> Stream:
    """Learn the tasks that the folder does not hold yet; after each, ask for all of those before it."""
    example = find_network(room.course)[1]
    master = Master(lambda classes: room.make(classes, widths), example, room.folder / "master")
    scores: Scores = {}
    for number, part in enumerate(room.parts):
        if part.name not in master:
            options = {**how, **(rest if number else first), "recipe": room.course.recipe(room.device)}
            options |= {"classes": room.course.classes, "seed": 1000 * room.seed + number, "progress": False}
            master.learn(part.name, part.train, part.valid or False, **options)
        seen = room.parts[: number + 1]
        scores = {one.name: room.score(master.network(one.name), one) for one in seen}
        row = metrics.account(master)[number]
        union = row.pop("union")
        spent = row["epochs"]
        more = {key: row[key] for key in ("owned", "private", "mask_bits", "bytes", "neurons", "grown")}
        seconds = (sum(growth["seconds"].values()) for growth in master[part.name].told["growths"])
        more |= {"growth_seconds": round(sum(seconds), 2)}
        yield scores, union, {**more, "spent": spent, "epochs": int(spent["training"] + spent["mask"])}


METHODS: dict[str, Callable[[Class], Stream]] = {
    "firefly": run_firefly,
    "firefly-unlock": lambda room: run_firefly(room, "unlock"),
    "firefly-new": lambda room: run_firefly(room, "new"),
    "firefly-all": lambda room: run_firefly(room, pick="all"),
    "firefly-mask": lambda room: run_firefly(room, pick="mask"),
    "firefly-none": lambda room: run_firefly(room, pick="none"),
    "firefly-deaf": lambda room: run_firefly(room, listen=False),
    "firefly-random": lambda room: run_firefly(room, method=Method("firefly-random", select=select_at_random)),
    "random": lambda room: run_firefly(room, method="random"),
    "uniform": lambda room: run_firefly(room, method="uniform"),
    "frozen": run_frozen,
    "individual": run_individual,
    "equal": run_equal,
    "last": lambda room: run_equal(room, follow=True),
    "fine-tune": run_shared,
    "ewc": lambda room: run_shared(room, room.course.strength),
    "cpg": run_cpg,
    "joint": run_joint,
}
SIZED = ("frozen", "equal", "last", "fine-tune", "ewc", "cpg", "joint")  # as large as Firefly's
