"""What a kind of growth is: what it offers in a width, what its candidates become, where they begin, how far they go.

All other parts of a growth know kinds by their names only. A kind of your own is a frozen dataclass like `Split`; the
tensors of every kind are one expression (`firefly.tensors`).
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor

from firefly.anatomy.widths import Width
from firefly.errors import FireflyError


class Copy(NamedTuple):
    """One of the neurons that a chosen neuron becomes: its rows are θ + move·ε·s·δ, its columns share·W."""

    move: float
    share: float


class Kind:
    """A kind of growth; its candidates are neurons that exist, or brand-new ones.

    name: by which budgets, reports and checkpoints know it.
    becomes: what a chosen neuron that exists becomes; the first copy takes its place, the others are added.
    ball: where ‖δ‖ ≤ 1 holds: the "rows" that make a candidate, or the "columns" that read it (eq. 3).
    epsilon: how far a candidate may go from f_t, relative to what is there.
    """

    name: ClassVar[str]
    becomes: ClassVar[tuple[Copy, ...]] = ()
    ball: ClassVar[str] = "rows"
    epsilon: float

    def __post_init__(self) -> None:
        number = type(self.epsilon) in (int, float) and 0 < self.epsilon <= 10
        self.check(number, f"epsilon={self.epsilon!r}", "the step must be a number above 0 and at most 10")

    def check(self, holds: bool, what: str, rule: str) -> None:
        if not holds:
            raise FireflyError(f"{type(self).__name__}({what}): {rule}")

    def find_existing(self, width: Width) -> Tensor:
        """Which neurons of the width are candidates, (n,) of booleans."""
        return torch.zeros(width.size, dtype=torch.bool)

    def count_new(self, width: Width) -> int:
        """How many brand-new candidates the width gets."""
        return 0

    def start_rows(self, scale: Tensor) -> Tensor:
        """The root mean square of the first δ in the rows of each candidate, relative to `scale`, its own size."""
        return torch.zeros_like(scale)

    def start_bias(self) -> bool:
        """Whether δ begins with biases, too."""
        return True

    @property
    def seen(self) -> tuple[Copy, ...]:
        """The copies that somebody reads: only these are in the over-grown network."""
        return tuple(copy for copy in self.becomes if copy.share)

    @property
    def adds(self) -> int:
        """How many more neurons a chosen candidate is."""
        return max(1, len(self.becomes) - 1)


def read_neighborhood(kinds: Kind | Iterable[Kind]) -> tuple[Kind, ...]:
    """The kinds of a neighbourhood, at most one of each name."""
    given = (kinds,) if isinstance(kinds, Kind) else tuple(kinds) if isinstance(kinds, Iterable) else (kinds,)
    for kind in given:
        if not isinstance(kind, Kind):
            known = "firefly.Split(...), firefly.New(...) and firefly.Unlock(...)"
            raise FireflyError(f"the neighborhood holds {kind!r}; it may hold {known}")
        shares = sum(copy.share for copy in kind.becomes)
        if kind.becomes and not math.isclose(shares, 1.0):
            raise FireflyError(f"{kind!r}: its copies share {shares:g} of the columns; they must share 1 in all")
    names = [kind.name for kind in given]
    if not given or len(set(names)) < len(names):
        raise FireflyError(f"the neighborhood holds {names or 'nothing'}: it needs a kind of growth, each at most once")
    return given
