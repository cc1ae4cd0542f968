"""The losses of a growth: of one batch, checked, and the mean over the batches that were held apart."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, MutableMapping
from contextlib import contextmanager
from copy import copy
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map

from firefly.errors import FireflyError, first_line
from firefly.ranks.talk import average
from firefly.surgery.quiet import reseed
from firefly.surgery.swap import clone_buffers, swapped

Loss = Callable[[nn.Module, Any], Tensor]


def on_copies(loss: Loss) -> Loss:
    """The loss of a copy of the batch: each serves many times, and a loss may pop its labels or scale its images."""

    def copied(part: Any) -> Any:
        if isinstance(part, Tensor):
            return part.clone()
        if isinstance(part, MutableMapping):  # of a kind that torch does not know
            own, part = part, copy(part)
            part.update(tree_map(copied, dict(own)))
        return part

    def run(model: nn.Module, batch: Any) -> Tensor:
        with torch.enable_grad():  # the loss may take slopes by itself, as a gradient penalty does
            value = loss(model, tree_map(copied, batch))
        return value if torch.is_grad_enabled() or not isinstance(value, Tensor) else value.detach()

    return run


@contextmanager
def grown_only() -> Iterator[None]:
    """Tell of an error inside the block that the model runs with the loss, and that with more neurons it does not."""
    try:
        yield
    except RuntimeError as error:
        if isinstance(error, torch.OutOfMemoryError) or not any(word in str(error) for word in ("size", "shape")):
            raise
        raise FireflyError(
            f"the loss runs on the model, but not on the model with more neurons ({first_line(error)}): it compares a "
            "parameter or an inner output with something of fixed size (leave that width out, widths=), or the "
            "batches differ in shape"
        ) from error


def scalar_loss(loss: Loss, model: nn.Module, batch: Any) -> Tensor:
    """The loss of a batch, checked."""
    value = loss(model, batch)
    if not isinstance(value, Tensor) or value.numel() != 1 or value.is_complex():
        what = f"a tensor of shape {tuple(value.shape)}" if isinstance(value, Tensor) else type(value).__name__
        what = f"{value.dtype}" if isinstance(value, Tensor) and value.is_complex() else what
        raise FireflyError(f"loss(model, batch) must return a scalar tensor, but returned {what}: take its mean")
    return value.reshape(())


def find_slopes(value: Tensor, leaves: Iterable[Tensor], create_graph: bool = False) -> tuple[Tensor | None, ...]:
    """What `torch.autograd.grad` returns, by the engine itself.

    The other switches off what stands around the forward, dropout's absence and the folding of copies, and a forward
    with gradient checkpointing is run once more meanwhile.
    """
    engine: Any = torch.autograd.Variable._execution_engine
    one = torch.ones_like(value)
    try:
        found = engine.run_backward((value,), (one,), create_graph, create_graph, tuple(leaves), True, False)
    except RuntimeError as error:
        if "use_reentrant=True" not in str(error):
            raise
        raise FireflyError(
            "gradient checkpointing with use_reentrant=True finds gradients of all parameters or of none: turn it off, "
            "or set use_reentrant=False"
        ) from error
    return tuple(found)


@torch.no_grad()
def mean_loss(loss: Loss, model: nn.Module, batches: Iterable[Any]) -> float:
    """The mean over these batches, of the model as it is; and over the ranks."""
    value = torch.stack([scalar_loss(loss, model, batch).detach().double() for batch in batches]).mean()
    average([value])
    return value.item()


def measure_loss(
    loss: Loss,
    model: nn.Module,
    held: list[Any],
    seed: int,
    tensors: Mapping[str, Tensor] | None = None,
    sizes: Iterable[tuple[str, str, int]] = (),
) -> float:
    """The mean loss of the model, or of it with grown tensors; buffers are written to copies."""
    reseed(seed)
    copies = clone_buffers(model)
    with swapped(model, {**copies, **{n: t.clone() for n, t in (tensors or {}).items()}}, sizes):
        value = mean_loss(loss, model, held)
    if tensors is None and not math.isfinite(value):
        raise FireflyError(f"the loss on the {len(held)} batches of the scores is {value}: growth needs a finite one")
    return value


def check_loss(loss: Loss, model: nn.Module, held: list[Any]) -> None:
    """Refuse a loss that no growth can lower: not finite, or without a gradient."""
    copies = clone_buffers(model)
    with swapped(model, copies):
        value = scalar_loss(loss, model, held[0])
    if not math.isfinite(value.item()):
        raise FireflyError(f"the loss on the first batch is {value.item()}: growth needs a finite one")
    if not value.requires_grad:
        raise FireflyError(
            "the loss has no gradient: loss(model, batch) must be differentiable in the model's parameters, so use "
            "neither torch.no_grad() nor .item() nor .detach() on the way to it"
        )
