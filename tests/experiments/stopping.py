"""To stop an experiment after a step, and to compare what came of it."""

import time
from typing import Any


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
