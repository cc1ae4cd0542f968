"""η_t: how much a growth may add, in neurons, parameters, FLOPs or layers (eq. 5). `selection.py` spends it."""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from numbers import Real
from typing import ClassVar

from firefly.anatomy.widths import Anatomy, Runs, length
from firefly.errors import FireflyError
from firefly.tensors import Run

Sizes = Mapping[str, int]


class Budget:
    """What a growth may cost. Join two with `&`: both hold."""

    multiple: ClassVar[int] = 1  # what the grown widths are multiples of

    def ties(self, anatomy: Anatomy, widths: list[str]) -> list[tuple[str, ...]]:
        """The widths that grow by the same number."""
        return []

    def limits(self, anatomy: Anatomy, widths: list[str]) -> list[Limit]:
        raise NotImplementedError

    def __and__(self, other: Budget) -> Budget:
        if not isinstance(other, Budget):
            raise FireflyError(f"{self} & {other!r}: join budgets with budgets, e.g. {self} & firefly.Parameters(5000)")
        return Both(self, other)


@dataclass(frozen=True)
class Limit:
    """So much of a cost that is a sum of products of axes, e.g. rows times columns over all weights."""

    what: str
    allowed: float
    terms: tuple[tuple[Runs, ...], ...]
    factor: float = 1.0
    once: bool = False  # a term counts as 1 however large it is: a layer is there or not

    def of(self, widths: Collection[str]) -> Limit:
        """Only the terms that these widths have a part in."""
        mine = (dims for dims in self.terms if any(run.width in widths for runs in dims for run in runs))
        return replace(self, terms=tuple(mine))

    def cost(self, sizes: Sizes) -> float:
        products = (math.prod(length(runs, sizes) for runs in dims) for dims in self.terms)
        return self.factor * sum(min(product, 1) if self.once else product for product in products)


@dataclass(frozen=True)
class Both(Budget):
    first: Budget
    second: Budget

    @property
    def multiple(self) -> int:  # type: ignore[override]
        return math.lcm(self.first.multiple, self.second.multiple)

    def ties(self, anatomy: Anatomy, widths: list[str]) -> list[tuple[str, ...]]:
        return self.first.ties(anatomy, widths) + self.second.ties(anatomy, widths)

    def limits(self, anatomy: Anatomy, widths: list[str]) -> list[Limit]:
        return self.first.limits(anatomy, widths) + self.second.limits(anatomy, widths)


@dataclass(frozen=True)
class _Amount(Budget):
    """So many more, as a number or as a `fraction` of what is there."""

    count: float | None = None
    fraction: float | None = None

    def __post_init__(self) -> None:
        name = type(self).__name__
        if (self.count is None) == (self.fraction is None):
            raise FireflyError(f"{name} needs either a number or fraction=, e.g. {name}(64) or {name}(fraction=0.3)")
        given = self.count if self.count is not None else self.fraction
        if isinstance(given, bool) or not isinstance(given, Real) or not 0 < given < math.inf:
            raise FireflyError(f"{name}: the budget is {given!r}, so nothing could grow; it must be above 0")

    def allowed(self, present: float) -> float:
        return self.count if self.count is not None else (self.fraction or 0.0) * present


class Neurons(_Amount):
    """At most so many more neurons, over all widths that may grow."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.count is not None and self.count != int(self.count):
            raise FireflyError(f"Neurons({self.count}): give a whole number; a share is Neurons(fraction={self.count})")

    def limits(self, anatomy: Anatomy, widths: list[str]) -> list[Limit]:
        present = sum(anatomy[name].size for name in widths)
        allowed = max(1, int(self.allowed(present) + 1e-9))
        return [Limit("neurons", allowed, tuple(((Run(name, 1),),) for name in widths))]


class Parameters(_Amount):
    """At most so many more parameters, counting what a neuron adds on both of its sides."""

    def limits(self, anatomy: Anatomy, widths: list[str]) -> list[Limit]:
        terms = tuple(layout.dims for layout in anatomy.layouts.values() if layout.parameter)
        return [Limit("parameters", self.allowed(anatomy.parameters()), terms)]


class Flops(_Amount):
    """At most so many more floating-point operations in the forward pass of one example."""

    def limits(self, anatomy: Anatomy, widths: list[str]) -> list[Limit]:
        return [Limit("flops", self.allowed(anatomy.flops()), anatomy.costs, 2 / anatomy.examples)]


@dataclass(frozen=True)
class Layers(Budget):
    """At most so many dormant layers wake up (Sec. 2.3), which `firefly.deepen` made; alone, nothing else grows."""

    count: int

    def __post_init__(self) -> None:
        if type(self.count) is not int or self.count < 0:
            raise FireflyError(f"Layers({self.count!r}): needs a whole number of layers, 0 for none")

    def limits(self, anatomy: Anatomy, widths: list[str]) -> list[Limit]:
        dormant = tuple(((Run(name, 0),),) for name in widths if anatomy[name].dormant)
        return [Limit("layers", self.count, dormant, once=True)]


@dataclass(frozen=True)
class Multiples(Budget):
    """Widths grow to multiples of this number, which GPUs compute faster: `Parameters(50_000) & Multiples(8)`.

    A width takes as many candidates as it lacks to the next multiple, together, or none.
    """

    multiple: int = 8  # type: ignore[misc]

    def __post_init__(self) -> None:
        if type(self.multiple) is not int or self.multiple < 1:
            raise FireflyError(f"Multiples({self.multiple!r}): needs a whole number of at least 1, such as 8")

    def limits(self, anatomy: Anatomy, widths: list[str]) -> list[Limit]:
        return []


class Tied(Budget):
    """Widths that grow by the same number, such as those of equal layers: `Parameters(50_000) & Tied("*.mlp.fc1")`.

    Each pattern, or tuple of names and patterns, is one group; `Tied()` ties those of equal size whose names differ in
    numbers only. A group takes the best candidates of each of its widths together, or none.
    """

    def __init__(self, *groups: str | Collection[str]) -> None:
        self.groups = tuple((group,) if isinstance(group, str) else tuple(group) for group in groups)
        if not all(isinstance(pattern, str) for group in self.groups for pattern in group):
            raise FireflyError(f"{self!r}: needs names of widths, or patterns such as '*.mlp.fc1'")

    def __repr__(self) -> str:
        return f"Tied({', '.join(map(repr, self.groups))})"

    def ties(self, anatomy: Anatomy, widths: list[str]) -> list[tuple[str, ...]]:
        found: dict[object, list[str]] = {}
        for pattern in (one for group in self.groups for one in group):
            if not any(fnmatchcase(width.name, pattern) for width in anatomy):
                names = ", ".join(width.name for width in anatomy)
                raise FireflyError(f"Tied({pattern!r}): no width is called so; there are {names}")
        for name in widths:
            if not self.groups:
                found.setdefault((re.sub(r"\d+", "*", name), anatomy[name].size), []).append(name)
            for group in self.groups:
                if any(fnmatchcase(name, pattern) for pattern in group):
                    found.setdefault(group, []).append(name)
        return [tuple(names) for names in found.values()]

    def limits(self, anatomy: Anatomy, widths: list[str]) -> list[Limit]:
        return []
