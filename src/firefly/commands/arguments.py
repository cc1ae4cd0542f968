"""What the words of a command mean: budgets, shapes, losses and optimisers, by name or as MODULE:FUNCTION."""

from __future__ import annotations

import math
import re
from argparse import ArgumentTypeError
from collections.abc import Callable, Mapping
from difflib import get_close_matches
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.optim import SGD, Adam, AdamW, Optimizer
from torch.utils._pytree import tree_map

from firefly.commands.addresses import blame, find, present_folder
from firefly.errors import FireflyError, first_line
from firefly.method import find_method
from firefly.neighborhood.kinds import Kind, New
from firefly.stages.budget import Budget, Flops, Layers, Multiples, Neurons, Parameters
from firefly.stages.losses import Loss
from firefly.training.optimizer import check_optimizer

# ---- budgets ---------------------------------------------------------------------------------------------------------

AMOUNTS = {"parameters": Parameters, "neurons": Neurons, "flops": Flops}
COUNTS = {"layers": Layers, "multiples": Multiples}
POWERS = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "b": 10**9}
BUDGETS = "parameters=200k, parameters=30%, neurons=64, flops=1.5M, layers=2, multiples=8, or several with commas"


def read_budget(text: str) -> Budget:
    """`parameters=200k,multiples=8`, for one growth."""
    budget: Budget | None = None
    for part in text.split(","):
        one = read_limit(part.strip(), text)
        budget = one if budget is None else budget & one
    assert budget is not None
    if isinstance(budget, Multiples):
        raise FireflyError(f"--budget {text} does not say how much may grow: join it, e.g. neurons=64,{text}")
    return budget


def read_limit(part: str, text: str) -> Budget:
    """`flops=1.5M` or `neurons=30%`."""
    name, _, value = part.partition("=")
    known = [*AMOUNTS, *COUNTS]
    if name not in known:
        close = get_close_matches(name, known, 1)
        hint = f"did you mean {close[0]}={value or '200k'}?" if close else f"write {BUDGETS}"
        raise FireflyError(f"--budget {text}: {part!r} is no budget; {hint}")
    number, share = read_number(value)
    if number is None or (name in COUNTS and (share or number != int(number))):
        raise FireflyError(f"--budget {text}: {value!r} is no amount of {name}; write {BUDGETS}")
    if 0 < number < 1 and not share:
        raise FireflyError(f"--budget {text}: that is less than one; a share is written {name}={100 * number:g}%")
    try:
        if name in COUNTS:
            return COUNTS[name](int(number))
        return AMOUNTS[name](fraction=number) if share else AMOUNTS[name](number)
    except FireflyError as error:
        raise FireflyError(f"--budget {text}: {error}") from error


def read_number(text: str) -> tuple[float | None, bool]:
    """A number as people write it (200k, 1.5M, 2e5, 200_000, 30%), and whether it is a share; None if it is none."""
    found = re.fullmatch(r"(\d[\d_]{0,30}(?:\.\d{0,30})?(?:[eE]\d{1,2})?) ?([kKmMgGbB%]?)", text.strip(), re.ASCII)
    if found is None:
        return None, False
    value = float(found[1].replace("_", ""))
    if found[2] == "%":
        return value / 100, True
    value *= POWERS[found[2].lower()]
    return (int(value) if value == int(value) else value) if math.isfinite(value) else None, False


# ---- shapes ----------------------------------------------------------------------------------------------------------


def read_shape(text: str) -> tuple[int, ...]:
    """`2,3,32,32`."""
    sizes = text.split(",")
    if not all(size.strip().isdecimal() and len(size) < 20 and int(size) > 0 for size in sizes):
        raise ArgumentTypeError(f"{text!r} is not a shape such as 2,3,32,32")
    return tuple(map(int, sizes))


# ---- kinds of growth -------------------------------------------------------------------------------------------------


def choose_kinds(method: str, new: int | None) -> list[Kind]:
    """The kinds of growth that a method knows; `new`: how many brand-new neurons for each width, 0 for none."""
    known = find_method(method).neighborhood
    if new and not any(isinstance(kind, New) for kind in known):
        raise FireflyError(f"--new {new} with --method {method}: it only splits neurons; leave --new out")
    kinds = [New(new) if isinstance(kind, New) else kind for kind in known if new != 0 or not isinstance(kind, New)]
    if not kinds:
        raise FireflyError(f"--new 0 with --method {method}: it only adds brand-new neurons; leave --new out")
    return kinds


# ---- losses ----------------------------------------------------------------------------------------------------------

LOSSES: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "cross_entropy": functional.cross_entropy,
    "mse": functional.mse_loss,
    "l1": functional.l1_loss,
    "huber": functional.huber_loss,
    "bce": functional.binary_cross_entropy_with_logits,
    "nll": functional.nll_loss,
}
OWN = "the model's own: model(**batch).loss"


def read_loss(name: str, device: torch.device) -> Loss:
    """A loss of a model and a batch that may lie anywhere: one of `LOSSES`, "own", or MODULE:FUNCTION."""
    if ":" in name:
        inner = find(name, "mypackage.training:loss")
        if not callable(inner) or isinstance(inner, type):
            raise FireflyError(f"--loss {name}: that is no function loss(model, batch) that returns a scalar tensor")
    elif name == "own":
        inner = ask_model
    elif name in LOSSES:
        inner = compare(LOSSES[name])
    else:
        known = f"known are {', '.join(LOSSES)}, own ({OWN})"
        raise FireflyError(f"--loss {name}: {known}; a loss(model, batch) of yours is written MODULE:FUNCTION")
    return lambda model, batch: inner(model, move(batch, device))


