"""What `trace` finds: the widths of a model, and where their neurons lie in its tensors."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from torch import nn

from firefly.errors import FireflyError
from firefly.surgery.residual import find_dormant
from firefly.tensors import Layout, Run

Runs = tuple[Run, ...]


@dataclass(frozen=True)
class Width:
    """Neurons that live in several tensors at once.

    Attributes:
        name: that of the module that makes them.
        size: how many there are.
        makers: the tensors with a row for each of them.
        readers: the tensors with a column for each.
        followers: the tensors with an entry for each, such as those of a norm.
        pinned: None, or the reason why it cannot grow.
    """

    name: str
    size: int
    makers: tuple[str, ...]
    readers: tuple[str, ...]
    followers: tuple[str, ...]
    block: int = 1  # rows of its first maker that one neuron owns
    pinned: str | None = None

    @property
    def dormant(self) -> bool:
        """Whether it belongs to a layer without neurons, which a growth may wake."""
        return self.size == 0


@dataclass(frozen=True)
class Anatomy:
    """All widths of a model, by name, and where their neurons lie.

    Print it, iterate over its widths, or take one: `anatomy["features.3"]`.
    """

    widths: Mapping[str, Width]
    layouts: Mapping[str, Layout]
    mirrors: tuple[tuple[str, str, Runs], ...]  # (module, attribute, the axis whose length it equals)
    costs: tuple[tuple[Runs, ...], ...]  # multiply-adds of one example as products of axes
    examples: int  # in the traced batch
    other_parameters: int  # in tensors without a growable width
    frozen: frozenset[str] = frozenset()  # parameters that did not train when the model was traced

    def __iter__(self) -> Iterator[Width]:
        return iter(self.widths.values())

    def __len__(self) -> int:
        return len(self.widths)

    def __getitem__(self, name: str) -> Width:
        if name not in self.widths:
            raise FireflyError(f"the model has no width {name!r}; it has {', '.join(self.widths) or 'none'}")
        return self.widths[name]

    def growable(self) -> list[Width]:
        """The widths that are not pinned."""
        return [width for width in self if width.pinned is None]

    def dormant_layers(self) -> dict[str, list[str]]:
        """The layers without neurons that may wake, by the place where they lie in a row."""
        places: dict[str, list[str]] = {}
        for width in self.growable():
            if width.dormant:
                places.setdefault(width.name.rpartition(".")[0], []).append(width.name)
        return places

    def sizes(self) -> dict[str, int]:
        """{width: how many neurons}."""
        return {width.name: width.size for width in self}

    def parameters(self, sizes: Mapping[str, int] | None = None) -> int:
        """Parameters of the model, now or with widths of other sizes."""
        own = (layout for layout in self.layouts.values() if layout.parameter)
        return self.other_parameters + sum(math.prod(length(runs, sizes) for runs in one.dims) for one in own)

    def flops(self, sizes: Mapping[str, int] | None = None) -> int:
        """Floating-point operations of one example's forward pass (two per multiply-add)."""
        return 2 * sum(math.prod(length(runs, sizes) for runs in dims) for dims in self.costs) // self.examples

    def resized(self, sizes: Mapping[str, int]) -> Anatomy:
        """The same anatomy with widths of other sizes."""

        def fit(runs: Runs) -> Runs:
            return tuple(replace(run, size=sizes.get(run.width, run.size)) if run.width else run for run in runs)

        return replace(
            self,
            widths={name: replace(width, size=sizes.get(name, width.size)) for name, width in self.widths.items()},
            layouts={n: replace(lay, dims=tuple(map(fit, lay.dims))) for n, lay in self.layouts.items()},
            mirrors=tuple((module, name, fit(runs)) for module, name, runs in self.mirrors),
            costs=tuple(tuple(map(fit, dims)) for dims in self.costs),
        )

    def mirrored(self, sizes: Mapping[str, int]) -> list[tuple[str, str, int]]:
        """(module, attribute, value) for every attribute that changes with these sizes."""
        touched = ((m, a, runs) for m, a, runs in self.mirrors if any(run.width in sizes for run in runs))
        return [(module, attribute, length(runs, sizes)) for module, attribute, runs in touched]

    def fits(self, model: nn.Module) -> bool:
        """Whether it still describes the model's shapes, what of it is frozen, and its dormant layers."""
        if self.frozen != {name for name, p in model.named_parameters() if not p.requires_grad}:
            return False
        if not find_dormant(model).keys() <= self.widths.keys():  # put there since
            return False
        shapes = {name: tuple(p.shape) for name, p in model.named_parameters()}
        own = (layout for layout in self.layouts.values() if layout.parameter)
        return all(shapes.get(lay.name) == tuple(length(runs) for runs in lay.dims) for lay in own)

    def __str__(self) -> str:
        rows = [("width", "neurons", "made by", "read by", "")]
        for width in self:
            note = f"{width.block} rows each" if width.block > 1 else ""
            note = f"pinned: {width.pinned}" if width.pinned else "dormant layer" if width.dormant else note
            rows.append((width.name, str(width.size), _few(width.makers), _few(width.readers), note))
        columns = [max(len(row[k]) for row in rows) for k in range(4)]
        lines = ["  ".join([*(cell.ljust(n) for cell, n in zip(row, columns)), row[4]]).rstrip() for row in rows]
        growable = self.growable()
        total = f"{len(growable)} of {len(self)} widths can grow, {sum(w.size for w in growable)} neurons in them"
        dormant = sum(width.dormant for width in growable)
        total += f", {dormant} dormant layer{'s' * (dormant > 1)} among them" if dormant else ""
        return "\n".join([*lines, total])


