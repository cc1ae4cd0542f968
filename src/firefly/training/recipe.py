"""How to train: one `Recipe`, all of it checked at once; a run's folder keeps it (app. B.2)."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, fields, replace
from difflib import get_close_matches
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from firefly.errors import FireflyError
from firefly.ranks.talk import count_ranks
from firefly.training.history import Stop
from firefly.training.precision import check_precision
from firefly.training.resident import Batch

Loss = Callable[[nn.Module, Batch], Tensor]
Rates = str | Callable[[float], float]


@dataclass(frozen=True)
class Recipe:
    """How `fit` trains: `fit(model, data, recipe=Recipe(100, lr=0.05))`, or the same words to `fit` itself.

    - `batch`: images of a step. The last batch of an epoch is dropped if not full.
    - `lr`, `momentum`, `nesterov`, `weight_decay`: of SGD; an optimiser of your own has its own.
    - `schedule`: "cosine" (to 0), "step" (a tenth after half and after three quarters), "constant", or a function from
      the time in epochs to a factor of the learning rate; it is asked at every step.
    - `hold`: epochs at the full rate before such a schedule begins. With a grower, up to its last growth: newborn
      neurons then learn at the full rate, too (docs/when-growth-pays.md).
    - `warmup`: epochs at the beginning in which the rate rises to what the schedule says; transformers want it.
    - `loss`: `loss(model, (inputs, labels))`, a scalar; cross entropy with `label_smoothing` if None.
    - `augment`: crops of images padded by 4 pixels, and mirroring; "crop" without mirroring; or False.
    - `cutout`: the side, in pixels, of a square of every training image that is blanked out, at a random place.
    - `mixup`: the largest share of another image, and of its label in the loss, that is mixed into each while training;
      the share is drawn evenly, so 0.5 is what others call alpha = 1. A loss of your own has to mix by itself.
    - `ema`: keep a moving average of the weights and buffers, with this decay per step (0.999, say; at first less). It
      is what is evaluated, it grows along, and `fit` returns it as `History.average`.
    - `seed`: of batches, crops and dropout; the same on every device. The initial weights are the model's.
    - `evaluate_every`: epochs between two evaluations; the last epoch always has one.
    - `stop`: a number of evaluations without a better one, or a function of the `History`.
    - `precision`: "bf16" (arithmetic; the weights stay float32; the default on a GPU) or "float32".

    The rest is where and how fast, and may be another when a run is taken up again:

    - `device`: by default the GPU if there is one. `channels_last`: the memory layout of images and weights; by default
      on a GPU in bf16. `graph`: capture the step as a CUDA graph; by default wherever possible. `compile`: True, or
      options for `torch.compile`. `tune`: let cuDNN try its algorithms. The last two take seconds to a minute, again
      after each growth, and pay in long runs.
    """

    epochs: int
    _: KW_ONLY
    batch: int = 128
    lr: float = 0.1
    schedule: Rates = "cosine"
    hold: float = 0.0
    warmup: float = 0.0
    momentum: float = 0.9
    nesterov: bool = True
    weight_decay: float = 5e-4
    loss: Loss | None = None
    label_smoothing: float = 0.0
    augment: bool | str = True
    cutout: int = 0
    mixup: float = 0.0
    ema: float | None = None
    seed: int = 0
    evaluate_every: int = 1
    stop: Stop = None
    precision: str | None = None
    device: torch.device | str | None = None
    channels_last: bool | None = None
    graph: bool | None = None
    compile: bool | dict[str, Any] = False
    tune: bool = False

    def __post_init__(self) -> None:
        for name, (fits, wanted) in CHECKS.items():
            value = getattr(self, name)
            if not fits(value):
                raise FireflyError(f"{name}={value!r}: give {wanted}")
        if self.hold and (callable(self.schedule) or self.hold >= self.epochs):
            way = "a function says it all" if callable(self.schedule) else f"less than epochs={self.epochs}"
            raise FireflyError(f"hold={self.hold!r}: {way}")
        if self.mixup and self.loss is not None:
            raise FireflyError(
                f"mixup={self.mixup!r} with a loss of your own: it must mix the labels itself; use mixup=0"
            )
        if self.warmup and self.warmup >= self.epochs:
            raise FireflyError(f"warmup={self.warmup!r}: less than epochs={self.epochs}")

    def to_dict(self) -> dict[str, Any]:
        """For JSON; of a function it is only said that there is one."""
        return {field.name: tell(getattr(self, field.name)) for field in fields(self)}


# What a run must be taken up with, to go on exactly; the optimiser's settings are told by the optimiser.
FIXED = (
    *("epochs", "batch", "schedule", "hold", "warmup", "augment"),
    *("cutout", "mixup", "ema", "precision", "seed", "loss", "label_smoothing"),
)

SCHEDULES: dict[str, Callable[[float], float]] = {  # of the share of the training that is done, to a factor of lr
    "cosine": lambda done: 0.5 * (1 + math.cos(math.pi * done)),
    "step": lambda done: 1.0 if done < 0.5 else 0.1 if done < 0.75 else 0.01,
    "constant": lambda done: 1.0,
}


def is_whole(value: Any, least: float = -math.inf) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= least


def is_number(value: Any, least: float = -math.inf, below: float = math.inf) -> bool:
    plain = isinstance(value, (int, float)) and not isinstance(value, bool)
    return plain and math.isfinite(value) and least <= value < below


def is_device(value: Any) -> bool:
    try:
        torch.device(value)
    except (RuntimeError, TypeError, ValueError):
        return False
    return True


def one_of(*choices: Any) -> Callable[[Any], bool]:
    return lambda value: any(value is choice or (isinstance(value, str) and value == choice) for choice in choices)


Check = tuple[Callable[[Any], bool], str]
COUNT: Check = (lambda value: is_whole(value, 1), "a whole number from 1 up")
NUMBER: Check = (lambda value: is_number(value, 0), "a finite number from 0 up")
FLAG: Check = (one_of(True, False), "True or False")
CHOICE: Check = (one_of(None, True, False), "True, False, or None to choose by the device")
CHECKS: dict[str, Check] = {
    **dict.fromkeys(("epochs", "batch", "evaluate_every"), COUNT),
    **dict.fromkeys(("lr", "hold", "warmup", "momentum", "weight_decay"), NUMBER),
    **dict.fromkeys(("nesterov", "tune"), FLAG),
    **dict.fromkeys(("channels_last", "graph"), CHOICE),
    "schedule": (
        lambda value: callable(value) or (isinstance(value, str) and value in SCHEDULES),
        f"{', '.join(map(repr, SCHEDULES))}, or a function of the time in epochs",
    ),
    "loss": (
        lambda value: value is None or (callable(value) and not isinstance(value, (nn.modules.loss._Loss, type))),
        "a function loss(model, (inputs, labels)) that returns a scalar tensor",
    ),
    "label_smoothing": (lambda value: is_number(value, 0, 1), "a share from 0 up to, not including, 1"),
    "augment": (one_of(True, False, "crop"), "True (crop and mirror), 'crop' (never mirror) or False"),
    "cutout": (lambda value: is_whole(value, 0), "the side of the square in pixels, a whole number; 0 for none"),
    "mixup": (lambda value: is_number(value, 0) and value <= 0.5, "a share from 0 to 0.5"),
    "ema": (
        lambda value: value is None or (is_number(value, 0, 1) and value > 0),
        "the decay per step, between 0 and 1, such as 0.999; None for no average",
    ),
    "seed": (is_whole, "a whole number"),
    "stop": (
        lambda value: value is None or is_whole(value, 1) or (callable(value) and not isinstance(value, type)),
        "a number of evaluations without improvement, or a function of History",
    ),
    "precision": (one_of(None, "bf16", "float32"), "'bf16' or 'float32'"),
    "device": (lambda value: value is None or is_device(value), "a device such as 'cuda', 'cuda:1' or 'cpu'"),
    "compile": (lambda value: type(value) in (bool, dict), "True, False, or a dict of options for torch.compile"),
}


def read_recipe(recipe: Recipe | None, epochs: int | None, how: Mapping[str, Any]) -> Recipe:
    """The recipe that `fit` was given, whole or in words, or one with the other changed."""
    check_words("fit", how, [field.name for field in fields(Recipe)])
    changes = {**how, **({} if epochs is None else {"epochs": epochs})}
    if recipe is None:
        if epochs is None:
            raise FireflyError("for how many epochs? Give fit(model, data, epochs=100) or recipe=Recipe(100, ...)")
        return Recipe(**changes)
    if not isinstance(recipe, Recipe):
        raise FireflyError(f"recipe is a {type(recipe).__name__}: give a firefly.training.Recipe")
    return replace(recipe, **changes)


def check_words(called: str, words: Iterable[str], names: Sequence[str]) -> None:
    """Refuse an option that is none of these."""
    for word in words:
        if word not in names:
            close = get_close_matches(word, names, 1)
            hint = f"did you mean {close[0]}?" if close else f"it knows {', '.join(names)}"
            raise FireflyError(f"{called} has no option {word!r}: {hint}")


def settle(recipe: Recipe) -> Recipe:
    """The recipe with all that was left open decided for the device."""
    place = find_device(recipe.device)
    precision, layout = check_precision(recipe.precision, place), recipe.channels_last
    layout = place.type == "cuda" and precision == "bf16" if layout is None else layout
    return replace(recipe, device=place, precision=precision, channels_last=layout)


def find_device(device: torch.device | str | None) -> torch.device:
    """The device to train on; a GPU with its number."""
    try:
        place = torch.device(device or ("cuda" if torch.cuda.is_available() else "cpu"))
    except (RuntimeError, TypeError) as error:
        raise FireflyError(f"device={device!r} is none that torch knows: use 'cuda' or 'cpu'") from error
    if place.type != "cuda":
        return place
    if not torch.cuda.is_available():
        raise FireflyError(f"device={place}, but torch finds no GPU: use device='cpu'")
    if place.index is not None and place.index >= torch.cuda.device_count():
        raise FireflyError(f"device={place}, but there are {torch.cuda.device_count()} GPUs, counted from 0")
    if place.index is not None:
        return place
    own = int(os.environ.get("LOCAL_RANK", 0)) if count_ranks() > 1 else None  # a GPU for each rank, under torchrun
    return torch.device("cuda", torch.cuda.current_device() if own is None else own % torch.cuda.device_count())


def tell(value: Any) -> Any:
    """A value as JSON has it."""
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if isinstance(value, Mapping):
        return {str(key): tell(item) for key, item in value.items()}
    return "a function" if callable(value) else str(value)


def list_factors(
    schedule: Rates, epoch: int, epochs: int, steps: int, hold: float = 0.0, warmup: float = 0.0
) -> list[float]:
    """What to multiply the learning rate with at each step of an epoch (the first is 0).

    A schedule is a name, begun after `hold` epochs, or a function of the time in epochs: 3.25 is a quarter into the
    fourth. In the first `warmup` epochs the rate rises to it.
    """
    times = [epoch + step / steps for step in range(steps)]
    if isinstance(schedule, str):
        factors: list[Any] = [SCHEDULES[schedule](max(0.0, time - hold) / (epochs - hold)) for time in times]
    else:
        factors = [schedule(time) for time in times]
    for time, factor in zip(times, factors):
        if isinstance(factor, str) or not hasattr(factor, "__float__") or not math.isfinite(factor):
            raise FireflyError(f"schedule({time:g}) returned {factor!r}: give a finite factor of the learning rate")
    rise = [min(1.0, (time + 1 / steps) / warmup) if warmup else 1.0 for time in times]
    return [up * float(factor) for up, factor in zip(rise, factors)]


def make_loss(label_smoothing: float, mixup: float = 0.0) -> Loss:
    """Cross entropy of the model's answers, in float32; with `mixup` to images and labels that are mixed in pairs."""

    def cross_entropy(model: nn.Module, batch: Batch) -> Tensor:
        images, labels = batch
        return functional.cross_entropy(model(images).float(), labels, label_smoothing=label_smoothing)

    def mixed(model: nn.Module, batch: Batch) -> Tensor:
        images, labels = batch
        if not images.is_floating_point() or labels.ndim != 1 or labels.is_floating_point():
            raise FireflyError(
                f"mixup={mixup!r} takes images and a class for each, not inputs of {images.dtype} with labels of shape "
                f"{tuple(labels.shape)}: use mixup=0"
            )
        share = mixup * torch.rand(len(images), device=images.device)
        part = share.view(-1, *[1] * (images.ndim - 1))
        answers = model(images + part * (images.flip(0) - images)).float()
        own, other = (
            functional.cross_entropy(answers, one, label_smoothing=label_smoothing, reduction="none")
            for one in (labels, labels.flip(0))
        )
        return (own + share * (other - own)).mean()

    return mixed if mixup else cross_entropy