def compare(function: Callable[[Tensor, Tensor], Tensor]) -> Loss:
    """The loss of the answers to a batch (inputs, targets)."""

    def loss(model: nn.Module, batch: Any) -> Tensor:
        check_batch(batch)
        *inputs, targets = batch
        answers = model(*inputs)
        if function not in (functional.cross_entropy, functional.nll_loss):
            check_shapes(answers, targets)
        try:
            return function(answers, targets)
        except (RuntimeError, ValueError, IndexError, TypeError) as error:
            kinds = f"answers {describe(answers)} and the targets {describe(targets)}"
            said = f"the loss cannot compare the model's {kinds}: {first_line(error)}"
            raise FireflyError(f"{said}{advise(answers, targets)}") from error

    return loss


def check_batch(batch: Any) -> None:
    """Refuse a batch without targets: its samples or names would be taken for inputs."""
    if not isinstance(batch, (tuple, list)):
        kind = "a dict" if isinstance(batch, Mapping) else f"a {type(batch).__name__}"
        ways = "--loss own for models that return their loss, or --loss MODULE:FUNCTION, a loss(model, batch) of yours"
        raise FireflyError(f"this loss needs targets, and a batch is {kind}, not (inputs, targets): {ways}")


def describe(value: Any) -> str:
    """float32 [32, 10], or what it is instead of a tensor."""
    known = isinstance(value, Tensor)
    return f"{str(value.dtype).removeprefix('torch.')} {list(value.shape)}" if known else f"({type(value).__name__})"


def advise(answers: Any, targets: Any) -> str:
    """What to do where answers and targets do not fit, if that can be told."""
    if not isinstance(answers, Tensor):
        return "; write a loss(model, batch) that takes what it needs of them, --loss MODULE:FUNCTION"
    if not isinstance(targets, Tensor) or answers.dim() < 2:
        return ""
    if targets.is_floating_point() and targets.dim() == answers.dim() - 1:
        return "; classes are whole numbers: targets.long(); for numbers to be met there is --loss mse"
    if not targets.is_floating_point() and targets.numel() and answers.shape[1] <= targets.max():
        return f"; there are {answers.shape[1]} answers, for classes from 0 on, and a target is {targets.max()}"
    return ""


def check_shapes(answers: Tensor, targets: Tensor) -> None:
    """Refuse what torch would spread to a common shape, as a rule by mistake."""
    given, wanted = getattr(targets, "shape", None), getattr(answers, "shape", None)
    if given is None or wanted is None or given == wanted:
        return
    said = f"the model's answers have the shape {tuple(wanted)} and the targets {tuple(given)}"
    same = math.prod(given) == math.prod(wanted)
    way = f"targets.view{tuple(wanted)}" if same else "give targets of that shape, or another --loss"
    raise FireflyError(f"{said}: this loss compares them number by number; {way}")


def ask_model(model: nn.Module, batch: Any) -> Tensor:
    """What a model that computes its own loss says."""
    answer = model(**batch) if isinstance(batch, Mapping) else model(*batch)
    loss = answer.get("loss") if isinstance(answer, Mapping) else getattr(answer, "loss", None)
    if not isinstance(loss, Tensor):
        raise FireflyError(f"--loss own: the model returned {type(answer).__name__} without a loss: give it labels")
    return loss


def move(batch: Any, device: torch.device) -> Any:
    return tree_map(lambda part: part.to(device, non_blocking=True) if isinstance(part, Tensor) else part, batch)


# ---- optimisers ------------------------------------------------------------------------------------------------------

OPTIMIZERS: dict[str, tuple[type[Optimizer], dict[str, Any]]] = {  # with what they are made with unless told otherwise
    "sgd": (SGD, {"lr": 0.1, "momentum": 0.9, "nesterov": True, "weight_decay": 5e-4}),
    "adam": (Adam, {"lr": 1e-3}),
    "adamw": (AdamW, {"lr": 1e-3, "weight_decay": 0.01}),
}


def make_optimizer(name: str, model: nn.Module, **given: float | None) -> Optimizer:
    """An optimiser by name, or what MODULE:FUNCTION makes of the model's parameters."""
    told = {key: value for key, value in given.items() if value is not None}
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    if not trained:
        raise FireflyError("the model has no parameter that requires a gradient: unfreeze some")
    if ":" in name:
        return call_optimizer(name, model, trained, told)
    if name.lower() not in OPTIMIZERS:
        close = get_close_matches(name.lower(), OPTIMIZERS, 1)
        hint = f"did you mean {close[0]}?" if close else f"known are {', '.join(OPTIMIZERS)}"
        raise FireflyError(f"--optimizer {name}: {hint}; another one is written MODULE:FUNCTION: torch.optim:RMSprop")
    kind, usual = OPTIMIZERS[name.lower()]
    return kind(trained, **{**usual, **told})


def call_optimizer(name: str, model: nn.Module, trained: list[nn.Parameter], told: dict[str, float]) -> Optimizer:
    function = find(name, "torch.optim:RMSprop")
    with present_folder():
        try:
            optimizer = function(trained, **told)
        except Exception as error:
            called = f"{name}(parameters{''.join(f', {key}={value}' for key, value in told.items())})"
            raise FireflyError(f"--optimizer: {called} raised {blame(error)}") from error
    check_optimizer(optimizer, model)
    return optimizer