def _few(names: tuple[str, ...], limit: int = 2) -> str:
    shown = [name.removesuffix(".weight") for name in names if not name.endswith(".bias")] or list(names)
    return ", ".join(shown[:limit]) + (f" +{len(shown) - limit}" if len(shown) > limit else "")


def length(runs: Runs, sizes: Mapping[str, int] | None = None) -> int:
    sizes = sizes or {}
    return sum((sizes.get(run.width, run.size) if run.width else run.size) * run.block for run in runs)


def pinned(anatomy: Anatomy, reasons: Mapping[str, str]) -> Anatomy:
    """The anatomy with these widths pinned."""
    if not reasons:
        return anatomy

    def fix(runs: Runs) -> Runs:
        return tuple(Run(None, run.size * run.block) if run.width in reasons else run for run in runs)

    def lay(layout: Layout) -> Layout:
        dims = tuple(map(fix, layout.dims))
        roles = tuple(r if any(run.width for run in runs) else None for r, runs in zip(layout.roles, dims))
        return replace(layout, dims=dims, roles=roles)

    return replace(
        anatomy,
        widths={n: replace(w, pinned=reasons[n]) if n in reasons else w for n, w in anatomy.widths.items()},
        layouts={n: lay(layout) for n, layout in anatomy.layouts.items()},
        mirrors=tuple((m, a, fix(runs)) for m, a, runs in anatomy.mirrors),
        costs=tuple(tuple(map(fix, dims)) for dims in anatomy.costs),
    )


def check_fit(anatomy: Anatomy, model: nn.Module) -> Anatomy:
    """The anatomy, if it is that of the model as it is now."""
    if not anatomy.fits(model):
        raise FireflyError(
            "anatomy is of another model, or of this one before it grew, froze or got new layers: trace it again, or "
            "leave anatomy out"
        )
    return anatomy


Widths = Iterable[str] | Callable[[Width], bool] | None  # names, a filter, or every width that is not pinned


def read_widths(widths: Any) -> Widths:
    """The widths as they may be given, names as a tuple."""
    if widths is None or callable(widths):
        return widths
    names = (widths,) if isinstance(widths, str) else tuple(widths) if isinstance(widths, Iterable) else (widths,)
    if not all(isinstance(name, str) for name in names):
        raise FireflyError(f"widths={widths!r}: give names of widths, a filter width -> bool, or None for all of them")
    return names


def pick_widths(anatomy: Anatomy, widths: Widths) -> list[str]:
    """The names of the widths that may grow."""
    widths = read_widths(widths)
    if widths is None:
        names = [width.name for width in anatomy.growable()]
    elif callable(widths):
        names = [width.name for width in anatomy.growable() if widths(width)]
    else:
        names = list(widths)
        for name in names:
            if anatomy[name].pinned:
                raise FireflyError(f"width {name!r} cannot grow: {anatomy[name].pinned}")
    if not names:
        reasons = "; ".join(f"{w.name}: {w.pinned}" for w in list(anatomy)[:5] if w.pinned)
        raise FireflyError(f"nothing can grow: the widths are all pinned or filtered out ({reasons or 'none found'})")
    return names
