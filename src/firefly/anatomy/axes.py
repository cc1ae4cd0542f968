"""The algebra of channel dimensions: which entries of which tensors belong to the same neuron.

Every dimension of every tensor is an *axis*: a chain of terms. A term is a `Space`, which has `size` neurons, times a
block of neighbouring entries that each neuron owns (a flattened 4x4 map gives blocks of 16, an attention head the
rows of its head). Operators say that two axes are the same; `unify` makes them so, by binding one space to the other,
by cutting a space where a concatenation begins, or by joining neurons into blocks where groups or heads demand it.
What cannot be the same is pinned, with a reason, and never grows.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(eq=False)
class Space:
    """A set of neurons: free to grow, pinned with a reason, or bound to other spaces."""

    size: int
    pinned: str | None = None
    bound: Axis | None = None


@dataclass(frozen=True)
class Term:
    space: Space
    block: int = 1

    @property
    def length(self) -> int:
        return self.space.size * self.block


Axis = tuple[Term, ...]


def free(size: int) -> Axis:
    """A new axis of `size` neurons that may grow."""
    return (Term(Space(size)),)


def fixed(size: int, reason: str) -> Axis:
    """An axis that never grows."""
    return (Term(Space(size, pinned=reason)),)


def resolve(axis: Axis) -> Axis:
    """The same axis in terms of spaces that are not bound."""
    out: list[Term] = []
    for term in axis:
        if term.space.bound is None:
            out.append(term)
        else:
            out += [Term(inner.space, inner.block * term.block) for inner in resolve(term.space.bound)]
    return tuple(out)


def length(axis: Axis) -> int:
    return sum(term.length for term in axis)


def growable(axis: Axis) -> bool:
    return any(term.space.pinned is None for term in resolve(axis))


def why(axis: Axis) -> str | None:
    """The first reason for which some part of the axis is pinned."""
    return next((term.space.pinned for term in resolve(axis) if term.space.pinned), None)


def is_vague(reason: str) -> bool:
    """Whether it tells less than the operator does that pinned the axis in the first place."""
    return reason.startswith("it ")


def pin(axes: Iterable[Axis], reason: str) -> None:
    for axis in axes:
        for term in resolve(axis):
            term.space.pinned = term.space.pinned or reason


def unify(a: Axis, b: Axis, reason: str) -> None:
    """Make the two axes the same; where that is impossible, pin both for the reason."""
    a, b = resolve(a), resolve(b)
    while a and b and a[0] == b[0]:
        a, b = a[1:], b[1:]
    if not a and not b:
        return
    if length(a) != length(b):
        pin((a, b), reason)
        return
    shorter = min(a[0].length, b[0].length)
    if not (_cut(a[0], shorter) and _cut(b[0], shorter)):
        pin((a, b), reason)
        return
    a, b = resolve(a), resolve(b)
    if a[0] != b[0]:
        _join(a[0], b[0])
    unify(a, b, reason)


def split(axis: Axis, lengths: Iterable[int], reason: str) -> list[Axis]:
    """Cut an axis into consecutive pieces; where a neuron would be torn apart, pin everything for the reason."""
    pieces: list[Axis] = []
    rest = resolve(axis)
    for size in lengths:
        piece: list[Term] = []
        while size:
            if not _cut(rest[0], min(size, rest[0].length)):
                pin((axis,), reason)
                return [fixed(n, reason) for n in lengths]
            rest = resolve(rest)
            piece.append(rest[0])
            size -= rest[0].length
            rest = rest[1:]
        pieces.append(tuple(piece))
    return pieces


def in_blocks(axis: Axis, count: int, reason: str) -> Axis:
    """The axis as `count` neurons with equal blocks, and those neurons alone as the result."""
    neurons = free(count)
    block = length(axis) // count
    unify(axis, (Term(neurons[0].space, block),), reason)
    return resolve(neurons)


def times(axis: Axis, before: int, after: int) -> Axis:
    """The axis of a flattened (before, axis, after) array."""
    return tuple(Term(term.space, term.block * after) for term in resolve(axis)) * before


def _cut(term: Term, at: int) -> bool:
    """Bind the term's space so that a boundary falls after `at` entries; False where a neuron would be torn."""
    if at == term.length:
        return True
    if at % term.block:
        return False
    first = at // term.block
    pinned = term.space.pinned
    parts = Space(first, pinned), Space(term.space.size - first, pinned)
    term.space.bound = tuple(Term(part) for part in parts)
    return True


def _join(a: Term, b: Term) -> None:
    """Bind two unbound terms of equal length to the same neurons."""
    reasons = [space.pinned for space in (a.space, b.space) if space.pinned]
    reason = min(reasons, key=is_vague, default=None)
    count = math.gcd(a.space.size, b.space.size)
    if a.space.size == count:
        common = a.space
    elif b.space.size == count:
        common = b.space
    else:
        common = Space(count)
    common.pinned = reason
    for term in (a, b):
        if term.space is not common:
            term.space.bound = (Term(common, term.space.size // count),)
