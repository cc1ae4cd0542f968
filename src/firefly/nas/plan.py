"""How a search is done (App. B.3): one `Plan`, all of it checked at once; the results carry it."""

from __future__ import annotations

import json
import math
from dataclasses import asdict, dataclass
from typing import Any

from firefly.errors import FireflyError
from firefly.nas.template import CHANNELS, START

CHOICES = {  # the usual one first
    "share_of": ("candidates", "neurons"),
    "worth": ("neuron", "operation"),
    "decide": ("width", "gain"),
}


@dataclass(frozen=True)
class Plan:
    """The paper's search, and what it leaves open.

    - `channels`, `start`, `new`: per cell the channels of edges, of operations at first, and new candidates a growth.
    - `asleep`: operations begin without neurons instead: edges are the identity until something grows there.
    - `sweeps` over the five cells, one growth of one cell after every `every` epochs of training; `step_one` epochs of
      step one in each growth. 5 + 5 are the paper's "every 10 epochs", so that 10 growths take 100 epochs in all.
    - `anneal`: the learning rate falls to 0 before every growth, and not only before the end: what a growth finds is
      then no remedy for the noise of large steps, which every operation can give (`benchmarks/nas_probe.py`).
    - `keep`: this share is kept, of the candidates or of the neurons there are (`share_of`): the paper says "25 %".
    - `worth`: by what candidates are ranked: the gain of each "neuron" (the paper), or that of its whole "operation",
      so that it is taken as one. Per parameter or FLOP is no other ranking: a channel costs the same in all of a cell.
    - `unseen`: gains are measured on images that step one has not seen, `score_on` batches of four times the size.
    - `split`, `fresh`: ε of a split and of a new neuron; `rate`: the learning rate of step one.
    - `decide`: the operation with the largest "width" wins its edge (the paper), or that with the largest "gain".
    - `least`: identity where no operation grew by this share. `inputs`: so many strongest inputs of a node stay.
    """

    channels: tuple[int, ...] = CHANNELS
    start: tuple[int, ...] = START
    new: tuple[int, ...] = START
    nodes: int = 4
    asleep: bool = False
    sweeps: int = 2
    every: int = 5
    anneal: bool = True
    step_one: float = 5.0
    keep: float = 0.25
    share_of: str = "candidates"
    worth: str = "neuron"
    unseen: bool = True
    score_on: int = 6
    split: float = 1.0
    fresh: float = 0.03
    rate: float = 0.02
    batch: int = 256
    lr: float = 0.1
    weight_decay: float = 3e-4
    decide: str = "width"
    least: float = 0.2
    inputs: int = 2
    images: int | None = None  # only so many training images
    held_out: int = 0  # training images that neither search nor training sees, to choose by

    def __post_init__(self) -> None:
        for name, known in CHOICES.items():
            if getattr(self, name) not in known:
                raise FireflyError(f"{name}={getattr(self, name)!r}: it is one of {', '.join(known)}")
        for name in ("channels", "start", "new"):
            sizes = getattr(self, name)
            if len(sizes) != 5 or any(type(one) is not int or one < 1 for one in sizes):
                raise FireflyError(f"{name}={sizes!r}: give five whole numbers, one per cell")
        for name in ("nodes", "sweeps", "every", "score_on", "batch", "inputs"):
            if type(getattr(self, name)) is not int or getattr(self, name) < 1:
                raise FireflyError(f"{name}={getattr(self, name)!r}: give a whole number from 1 up")
        for name in ("step_one", "keep", "split", "fresh", "rate", "lr"):
            if not 0 < getattr(self, name) < math.inf:
                raise FireflyError(f"{name}={getattr(self, name)!r}: give a number above 0")
        if not 0 <= self.least < math.inf:
            raise FireflyError(f"least={self.least!r}: give a share from 0 up, such as 0.2")

    @property
    def growths(self) -> int:
        return self.sweeps * len(self.channels)

    @property
    def epochs(self) -> int:
        """Of training; one follows the last growth."""
        return self.growths * self.every + 1

    @property
    def begin(self) -> tuple[int, ...]:
        """The widths of operations at first."""
        return (0,) * len(self.start) if self.asleep else self.start

    @property
    def title(self) -> str:
        """What tables call cells that were found so."""
        chosen = (getattr(self, name) for name, known in CHOICES.items() if getattr(self, name) != known[0])
        return "-".join(filter(None, ("firefly", self.asleep * "asleep", *chosen)))

    def to_dict(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(json.dumps(asdict(self)))
        return found
