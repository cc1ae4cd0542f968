"""Ctrl-C at aimed lines, at aimed lines and again during the clean-up, and at any moment, up to three times.

Every operation is deterministic, so afterwards a run must be what it was before or what the operation makes of it.
"""

import copy
import random
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

import firefly
from attacks.run import Run, Tally, batches, example, fingerprint, load, loss, make_large, make_run, save, train
from firefly.surgery import guard

OPERATIONS: dict[str, Callable[[Run, Path], Any]] = {
    "grow": lambda run, folder: run.grower.grow(loss, batches(), run.optimizer),
    "preview": lambda run, folder: run.grower.preview(loss, batches()),
    "deepen": lambda run, folder: firefly.deepen(run.model, example(), optimizer=run.optimizer),
    "save": lambda run, folder: save(folder / "small", run),
    "load": lambda run, folder: load(folder / "large", run),
}
AIMED = tuple(f"/firefly/{one}" for one in ("surgery/", "checkpoint/", "stages/", "depth.py", "descent.py"))
AIMED += ("/contextlib.py",)


class Aim:
    """A trace function that interrupts at the n-th line of these files, or only counts their lines."""

    def __init__(self, at: int = 0, files: tuple[str, ...] = AIMED) -> None:
        self.at, self.files, self.seen = at, files, 0
        self.known: dict[str, bool] = {}

    def __call__(self, frame: Any, event: str, arg: Any) -> Any:
        name = frame.f_code.co_filename
        if name not in self.known:
            self.known[name] = any(part in name for part in self.files)
        return self.line if self.known[name] else None

    def line(self, frame: Any, event: str, arg: Any) -> Any:
        if event == "line":
            self.seen += 1
            if self.seen == self.at:
                signal.raise_signal(signal.SIGINT)
        return self.line


def storm(first: float, again: float, times: int) -> None:
    """Interrupt what is performed after `first` seconds, and so many `times` in all, `again` seconds apart."""
    left = [times]

    def strike(number: int, frame: Any) -> None:
        left[0] -= 1
        if left[0] <= 0:
            signal.setitimer(signal.ITIMER_REAL, 0)
        while frame is not None and frame.f_code is not perform.__code__:
            frame = frame.f_back
        if frame is not None:
            signal.raise_signal(signal.SIGINT)

    signal.signal(signal.SIGALRM, strike)
    signal.setitimer(signal.ITIMER_REAL, max(first, 1e-6), max(again, 1e-6))


def perform(operation: Callable[[], Any]) -> None:
    operation()


def interrupt(operation: Callable[[], Any], aim: Aim | None, first: float = 0, again: float = 0, times: int = 0) -> str:
    """How an operation ends under interrupts: "done", "interrupted", or with another exception, by name."""
    try:
        if times:
            storm(first, again, times)
        sys.settrace(aim)
        perform(operation)
        outcome = "done"
    except KeyboardInterrupt:
        outcome = "interrupted"
    except BaseException as error:
        outcome = f"{type(error).__name__}: {error}"
    sys.settrace(None)
    signal.setitimer(signal.ITIMER_REAL, 0)
    return outcome


def attack(count: int, folder: Path, seed: int = 0) -> Tally:
    """Interrupt growths, previews, deepenings, saves and loads."""
    tally, luck = Tally(), random.Random(seed)
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a process in the background ignores it
    large, small = make_large(), make_run()
    train(small)
    save(folder / "large", large)
    save(folder / "small", small)
    start, ends, lines, seconds = torch.get_rng_state(), {}, {}, {}
    for name, operation in [*OPERATIONS.items()] * 2:  # twice, since torch imports things when it is first used
        torch.set_rng_state(start)
        run, aim, begun = copy.deepcopy(small), Aim(), time.perf_counter()
        before = fingerprint(run)
        interrupt(lambda: operation(run, folder), aim)  # noqa: B023
        ends[name], lines[name], seconds[name] = {before, fingerprint(run)}, aim.seen, time.perf_counter() - begun
        assert (len(ends[name]) == 2) == (name in ("grow", "deepen", "load")), name
    for turn in range(count):
        name = list(OPERATIONS)[turn % len(OPERATIONS)]
        torch.set_rng_state(start)
        run = copy.deepcopy(small)
        aim = Aim(luck.randint(1, lines[name])) if turn % 3 else None
        times = luck.randint(1, 3) if turn % 3 != 1 else 0
        first, again = luck.uniform(0, seconds[name]), 10 ** luck.uniform(-5, -2)
        outcome = interrupt(lambda: OPERATIONS[name](run, folder), aim, first, again, times)  # noqa: B023
        what = f"{name}, line {aim.at if aim else '-'}, {times} at {first:.4f} s: {outcome}"
        tally.count(f"{name} {outcome if outcome in ('done', 'interrupted') else 'failed'}")
        if outcome not in ("done", "interrupted"):
            tally.blame("raw", what)
        if not is_calm():
            tally.blame("changed", f"the handler, by {what}")
        if (end := fingerprint(run)) not in ends[name]:
            parts = min(({part for part, _ in set(end) ^ set(other)} for other in ends[name]), key=len)
            tally.blame("changed", f"{sorted(parts)[:6]}, by {what}")
        if name == "save" and not is_whole(folder / "small", small):
            tally.blame("lost", what)
    return tally


def is_calm() -> bool:
    """Whether the user's own handler of SIGINT is in place again."""
    calm = signal.getsignal(signal.SIGINT) is signal.default_int_handler and not guard.State.depth
    signal.signal(signal.SIGINT, signal.default_int_handler)
    guard.State.depth = 0
    return calm


def is_whole(folder: Path, saved: Run) -> bool:
    """Whether the folder holds this run."""
    kept = torch.get_rng_state()
    try:
        found = load(folder, make_run())
        torch.set_rng_state(kept)
        for one, other in zip(found.model.parameters(), saved.model.parameters()):
            one.grad = other.grad
        return fingerprint(found) == fingerprint(saved)
    except firefly.FireflyError:
        return False
    finally:
        torch.set_rng_state(kept)
