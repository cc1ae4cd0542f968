"""The one progress line: rewritten in place on a terminal, elsewhere a new line now and then."""

from __future__ import annotations

import sys
import time
from typing import TextIO

from firefly.ranks.talk import find_rank


class Line:
    """`line("epoch 3/10")` shows how far something is, `line("epoch 10/10", last=True)` how it ended.

    On a terminal the text stands in one line, renewed a few times a second; elsewhere it is printed every ten seconds.
    What is said `last` is always shown, and stays. Of several ranks only the first speaks.
    """

    def __init__(self, shown: bool = True, stream: TextIO | None = None, pause: float = 10.0) -> None:
        self.shown, self.stream = shown and find_rank() == 0, stream or sys.stderr
        self.live = self.stream.isatty()
        self.pause = 0.2 if self.live else pause
        self.standing = False  # whether there is text in the line that lives
        self.shown_at = float("-inf") if self.live else time.monotonic()

    def __call__(self, text: str, last: bool = False) -> None:
        if not self.shown or not (last or time.monotonic() - self.shown_at >= self.pause):
            return
        self.write(f"\r\x1b[K{text}" + "\n" * last if self.live else f"{text}\n")
        self.standing = self.live and not last
        self.shown_at = time.monotonic()

    def close(self, clear: bool = False) -> None:
        """Leave what stands in the line, or take it away."""
        if self.standing:
            self.write("\r\x1b[K" if clear else "\n")
        self.standing = False

    def write(self, text: str) -> None:
        self.stream.write(text)
        self.stream.flush()


def format_time(seconds: float) -> str:
    """1:02:03, or 2:03."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"
