"""The kinds of growth a neighbourhood may hold (Sec. 2.2): splitting existing neurons, and brand-new neurons.

Each kind says how many candidates a width gets and how far they may go from f_t: ε, relative to what is there, so
that the same number suits every layer. The tensors themselves are one expression for all kinds (`tensors.py`).
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

from firefly.errors import FireflyError


def _check_radius(kind: str, epsilon: float) -> None:
    if not (isinstance(epsilon, (int, float)) and math.isfinite(epsilon) and 0 < epsilon <= 10):
        raise FireflyError(f"{kind}(epsilon={epsilon!r}): the step must be a number above 0 and at most 10")


@dataclass(frozen=True)
class Split:
    """Every neuron may become two halves that move apart: θ ± ε·δ, their readers W/2 and W/2.

    epsilon: how far, as a share of the neuron's own size.
    """

    epsilon: float = 0.3

    def __post_init__(self) -> None:
        _check_radius("Split", self.epsilon)


@dataclass(frozen=True)
class New:
    """Up to `count` brand-new neurons in every width (m' in the paper).

    epsilon: the strength of their outgoing weights, as a share of those that are there.
    scale: the standard deviation of their first incoming weights; None takes that of the neurons that are there.
    """

    count: int = 50
    epsilon: float = 0.3
    scale: float | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.count, int) or self.count < 1:
            raise FireflyError(f"New(count={self.count!r}): needs a whole number of at least 1; leave New out for none")
        _check_radius("New", self.epsilon)
        if self.scale is not None and not self.scale > 0:
            raise FireflyError(f"New(scale={self.scale!r}): the standard deviation must be above 0")

    def candidates(self, block: int) -> int:
        """New neurons for a width whose neurons own `block` rows each: a head counts as its rows."""
        return max(1, self.count // block)


Kind = Split | New


def read_neighborhood(kinds: Iterable[Kind]) -> tuple[Split | None, New | None]:
    """The split and the new part of a neighbourhood; at most one of each."""
    kinds = [kinds] if isinstance(kinds, (Split, New)) else list(kinds)
    for kind in kinds:
        if not isinstance(kind, (Split, New)):
            raise FireflyError(f"the neighborhood holds {kind!r}; it may hold firefly.Split(...) and firefly.New(...)")
    splits = [kind for kind in kinds if isinstance(kind, Split)]
    news = [kind for kind in kinds if isinstance(kind, New)]
    if not kinds or len(splits) > 1 or len(news) > 1:
        raise FireflyError("the neighborhood needs one firefly.Split, one firefly.New, or both")
    return (splits[0] if splits else None), (news[0] if news else None)
