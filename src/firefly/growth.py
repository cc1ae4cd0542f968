"""Growth: what one growth did, for people (`print`) and for programs (`to_dict`)."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any


@dataclass(frozen=True)
class Growth:
    """The result of one growth. All losses are on the same batches.

    added: {width: {"split": 4, "new": 2}};  widths: {width: (before, after)}
    predicted: the sum of the gains D of the chosen;  output_change: largest |f_{t+1}(x) - f_t(x)| on the example
    shortened: the factor by which the step was shortened so that the loss does not rise (1 = it was not)
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
    candidates: int = 0
    total_gain: float = 0.0
    spent: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    shortened: float = 1.0
    notes: tuple[str, ...] = ()
    seconds: Mapping[str, float] = field(default_factory=dict)

    @property
    def neurons(self) -> int:
        return sum(sum(kinds.values()) for kinds in self.added.values())

    @property
    def woken(self) -> list[str]:
        """The layers that were dormant before this growth and have neurons now."""
        return [name for name, (before, after) in self.widths.items() if after and not before]

    def to_dict(self) -> dict[str, Any]:
        return {key: _plain(value) for key, value in asdict(self).items()} | {"woken": self.woken}

    def __str__(self) -> str:
        woken = self.woken
        rows: list[tuple[str, ...]] = [("width", "before", "split", "new", "after", "gain", "")]
        for name, kinds in self.added.items():
            before, after = self.widths[name]
            gain = sum(self.gains.get(name, {}).values())
            rows.append(
                (
                    name,
                    str(before),
                    *(f"+{kinds[k]}" if kinds[k] else "" for k in ("split", "new")),
                    str(after),
                    f"{gain:.2g}",
                    "new layer" if name in woken else "",
                )
            )
        sizes = [max(len(row[k]) for row in rows) for k in range(7)]
        table = [
            "  ".join(c.rjust(n) if 0 < k < 6 else c.ljust(n) for k, (c, n) in enumerate(zip(row, sizes))).rstrip()
            for row in rows
        ]
        before, after = self.parameters
        flops = f", FLOPs {_short(self.flops[0])} -> {_short(self.flops[1])}" if self.flops[0] else ""
        layers = f", {len(woken)} new layer{'s' * (len(woken) > 1)}" if woken else ""
        lines = [
            f"+{self.neurons} neurons in {len(self.added)} of {len(self.widths)} widths{layers}; "
            f"parameters {before:,} -> {after:,} ({after / max(before, 1) - 1:+.1%}){flops}",
            *(table if self.added else []),
            f"loss {self.loss_before:.4f} -> over-grown {self.loss_overgrown:.4f} -> grown {self.loss_after:.4f}"
            f" (predicted {self.loss_before - self.predicted:.4f}); output changed by at most {self.output_change:.2g}",
            *self.notes,
        ]
        if self.seconds:
            parts = ", ".join(f"{name} {value:.1f}" for name, value in self.seconds.items())
            lines.append(f"{sum(self.seconds.values()):.1f} s: {parts}")
        return "\n".join(lines)


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
        candidates=first.candidates + second.candidates,
        total_gain=first.total_gain + second.total_gain,
        shortened=min(first.shortened, second.shortened),
        notes=(*first.notes, *second.notes),
        seconds=seconds,
    )


def _short(value: float) -> str:
    power = min(int(math.log10(max(value, 1)) // 3), 4)
    return f"{value / 1000**power:.3g}{' kMGT'[power].strip()}"


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    return [_plain(item) for item in value] if isinstance(value, (tuple, list)) else value
