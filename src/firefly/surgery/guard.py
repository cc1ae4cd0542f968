"""Ctrl-C without torn models: an interrupt waits while something is half done, and comes as soon as it is whole.

Python raises KeyboardInterrupt between any two instructions, so also inside a `finally`, or before the first line of an
`__exit__`, and what should have been put back is not. Here SIGINT is caught instead. In an `unbroken` block it waits
until the block has ended. In an `interruptible` one it comes at once, except while any context manager is being entered
or left: the call stack itself says so, which leaves no moment in between.
"""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Callable
from types import FrameType
from typing import Any

EDGES = ("__enter__", "__exit__")  # where context managers take something over and give it back
SWALLOWED = ("__del__", "remove")  # finalisers, and what weak dictionaries call: Python ignores what is raised there


class State:
    """Of the main thread, as only that one is interrupted."""

    depth = 0  # blocks entered
    held = 0  # unbroken ones among them, and what `see_through` adds
    lasting = 0  # lasting ones among them
    promised = 0  # what `see_through` added
    waiting = False  # an interrupt has come and was not passed on yet
    handler: Callable[[int, FrameType | None], Any] = signal.default_int_handler  # the user's


def catch(number: int, frame: FrameType | None) -> None:
    """The handler of SIGINT inside the blocks: let it wait, or pass it on to the user's own."""
    if State.held or is_at_edge(frame):
        State.waiting = True
    else:
        State.handler(number, frame)


def is_main() -> bool:
    return threading.current_thread() is threading.main_thread()


def is_at_edge(frame: FrameType | None) -> bool:
    """Whether something is being taken over or given back, or an exception would be ignored."""
    while frame is not None:
        if frame.f_code.co_name in EDGES + SWALLOWED:
            return True
        frame = frame.f_back
    return False


class interruptible:
    """Inside, an interrupt waits while a context manager is entered or left; it comes at the end of this one at last.

    Blocks may be nested. In other threads, and where SIGINT is ignored or kills the process, they do nothing.
    """

    active = False

    def __enter__(self) -> None:
        if not is_main():
            return
        if not State.depth:
            handler = signal.getsignal(signal.SIGINT)
            if not callable(handler):
                return
            State.handler, State.waiting, State.held, State.lasting, State.promised = handler, False, 0, 0, 0
            signal.signal(signal.SIGINT, catch)
        State.depth += 1
        self.active = True

    def __exit__(self, *error: object) -> None:
        if not self.active:
            return
        State.depth -= 1
        if not State.depth:
            there = signal.signal(signal.SIGINT, State.handler)
            if there is not catch:  # the user put another one there inside the block
                signal.signal(signal.SIGINT, there)
        if State.waiting and not State.held:
            State.waiting = False
            State.handler(signal.SIGINT, sys._getframe())


class unbroken(interruptible):
    """Inside, an interrupt waits; it comes when the outermost of such blocks ends."""

    def __enter__(self) -> None:
        super().__enter__()
        State.held += self.active

    def __exit__(self, *error: object) -> None:
        State.held -= self.active
        super().__exit__()


class lasting(interruptible):
    """Inside, from a call of `see_through` on, an interrupt waits; it comes when the outermost of such blocks ends.

    For what has a point of no return: before it an interrupt gives up, after it all the rest is done as well.
    """

    def __enter__(self) -> None:
        super().__enter__()
        State.lasting += self.active

    def __exit__(self, *error: object) -> None:
        State.lasting -= self.active
        if self.active and not State.lasting:
            State.held, State.promised = State.held - State.promised, 0
        super().__exit__()


def see_through() -> None:
    """The point of no return of the `lasting` block around, if there is one."""
    if is_main() and State.lasting:
        State.held, State.promised = State.held + 1, State.promised + 1
