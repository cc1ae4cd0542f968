"""A faster step for whoever grows: `with capturing(Step): grower.grow(...)`.

A training loop that records its steps as CUDA graphs can lend that to step one of any growth inside the block, whoever
calls it and whatever it was told, and nothing of the grower is changed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from torch import Tensor

Capture = Callable[[Callable[[], Tensor], Callable[[], list[Tensor]]], Callable[[], Tensor]]

_lent: ContextVar[Capture | None] = ContextVar("capture", default=None)


@contextmanager
def capturing(capture: Capture | None) -> Iterator[None]:
    """Inside the block a plain step one is made faster by `capture(step, tensors that it changes)`."""
    token = _lent.set(capture)
    try:
        yield
    finally:
        _lent.reset(token)


def lent_capture() -> Capture | None:
    return _lent.get()
