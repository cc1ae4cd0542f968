"""A growth leaves the user undisturbed: random state, gradients and buffers of bystanders stay as they are."""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import numpy
import torch
import torch.nn.functional as F
from torch import nn
from torch.overrides import TorchFunctionMode

from firefly.errors import FireflyError
from firefly.surgery.guard import interruptible
from firefly.surgery.swap import exchanged

PLACES = {F.scaled_dot_product_attention: 4, F.multi_head_attention_forward: 10}  # of their dropout_p


class WithoutDropout(TorchFunctionMode):
    """Inside it dropout does nothing: its noise would drown the small differences that a growth looks for."""

    functions = frozenset(
        (F.dropout, F.dropout1d, F.dropout2d, F.dropout3d, F.alpha_dropout, F.feature_alpha_dropout, torch.dropout)
    )

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func in self.functions:
            return args[0] if args else kwargs["input"]
        place = PLACES.get(func)
        if place is not None and len(args) > place:
            args = (*args[:place], 0.0, *args[place + 1 :])
        elif place is not None and "dropout_p" in kwargs:
            kwargs = {**kwargs, "dropout_p": 0.0}
        return func(*args, **kwargs)


@contextmanager
def chance_kept(model: nn.Module) -> Iterator[None]:
    """Torch, Python and NumPy go on drawing afterwards as if nothing had been drawn inside."""
    devices = sorted({p.device.index for p in model.parameters() if p.device.type == "cuda"})
    states = random.getstate(), numpy.random.get_state()  # noqa: NPY002
    with torch.random.fork_rng(devices=devices):
        try:
            yield
        finally:
            random.setstate(states[0])
            numpy.random.set_state(states[1])  # noqa: NPY002


def reseed(seed: int) -> None:
    """The same chance for every network that is measured, wherever a loss gets its random numbers."""
    torch.manual_seed(seed)
    random.seed(seed)
    numpy.random.seed(seed % 2**32)  # noqa: NPY002


@contextmanager
def undisturbed(model: nn.Module, seed: int, bystanders: Iterable[nn.Module] = ()) -> Iterator[None]:
    """Random state, parameters and gradients are as before afterwards, and bystanders' buffers; dropout is off inside.

    Bystanders are modules that the loss runs beside the model, such as the discriminator of a generator.
    """
    bystanders = list(bystanders) if isinstance(bystanders, Iterable) else [bystanders]
    if wrong := [one for one in bystanders if not isinstance(one, nn.Module)]:
        raise FireflyError(f"bystanders holds {wrong[0]!r:.60}: give a list of modules, bystanders=[discriminator]")
    gradients = [(p, p.grad) for p in model.parameters()]
    values = [(p, p._version, p.detach().clone()) for p in model.parameters()]  # a forward may write to them, too
    buffers = [(buffer, buffer.detach().clone()) for module in bystanders for buffer in module.buffers()]
    with interruptible(), ExitStack() as stack:
        stack.enter_context(chance_kept(model))
        if is_training(model):
            stack.enter_context(WithoutDropout())
        sparse = (m for m in model.modules() if type(m) in (nn.Embedding, nn.EmbeddingBag) and m.sparse)
        stack.enter_context(exchanged((module, "sparse", False) for module in sparse))
        stack.enter_context(torch.enable_grad())
        reseed(seed)
        try:
            yield
        finally:
            for parameter, gradient in gradients:
                parameter.grad = gradient
            with torch.no_grad():
                for parameter, version, value in values:
                    if parameter._version != version:
                        parameter.copy_(value)
                for buffer, value in buffers:
                    buffer.copy_(value)


def is_training(model: nn.Module) -> bool:
    """Whether any part of it is in train mode; the model itself may not be."""
    return any(module.training for module in model.modules())
