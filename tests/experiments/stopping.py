"""To stop an experiment after a step, and to compare what came of it."""

import time
from dataclasses import replace
from typing import Any

from firefly.experiments.setting import World


class Clock:
    """Time goes on by one whenever it is asked for."""

    perf_counter = staticmethod(time.perf_counter)

    def __init__(self) -> None:
        self.now = time.monotonic()

    def monotonic(self) -> float:
        self.now += 1.0
        return self.now


def timeless(row: dict[str, Any]) -> dict[str, Any]:
    growth = {key: value for key, value in row.get("growth", {}).items() if key != "seconds"}
    return {key: value for key, value in row.items() if "seconds" not in key} | {"growth": growth}


def move(world: World, **place: Any) -> World:
    """The same experiment in another place, or until another time."""
    return replace(world, place=replace(world.place, **place))
