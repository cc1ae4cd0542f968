"""Who learns the tasks: Firefly and its variants, and what it is compared with, all with the same recipe and epochs.

A method is a generator: after each task it says how well every task seen so far does, and how many parameters all of
them take. Every training is kept in a folder of its own, so what was done is not done again after a stop. Each task
has a head and norms of its own in every method; only `joint` has one network for all.

    firefly       Algorithm 2: unlocking and new neurons in one ranking
    firefly-unlock, firefly-new   only one of the two kinds
    firefly-all, firefly-mask     old neurons are picked all, or by a trained mask
    random, uniform   the same number of neurons, chosen at random, or the same in every layer
    frozen        one network as large as Firefly's in the end, trained on the first task; then norms and heads only
    individual    a network per task, as large as one likes;  equal: all of them together as large as Firefly's
    last          the same as equal, but each begins with the weights of the one before
    fine-tune     one network as large as Firefly's, trained on one task after the other
    ewc           the same, held back by elastic weight consolidation (Kirkpatrick et al., 2017)
    joint         the same, trained on all tasks at once: the ceiling
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

import firefly
from firefly.continual import Master, Pick, metrics
from firefly.continual.blueprint import Blueprint, list_tensors, read_blueprint
from firefly.experiments.continual_course import Course, Part, find_network, fit_widths
from firefly.experiments.rows import count
from firefly.training import fit
from firefly.training.resident import finish, upload

Scores = dict[str, float]
Step = tuple[Scores, int, dict[str, Any]]  # accuracies of the tasks seen, parameters of all, whatever else to keep
Stream = Iterator[Step]


@dataclass(frozen=True, eq=False)
class Class:
    """Whom to teach, what and where."""

    course: Course
    parts: list[Part]
    device: torch.device
    folder: Path
    seed: int
    size: int = 0  # parameters that Firefly took in the end, for methods of equal size

    def make(self, classes: int, widths: Any) -> nn.Module:
        return find_network(self.course)[0](classes, widths)

    def build(self, widths: Any, number: int) -> nn.Module:
        """A fresh network for one task."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(1000 * self.seed + number)
            return self.make(self.course.classes, widths)

    def score(self, model: nn.Module, part: Part) -> float:
        return metrics.measure_one(model, part.test, self.device)

    def fit_widths(self, parameters: float) -> int:
        return fit_widths(lambda widths: self.make(self.course.classes, widths), parameters)

    def share(self, blueprint: Blueprint, model: nn.Module) -> int:
        """What one network takes with heads and norms for all tasks."""
        names = set(blueprint.private)
        private = sum(p.numel() for name, p in model.named_parameters() if name in names)
        return count(model) + (self.course.ways - 1) * private

    def fit_shared(self) -> int:
        """The channels of one network for all tasks that is as large as Firefly's."""
        example = find_network(self.course)[1]
        blueprint = read_blueprint(lambda classes: self.make(classes, 2), example)
        widths = 1
        while self.share(blueprint, self.make(self.course.classes, widths + 1)) <= self.size:
            widths += 1
        return widths


# ---- Firefly ---------------------------------------------------------------------------------------------------------


def run_firefly(room: Class, kinds: str = "both", pick: str | None = None, method: str = "firefly") -> Stream:
    course = room.course
    neighborhood = {"both": (0, 1), "unlock": (0,), "new": (1,)}[kinds]
    new = firefly.New(course.candidates, course.new_epsilon)
    later = [(firefly.Unlock(course.unlock_epsilon), new)[k] for k in neighborhood]
    add: Any = firefly.Neurons(course.neurons) if course.neurons else firefly.Parameters(course.parameters)
    how: dict[str, Any] = {"steps": course.steps, "lr": course.rate, "method": method}
    first = {"neighborhood": [firefly.Split(course.split_epsilon), new], "budget": firefly.Parameters(course.start)}
    warm = course.recipe(room.device, course.first_epochs)
    rest = {"neighborhood": later, "budget": add, "growths": course.growths, "until": course.until, "first": warm}
    picked = Pick(pick or course.pick, epochs=course.mask_epochs)
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
            seed = 1000 * room.seed + number
            master.learn(part.name, part.train, part.valid, classes=room.course.classes, seed=seed, **options)
        seen = room.parts[: number + 1]
        scores = {one.name: room.score(master.network(one.name), one) for one in seen}
        row = metrics.account(master)[number]
        union = row.pop("union")
        spent = row["epochs"]
        more = {key: row[key] for key in ("owned", "private", "mask_bits", "bytes", "grown")}
        yield scores, union, {**more, "spent": spent, "epochs": int(spent["training"] + spent["mask"])}


