"""What a model of the zoo is, and the tasks that the models learn."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, TypeVar

import torch
import torch.nn.functional as F
from torch import Generator, Tensor, nn

Batch = tuple[tuple[Tensor, ...], Any]  # forward's arguments, target
Build = TypeVar("Build", bound=Callable[[], nn.Module])


@dataclass(frozen=True)
class Entry:
    """One model of the zoo and what is expected of it."""

    name: str
    make: Callable[[], nn.Module]
    example: Callable[[], tuple[Tensor, ...]]
    batches: Callable[[], list[Batch]]
    loss: Callable[[nn.Module, Batch], Tensor]
    grows: dict[str, int]
    pinned: dict[str, str] = field(default_factory=dict)
    either: dict[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class Task:
    """Where the batches come from, and the loss of an output against a target."""

    draw: Callable[[Generator, int], Batch]
    loss: Callable[[Any, Any], Tensor] = F.cross_entropy


ZOO: dict[str, Entry] = {}


def specimen(
    name: str,
    task: Task,
    grows: dict[str, int],
    pinned: dict[str, str] | None = None,
    either: dict[str, int] | None = None,
) -> Callable[[Build], Build]:
    """Put the decorated class or factory into the zoo."""

    def add(build: Build) -> Build:
        def make() -> nn.Module:
            torch.manual_seed(0)
            return build()

        def draw(seed: int, size: int) -> Batch:
            return task.draw(Generator().manual_seed(seed), size)

        def loss(model: nn.Module, batch: Batch) -> Tensor:
            inputs, target = batch
            return task.loss(model(*inputs), target)

        if name in ZOO:
            raise KeyError(f"the zoo already has a {name!r}")
        example, batches = (lambda: draw(99, 4)[0]), (lambda: [draw(seed, 16) for seed in range(4)])
        ZOO[name] = Entry(name, make, example, batches, loss, grows, pinned or {}, either or {})
        return build

    return add


# ---- tasks ----------------------------------------------------------------------------------------------------------


def fixed(*shape: int) -> Tensor:
    return torch.randn(*shape, generator=Generator().manual_seed(1234))


def noisy_classes(*shape: int, count: int = 4) -> Callable[[Generator, int], Batch]:
    """Noisy copies of one prototype per class; its mean over positions tells the class too."""
    prototypes = fixed(count, *shape) / 2 + fixed(count, shape[0], *[1] * (len(shape) - 1))

    def draw(generator: Generator, size: int) -> Batch:
        labels = torch.randint(count, (size,), generator=generator)
        return (prototypes[labels] + 0.7 * torch.randn(size, *shape, generator=generator),), labels

    return draw


def draw_pairs(generator: Generator, size: int) -> Batch:
    """Two vectors, which fall in the same class or not."""
    (left,), a = noisy_classes(8)(generator, size)
    (right,), b = noisy_classes(8)(generator, size)
    return (left, right), (a == b).long()


def draw_image_and_vector(generator: Generator, size: int) -> Batch:
    (image,), a = noisy_classes(3, 8, 8, count=2)(generator, size)
    (vector,), b = noisy_classes(8, count=2)(generator, size)
    return (image, vector), 2 * a + b


def draw_documents(generator: Generator, size: int) -> Batch:
    """Eight of 20 tokens; each votes for a class."""
    tokens = torch.randint(20, (size, 8), generator=generator)
    return (tokens,), fixed(20, 4)[tokens].sum(1).argmax(1)


def draw_text(generator: Generator, size: int) -> Batch:
    """The next token is three times the last one plus one, modulo 11, and wrong one time in ten."""
    text = torch.randint(11, (size, 9), generator=generator)
    for t in range(8):
        known = torch.rand(size, generator=generator) > 0.1
        text[:, t + 1] = torch.where(known, (3 * text[:, t] + 1) % 11, text[:, t + 1])
    return (text[:, :-1].clone(),), text[:, 1:].clone()


def image_to_image(paint: Callable[[Tensor], Tensor]) -> Callable[[Generator, int], Batch]:
    def draw(generator: Generator, size: int) -> Batch:
        (x,), _ = noisy_classes(3, 8, 8)(generator, size)
        return (x,), paint(x)

    return draw


def draw_copies(generator: Generator, size: int) -> Batch:
    (x,), _ = noisy_classes(8)(generator, size)
    return (x,), x


def draw_class_and_norm(generator: Generator, size: int) -> Batch:
    (x,), labels = noisy_classes(8)(generator, size)
    return (x,), (labels, x.norm(dim=1, keepdim=True))


def token_entropy(logits: Tensor, target: Tensor) -> Tensor:
    return F.cross_entropy(logits.flatten(0, 1), target.flatten())


VECTORS = Task(noisy_classes(8))
IMAGES = Task(noisy_classes(3, 8, 8))
SIGNALS = Task(noisy_classes(2, 16))
VOLUMES = Task(noisy_classes(1, 6, 6, 6))
PAIRS = Task(draw_pairs)
DOCUMENTS = Task(draw_documents)
TEXT = Task(draw_text, token_entropy)
COPIES = Task(draw_copies, F.mse_loss)
BLUR = Task(image_to_image(lambda x: F.avg_pool2d(x, 3, 1, 1)), F.mse_loss)
ENLARGE = Task(image_to_image(lambda x: F.interpolate(x, scale_factor=2.0)), F.mse_loss)
