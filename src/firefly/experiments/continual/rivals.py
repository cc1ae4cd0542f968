"""What Firefly is compared with in continual learning: networks of their own, one network, EWC, all tasks at once."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from firefly.continual.blueprint import list_tensors, read_blueprint
from firefly.experiments.continual.classroom import Class, Scores, Stream, begin_as, count_epochs, how_to_fit
from firefly.experiments.continual.course import Course, Part, find_network, fit_widths
from firefly.experiments.rows import count
from firefly.training import fit
from firefly.training.recipe import make_loss
from firefly.training.resident import finish, upload


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
        held = fit(model, part.train, **how_to_fit(room, part)).accuracy
        scores[part.name] = room.score(model, part)
        total, before = total + count(model), model
        told = {} if held is None else {"held_out": held}
        yield dict(scores), total, {"widths": widths, "epochs": count_epochs(room), **told}


def run_equal(room: Class, follow: bool = False) -> Stream:
    yield from run_individual(room, room.fit_widths(room.size / len(room.parts)), follow)


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
        loss = None if penalty is None else penalty.make_loss(model, strength, room.course)
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

    def make_loss(self, model: nn.Module, strength: float, course: Course) -> Callable[[nn.Module, Any], Tensor]:
        """The loss of all methods and the penalty; weights are the model's own, also where a step computes with copies.

        Where the penalty would be so steep that steps of this learning rate diverge, it is as steep as they allow.
        """
        own, shared = dict(model.named_parameters()), make_loss(course.label_smoothing, course.mixup)
        middle = {name: self.centre[name] / weight.clamp(min=1e-12) for name, weight in self.weight.items()}
        steep = {name: (strength * weight).clamp(max=1 / course.lr) for name, weight in self.weight.items()}

        def loss(network: nn.Module, batch: Any) -> Tensor:
            far = sum((one * (own[name] - middle[name]).square()).sum() for name, one in steep.items())
            return shared(network, batch) + far / 2

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
    classes, tasks = room.course.classes, len(room.parts)
    widths = room.round_up(fit_widths(lambda widths: room.make(classes * tasks, widths), room.size))
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(room.seed)
        model = room.make(classes * tasks, widths)
    first = vars(room.parts[0].train)
    images = torch.cat([part.train.images for part in room.parts])
    labels = torch.cat([part.train.labels + k * classes for k, part in enumerate(room.parts)])

    def loss(network: nn.Module, batch: Any) -> Tensor:
        inputs, targets = batch
        answers = network(inputs).float().unflatten(1, (tasks, classes))
        mine = answers.gather(1, (targets // classes)[:, None, None].expand(-1, 1, classes))[:, 0]
        return functional.cross_entropy(mine, targets % classes, label_smoothing=room.course.label_smoothing)

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
