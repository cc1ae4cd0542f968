"""The slots of a width: its neurons, then the brand-new candidates, and which kind of growth stands in each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from firefly.anatomy.widths import Width
from firefly.errors import FireflyError
from firefly.neighborhood.kinds import Copy, Kind
from firefly.tensors import Roster


@dataclass(frozen=True, eq=False)
class Slots:
    """All candidates of one width, in compact numbering (`firefly.tensors`)."""

    size: int  # the neurons that exist
    standing: Mapping[Kind, Tensor]  # per kind the numbers of its candidates, ascending

    def __len__(self) -> int:
        return self.size + sum(int((numbers >= self.size).sum()) for numbers in self.standing.values())

    @property
    def new(self) -> int:
        return len(self) - self.size

    def __bool__(self) -> bool:
        """Whether anyone stands."""
        return any(len(numbers) for numbers in self.standing.values())

    def spread(self, values: Mapping[Kind, float | Tensor], fill: float = 0.0) -> Tensor:
        """A number per slot from a number per kind, or one for each of its candidates."""
        out = torch.full((len(self),), fill)
        for kind, numbers in self.standing.items():
            out[numbers] = torch.as_tensor(values[kind], dtype=out.dtype)
        return out

    @property
    def epsilon(self) -> Tensor:
        return self.spread({kind: kind.epsilon for kind in self.standing})

    @property
    def adds(self) -> Tensor:
        """How many neurons each candidate brings."""
        return self.spread({kind: float(kind.adds) for kind in self.standing}).long()

    def sort(self, numbers: Tensor, own: bool = True) -> dict[str, Tensor]:
        """The slots by the name of their kind; with `own`, brand-new ones by their numbers among those of that kind."""
        out = {}
        for kind, mine in self.standing.items():
            picked = mine[torch.isin(mine, numbers)]
            first = int(mine[0]) if len(mine) and mine[0] >= self.size else 0
            out[kind.name] = picked - first if own else picked
        return out

    # ---- who the neurons of a larger network are ---------------------------------------------------------------------

    def everyone(self, device: torch.device | str = "cpu") -> Roster:
        """All candidates at once; copies that nobody reads are left out."""
        stretches: list[tuple[int, int]] | None = [(0, self.size)]
        for numbers in self.further:
            whole = len(numbers) == self.size
            stretches = [*stretches, (0, self.size)] if stretches is not None and whole else None
        if stretches is not None:
            stretches.append((self.size, self.new))
            stretches = [(0, self.size + self.new)] if len(stretches) == 2 else stretches
        copies = {kind: kind.seen for kind in self.standing}
        return self._lay(torch.arange(len(self)), copies, device, stretches)

    def choose(self, numbers: Tensor, device: torch.device | str = "cpu") -> Roster:
        """Only these candidates, as they will stay."""
        return self._lay(numbers, {kind: kind.becomes for kind in self.standing}, device)

    @property
    def further(self) -> list[Tensor]:
        """The slots of the second copies in `everyone`, of the third ones, and so on."""
        found = []
        for place in range(1, max((len(kind.seen) for kind in self.standing), default=0)):
            mine = [n[n < self.size] for kind, n in self.standing.items() if len(kind.seen) > place]
            found.append(torch.cat(mine).sort().values)
        return found

    @property
    def even(self) -> bool:
        """Whether the copies of every neuron have equal shares, so that they can be summed before they are read."""
        return all(len({copy.share for copy in kind.seen}) <= 1 for kind in self.standing)

    def _lay(
        self,
        numbers: Tensor,
        copies: Mapping[Kind, Sequence[Copy]],
        device: torch.device | str,
        stretches: Sequence[tuple[int, int]] | None = None,
    ) -> Roster:
        slot, move, share = [torch.arange(self.size)], [torch.zeros(self.size)], [torch.ones(self.size)]
        old = {kind: mine[torch.isin(mine, numbers) & (mine < self.size)] for kind, mine in self.standing.items()}
        for kind, mine in old.items():
            if len(mine):
                move[0][mine], share[0][mine] = copies[kind][0]
        for place in range(1, max((len(copies[kind]) for kind, mine in old.items() if len(mine)), default=0)):
            found = {kind: mine for kind, mine in old.items() if len(copies[kind]) > place}
            more, order = torch.cat(list(found.values())).sort()
            slot.append(more)
            for out, which in ((move, 0), (share, 1)):
                parts = [torch.full((len(mine),), copies[kind][place][which]) for kind, mine in found.items()]
                out.append(torch.cat(parts)[order])
        born = numbers[numbers >= self.size].sort().values
        slot.append(born)
        move.append(torch.zeros(len(born)))
        share.append(torch.zeros(len(born)))
        one, two, three = (torch.cat(part).to(device) for part in (slot, move, share))
        return Roster(self.size, self.new, one, two, three, None if stretches is None else tuple(stretches))


def list_slots(width: Width, kinds: Sequence[Kind]) -> Slots:
    """What the kinds offer in a width; no neuron may be a candidate of two kinds."""
    standing: dict[Kind, Tensor] = {}
    taken: dict[int, Kind] = {}
    first = width.size
    for kind in kinds:
        old = kind.find_existing(width).nonzero().flatten()
        twice = next((number for number in old.tolist() if number in taken), None)
        if twice is not None:
            raise FireflyError(
                f"width {width.name!r}: neuron {twice} is a candidate of {taken[twice].name!r} and of {kind.name!r}; "
                "a neuron may have one future only: leave one of them out, or let each name its own neurons"
            )
        taken |= dict.fromkeys(old.tolist(), kind)
        new = kind.count_new(width)
        standing[kind] = torch.cat([old, torch.arange(first, first + new)])
        first += new
    return Slots(width.size, standing)