# ---- what it is compared with ----------------------------------------------------------------------------------------


def run_individual(room: Class, widths: Any = None, follow: bool = False) -> Stream:
    """A network per task; if they follow, each begins where the one before ended."""
    widths = widths or room.course.own
    scores: Scores = {}
    before: nn.Module | None = None
    total = 0
    for number, part in enumerate(room.parts):
        model = room.build(widths, number)
        if follow and before is not None:
            begin_as(model, before)
        fit(model, part.train, **how_to_fit(room, part))
        scores[part.name] = room.score(model, part)
        total, before = total + count(model), model
        yield dict(scores), total, {"widths": widths, "epochs": count_epochs(room)}


def run_equal(room: Class, follow: bool = False) -> Stream:
    yield from run_individual(room, room.fit_widths(room.size / room.course.ways), follow)


def count_epochs(room: Class) -> int:
    """Of one task: as many as Firefly trains a later one."""
    course = room.course
    mask = course.mask_epochs if course.pick == "mask" else 0
    return mask + course.first_epochs + course.growths * course.epochs


def how_to_fit(room: Class, part: Part, **how: Any) -> dict[str, Any]:
    """Where, how long and with which recipe."""
    recipe = room.course.recipe(room.device, count_epochs(room), **how)
    folder = room.folder / part.name.replace(" ", "-")
    return {"recipe": recipe, "test": part.valid, "checkpoint": folder, "progress": False}


@torch.no_grad()
def begin_as(model: nn.Module, other: nn.Module, names: set[str] | None = None) -> None:
    """Give the model the other's tensors, all but the head; or only those of these names."""
    theirs = list_tensors(other)
    for name, tensor in list_tensors(model).items():
        if name in names if names is not None else not name.startswith("head."):
            tensor.copy_(theirs[name])


def run_shared(room: Class, strength: float = 0.0) -> Stream:
    """One network for task after task, with norms and a head for each; `strength` of EWC holds it back."""
    widths, example = room.fit_shared(), find_network(room.course)[1]
    blueprint = read_blueprint(lambda classes: room.make(classes, widths), example)
    private = set(blueprint.private)
    models: dict[str, nn.Module] = {}
    penalty: Penalty | None = None
    for number, part in enumerate(room.parts):
        model = room.build(widths, number).to(room.device)
        if models:
            begin_as(model, list(models.values())[-1])
        loss = None if penalty is None else penalty.make_loss(model, strength, room.course.lr)
        fit(model, part.train, **how_to_fit(room, part, loss=loss))
        if strength:
            shared = {name: p for name, p in model.named_parameters() if name not in private}
            penalty = (penalty or Penalty({}, {})).add(shared, measure_fisher(model, part, room, shared))
        models[part.name] = model
        for older in models.values():
            begin_as(older, model, {name for name in list_tensors(model) if name not in private})
        scores = {one.name: room.score(models[one.name], one) for one in room.parts[: number + 1]}
        yield scores, room.share(blueprint, model), {"widths": widths, "epochs": count_epochs(room)}


