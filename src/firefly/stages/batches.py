"""The batches of a growth: those of step one, and others that it never sees, for scores and losses."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import chain, cycle, islice
from typing import Any

from firefly.errors import FireflyError


def hold_batches(
    batches: Iterable[Any], steps: int, count: int, held: Iterable[Any] | None = None
) -> tuple[OnePass, list[Any]]:
    """The batches of step one, and others, in memory, for scores and losses: step one fits the noise of its own.

    The user's `held` ones, or the first `count` of the batches, at most half of them; of a single batch both are made.
    A loader that shuffles would bring held samples back in a second pass, so step one sees one pass only, again and
    again if it is short.
    """
    given = None if held is None else _take(held, count, "held")
    if not isinstance(batches, Iterable) or isinstance(batches, (str, bytes)):
        raise FireflyError(f"batches must be an iterable of batches, not {type(batches).__name__}")
    way = iter(batches)
    first = list(islice(way, 1 if given else 2 * count))
    if not first:
        raise FireflyError("there are no batches: pass at least one, as loss(model, batch) takes it")
    if given:
        return OnePass(batches, chain(first, way), 0, steps), given
    own = first[: max(1, min(count, len(first) // 2))]
    skip = len(own) if len(first) > 1 else 0
    return OnePass(batches, chain(first[skip:], way), skip, steps), own


def _take(held: Iterable[Any], count: int, name: str) -> list[Any]:
    if not isinstance(held, Iterable) or isinstance(held, (str, bytes)):
        raise FireflyError(f"{name} must be an iterable of batches, not {type(held).__name__}")
    found = list(islice(held, count))
    if not found:
        raise FireflyError(f"{name} has no batches: pass at least one, or leave {name} out")
    return found


class OnePass:
    """The rest of a pass whose first batches were held; every further pass brings the same batches again."""

    def __init__(self, batches: Iterable[Any], begun: Iterator[Any], skip: int, steps: int) -> None:
        self.batches, self.begun, self.skip = batches, begun, skip
        self.short = (self.count() or 0) - skip < steps  # or of unknown length: its batches are remembered
        self.seen: list[Any] = []

    def count(self) -> int | None:
        """How many there are in the user's pass, if it says so."""
        try:
            return len(self.batches)  # type: ignore[arg-type]
        except TypeError:  # also a DataLoader of a stream, which has a __len__ all the same
            return None

    def __iter__(self) -> Iterator[Any]:
        if isinstance(self.batches, Sequence):  # gives the same batch whenever it is asked
            yield from (self.batches[number] for number in range(self.skip, len(self.batches)))
            return
        yield from self.seen
        empty = not self.seen
        for batch in self.begun:
            empty = False
            self.seen += [batch] if self.short else []
            yield batch
        if empty:  # a method that wants more than the steps it was asked for
            yield from islice(self.batches, self.skip, None)


def endless(batches: Iterable[Any]) -> Iterator[Any]:
    """The batches over and over; a one-shot iterator is remembered."""
    if iter(batches) is batches:
        yield from cycle(batches)
    while True:
        empty = True
        for batch in batches:
            empty = False
            yield batch
        if empty:
            raise FireflyError("the batches can be read only once: pass a list or a DataLoader")
