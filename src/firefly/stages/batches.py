"""What a growth needs around it: checked input, batches at hand, an undisturbed user, a clock."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from itertools import chain, islice
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn
from torch.overrides import TorchFunctionMode

from firefly.anatomy.widths import Anatomy
from firefly.errors import FireflyError
from firefly.progress import Line
from firefly.stages.budget import Budget
from firefly.surgery.guard import interruptible

Widths = Iterable[str] | Callable[[Any], bool] | None


def check_options(loss: Any, **given: Any) -> None:
    if not callable(loss):
        raise FireflyError(f"loss must be a function loss(model, batch) -> scalar tensor, not {type(loss).__name__}")
    for name in ("steps", "evaluate_on"):
        if not isinstance(given[name], int) or given[name] < 1:
            raise FireflyError(f"{name}={given[name]!r}: must be a whole number of at least 1")
    if not given["lr"] > 0:
        raise FireflyError(f"lr={given['lr']!r}: must be above 0")
    for name, allowed in (("rank", ("decrease", "magnitude")), ("path", ("joint", "single"))):
        if given[name] not in allowed:
            raise FireflyError(f"{name}={given[name]!r}: must be {' or '.join(map(repr, allowed))}")
    if not isinstance(given["budget"], Budget):
        raise FireflyError(f"budget={given['budget']!r}: must be firefly.Neurons, Parameters or Flops, joined with &")


def pick_widths(anatomy: Anatomy, widths: Widths) -> list[str]:
    if widths is None:
        names = [width.name for width in anatomy.growable()]
    elif callable(widths):
        names = [width.name for width in anatomy.growable() if widths(width)]
    else:
        names = [widths] if isinstance(widths, str) else list(widths)
        for name in names:
            if anatomy[name].pinned:
                raise FireflyError(f"width {name!r} cannot grow: {anatomy[name].pinned}")
    if not names:
        reasons = "; ".join(f"{w.name}: {w.pinned}" for w in list(anatomy)[:5] if w.pinned)
        raise FireflyError(f"nothing can grow: the widths are all pinned or filtered out ({reasons or 'none found'})")
    return names


def hold_batches(batches: Iterable[Any], steps: int, count: int) -> tuple[Iterable[Any], list[Any]]:
    """The batches of step one, and others, in memory, for scores and losses: step one fits the noise of its own.

    At most half of them are held; of a single batch both are made.
    """
    if not isinstance(batches, Iterable):
        raise FireflyError(f"batches must be an iterable of batches, not {type(batches).__name__}")
    if iter(batches) is batches:
        batches = list(islice(batches, steps + count))
    way = iter(batches)
    first = list(islice(way, 2 * count))
    if not first:
        raise FireflyError("there are no batches: pass at least one, as loss(model, batch) takes it")
    held = first[: max(1, min(count, len(first) // 2))]
    return (Rest(batches, chain(first[len(held) :], way), len(held)) if len(first) > 1 else batches), held


class Rest:
    """All batches but the first few; at first the rest of the pass that these are from, as a loader may shuffle."""

    def __init__(self, batches: Iterable[Any], begun: Iterable[Any], skip: int) -> None:
        self.batches, self.skip = batches, skip
        self.begun: Iterable[Any] | None = begun

    def __iter__(self) -> Iterator[Any]:
        begun, self.begun = self.begun, None
        yield from islice(self.batches, self.skip, None) if begun is None else begun


class WithoutDropout(TorchFunctionMode):
    """Inside it dropout does nothing: its noise would drown the small differences that a growth looks for."""

    functions = frozenset(
        (F.dropout, F.dropout1d, F.dropout2d, F.dropout3d, F.alpha_dropout, F.feature_alpha_dropout, torch.dropout)
    )

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func in self.functions:
            return args[0] if args else kwargs["input"]
        if func is F.scaled_dot_product_attention and kwargs.get("dropout_p"):
            kwargs = {**kwargs, "dropout_p": 0.0}
        return func(*args, **kwargs)


@contextmanager
def undisturbed(model: nn.Module, seed: int) -> Iterator[None]:
    """A growth leaves the random state, the modes and the gradients as they were; dropout is off inside."""
    gradients = [(p, p.grad) for p in model.parameters()]
    devices = sorted({p.device.index for p in model.parameters() if p.device.type == "cuda"})
    with interruptible(), ExitStack() as stack:
        stack.enter_context(torch.random.fork_rng(devices=devices))
        if model.training:
            stack.enter_context(WithoutDropout())
        stack.enter_context(torch.enable_grad())
        torch.manual_seed(seed)
        try:
            yield
        finally:
            for parameter, gradient in gradients:
                parameter.grad = gradient


class Clock:
    """Seconds per stage."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self.last = time.perf_counter()

    def __call__(self, stage: str) -> None:
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        now = time.perf_counter()
        self.seconds[stage] = now - self.last
        self.last = now


@contextmanager
def progress_line(what: str, show: bool) -> Iterator[Callable[[int, int], None]]:
    """How far a growth is, on stderr; gone when it is done."""
    line = Line(show)
    try:
        yield lambda step, steps: line(f"{what} {step}/{steps}")
    finally:
        line.close(clear=True)
