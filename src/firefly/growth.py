"""Growth: what one growth did, for people (`print`) and for programs (`to_dict`)."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import torch

from firefly.neighborhood.overgrown import OverGrown
from firefly.stages.scores import Gains
from firefly.stages.selection import Chosen


@dataclass(frozen=True)
class Growth:
    """The result of one growth. All losses are on the same batches.

    Attributes:
        added: {width: {"split": 4, "new": 2}}, by the name of the kind.
        widths: {width: (before, after)} of every width that might have grown.
        loss_before: of the network as it was.
        loss_overgrown: with all candidates at once.
        loss_after: of the grown network.
        predicted: by how much it should fall: the sum of the gains of the chosen candidates.
        output_change: the largest |f_{t+1}(x) - f_t(x)| on the example.
        parameters: before and after.
        flops: of one example, before and after; two per multiply-add.
        gains: {width: {"split": 0.01}}: the predicted decrease that the chosen ones are worth.
        chosen: {width: {"split": [0, 3], "new": [7]}}: the numbers of neurons, or of new candidates.
        candidates: how many there were.
        total_gain: of all candidates.
        spent: {budget: (spent, limit)}.
        shortened: the factor by which the step was shortened so that the loss does not rise; 1 if it was not.
        notes: what else is worth knowing, in sentences.
        seconds: {part: seconds}.
    """

    added: Mapping[str, Mapping[str, int]]
    widths: Mapping[str, tuple[int, int]]
    loss_before: float
    loss_overgrown: float
    loss_after: float
    predicted: float
    output_change: float
    parameters: tuple[int, int]
    flops: tuple[int, int]
    gains: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    chosen: Mapping[str, Mapping[str, list[int]]] = field(default_factory=dict)
    candidates: int = 0
    total_gain: float = 0.0
    spent: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    shortened: float = 1.0
    notes: tuple[str, ...] = ()
    seconds: Mapping[str, float] = field(default_factory=dict)

    @property
    def neurons(self) -> int:
        """How many came."""
        return sum(after - before for before, after in self.widths.values())

    @property
    def woken(self) -> list[str]:
        """The layers that were dormant before this growth and have neurons now."""
        return [name for name, (before, after) in self.widths.items() if after and not before]

    def to_dict(self) -> dict[str, Any]:
        """All of it as plain JSON."""
        return {key: _plain(value) for key, value in asdict(self).items()} | {"woken": self.woken}

    @property
    def kinds(self) -> list[str]:
        """The kinds of growth there were, by name."""
        return list(dict.fromkeys(kind for kinds in self.added.values() for kind in kinds))

    def __str__(self) -> str:
        before, after = self.parameters
        woken = len(self.woken)
        flops = f", FLOPs {_short(self.flops[0])} -> {_short(self.flops[1])}" if self.flops[0] else ""
        layers = f", {woken} new layer{'s' * (woken > 1)}" if woken else ""
        plural = "" if self.neurons == 1 else "s"
        lines = [
            f"+{self.neurons} neuron{plural} in {len(self.added)} of {len(self.widths)} widths{layers}; "
            f"parameters {before:,} -> {after:,} ({after / max(before, 1) - 1:+.1%}){flops}",
            *(self._table() if self.added else []),
            f"loss {self.loss_before:.4f} -> over-grown {self.loss_overgrown:.4f} -> grown {self.loss_after:.4f}"
            f" (predicted {self.loss_before - self.predicted:.4f}); output changed by at most {self.output_change:.2g}",
            *self.notes,
        ]
        if self.seconds:
            parts = ", ".join(f"{name} {value:.1f}" for name, value in self.seconds.items())
            lines.append(f"{sum(self.seconds.values()):.1f} s: {parts}")
        return "\n".join(lines)

    def _table(self) -> list[str]:
        """A line per width: its size before and after, what it got of each kind, and the gain of that."""
        kinds, woken = self.kinds, self.woken
        rows: list[tuple[str, ...]] = [("width", "before", *kinds, "after", "gain", "")]
        for name, added in self.added.items():
            before, after = self.widths[name]
            got = (f"+{added[kind]}" if added.get(kind) else "" for kind in kinds)
            gain = sum(self.gains.get(name, {}).values())
            rows.append((name, str(before), *got, str(after), f"{gain:.2g}", "new layer" if name in woken else ""))
        last = len(rows[0]) - 1
        sizes = [max(len(row[k]) for row in rows) for k in range(last + 1)]
        return [
            "  ".join(c.rjust(n) if 0 < k < last else c.ljust(n) for k, (c, n) in enumerate(zip(row, sizes))).rstrip()
            for row in rows
        ]


def make_growth(
    over: OverGrown,
    gains: Gains,
    chosen: Chosen,
    sizes: Mapping[str, int],
    losses: tuple[float, float, float],
    change: float,
    factors: tuple[float, float],
) -> Growth:
    """The growth by these candidates; losses: before, over-grown, after; factors: what shortened the step."""
    anatomy = over.anatomy
    picks = {name: over.slots[name].sort(chosen.slots[name]) for name in sizes}
    by_slot = {name: over.slots[name].sort(chosen.slots[name], own=False) for name in sizes}
    notes = [chosen.note] if chosen.note else []
    if factors[0] < 1:
        notes.append(f"step one was shortened to {factors[0]:.2g} of its length, since the loss rose beyond that")
    if factors[1] < 1:
        notes.append(f"the grown network takes {factors[1]:.2g} of that step, since its loss rose beyond it")
    present = anatomy.sizes()
    after = {**present, **sizes}
    return Growth(
        added={name: {kind: len(numbers) for kind, numbers in kinds.items()} for name, kinds in picks.items()},
        chosen={name: {kind: numbers.tolist() for kind, numbers in kinds.items()} for name, kinds in picks.items()},
        widths={name: (present[name], after[name]) for name in over.slots},
        loss_before=losses[0],
        loss_overgrown=losses[1],
        loss_after=losses[2],
        predicted=chosen.predicted,
        output_change=change,
        parameters=(anatomy.parameters(), anatomy.parameters(after)),
        flops=(anatomy.flops(), anatomy.flops(after)),
        gains={n: {k: gains[n].cpu()[i].sum().item() for k, i in kinds.items()} for n, kinds in by_slot.items()},
        candidates=sum(int((epsilon > 0).sum()) for epsilon in over.epsilon.values()),
        total_gain=sum(gain.sum().item() for gain in gains.values()),
        spent=dict(chosen.spent),
        shortened=factors[0] * factors[1],
        notes=tuple(notes),
    )


def join(first: Growth, second: Growth) -> Growth:
    """Two growths in a row, of different widths, as one."""
    seconds = {key: first.seconds.get(key, 0.0) + value for key, value in second.seconds.items()}
    return replace(
        second,
        added={**first.added, **second.added},
        widths={**first.widths, **second.widths},
        loss_before=first.loss_before,
        predicted=first.predicted + second.predicted,
        output_change=max(first.output_change, second.output_change),
        parameters=(first.parameters[0], second.parameters[1]),
        flops=(first.flops[0], second.flops[1]),
        gains={**first.gains, **second.gains},
        chosen={**first.chosen, **second.chosen},
        candidates=first.candidates + second.candidates,
        total_gain=first.total_gain + second.total_gain,
        shortened=min(first.shortened, second.shortened),
        notes=(*first.notes, *second.notes),
        seconds=seconds,
    )


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


def _short(value: float) -> str:
    power = min(int(math.log10(max(value, 1)) // 3), 4)
    return f"{value / 1000**power:.3g}{' kMGT'[power].strip()}"


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    return [_plain(item) for item in value] if isinstance(value, (tuple, list)) else value