@dataclass(frozen=True)
class Penalty:
    """Σ F (θ - θ*)² over all tasks so far, as one square: the sum of F, and of F·θ*."""

    weight: dict[str, Tensor]
    centre: dict[str, Tensor]

    def add(self, parameters: dict[str, Any], fisher: dict[str, Tensor]) -> Penalty:
        weight = {name: self.weight.get(name, 0) + one for name, one in fisher.items()}
        centre = {n: self.centre.get(n, 0) + fisher[n] * p.detach() for n, p in parameters.items()}
        return Penalty(weight, centre)

    def make_loss(self, model: nn.Module, strength: float, lr: float) -> Callable[[nn.Module, Any], Tensor]:
        """Cross entropy and the penalty; the weights are the model's own, also where a step computes with copies.

        Where the penalty would be so steep that steps of this learning rate diverge, it is as steep as they allow.
        """
        own = dict(model.named_parameters())
        middle = {name: self.centre[name] / weight.clamp(min=1e-12) for name, weight in self.weight.items()}
        steep = {name: (strength * weight).clamp(max=1 / lr) for name, weight in self.weight.items()}

        def loss(network: nn.Module, batch: Any) -> Tensor:
            images, labels = batch
            far = sum((one * (own[name] - middle[name]).square()).sum() for name, one in steep.items())
            return functional.cross_entropy(network(images).float(), labels) + far / 2

        return loss


def measure_fisher(model: nn.Module, part: Part, room: Class, parameters: dict[str, Any]) -> dict[str, Tensor]:
    """The mean square of the gradient of log p(y|x), y drawn from the model's own answers, image by image."""
    data = upload(part.train, room.device)
    generator = torch.Generator().manual_seed(room.seed)
    numbers = torch.randperm(len(data), generator=generator)[: room.course.fisher]
    model.eval()
    squares = {name: torch.zeros_like(p) for name, p in parameters.items()}
    for number in numbers.tolist():
        image = finish(data, data.images[number : number + 1])
        answers = model(image).float().log_softmax(1)
        drawn = torch.multinomial(answers.detach().exp().cpu(), 1, generator=generator).item()
        found = torch.autograd.grad(answers[0, int(drawn)], list(parameters.values()))
        for square, gradient in zip(squares.values(), found):
            square += gradient.square() / len(numbers)
    return squares


def run_joint(room: Class) -> Stream:
    """One network for all classes; each answer is among those of its task."""
    course = room.course
    classes = course.classes
    widths = fit_widths(lambda widths: room.make(classes * course.ways, widths), room.size)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(room.seed)
        model = room.make(classes * course.ways, widths)
    first = vars(room.parts[0].train)
    images = torch.cat([part.train.images for part in room.parts])
    labels = torch.cat([part.train.labels + k * classes for k, part in enumerate(room.parts)])

    def loss(network: nn.Module, batch: Any) -> Tensor:
        inputs, targets = batch
        answers = network(inputs).float().unflatten(1, (course.ways, classes))
        mine = answers.gather(1, (targets // classes)[:, None, None].expand(-1, 1, classes))[:, 0]
        return functional.cross_entropy(mine, targets % classes)

    whole = Part("all", (), SimpleNamespace(**{**first, "images": images, "labels": labels}), None, None)
    fit(model, whole.train, **how_to_fit(room, whole, loss=loss))
    scores = {}
    for number, part in enumerate(room.parts):
        scores[part.name] = room.score(Slice(model, number * classes, classes), part)
    yield scores, count(model), {"widths": widths, "epochs": count_epochs(room)}


class Slice(nn.Module):
    """A network's answers among the classes of one task."""

    def __init__(self, network: nn.Module, first: int, classes: int) -> None:
        super().__init__()
        self.network, self.first, self.classes = network, first, classes

    def forward(self, images: Tensor) -> Tensor:
        answers: Tensor = self.network(images)
        return answers[:, self.first : self.first + self.classes]


METHODS: dict[str, Callable[[Class], Stream]] = {
    "firefly": run_firefly,
    "firefly-unlock": lambda room: run_firefly(room, "unlock"),
    "firefly-new": lambda room: run_firefly(room, "new"),
    "firefly-all": lambda room: run_firefly(room, pick="all"),
    "firefly-mask": lambda room: run_firefly(room, pick="mask"),
    "random": lambda room: run_firefly(room, method="random"),
    "uniform": lambda room: run_firefly(room, method="uniform"),
    "frozen": run_frozen,
    "individual": run_individual,
    "equal": run_equal,
    "last": lambda room: run_equal(room, follow=True),
    "fine-tune": run_shared,
    "ewc": lambda room: run_shared(room, room.course.strength),
    "joint": run_joint,
}
SIZED = ("frozen", "equal", "last", "fine-tune", "ewc", "joint")  # as large as Firefly's
