"""Help as wide as the terminal, and what is wrong with the words of a command in one line, with the way out."""

from __future__ import annotations

from argparse import ArgumentParser, HelpFormatter, Namespace, RawDescriptionHelpFormatter
from collections.abc import Sequence
from difflib import get_close_matches
from typing import Any, NoReturn


class Layout(RawDescriptionHelpFormatter):
    """Paragraphs are filled; those with an indented line, such as a command to copy, stay as they are."""

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        parts = text.strip().split("\n\n")
        raw = [any(line.startswith(" ") for line in part.splitlines()) for part in parts]
        return "\n\n".join(
            part if stays else HelpFormatter._fill_text(self, part, width, indent) for part, stays in zip(parts, raw)
        )


class Parser(ArgumentParser):
    def __init__(self, *args: Any, **how: Any) -> None:
        super().__init__(*args, **{"formatter_class": Layout, **how})

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> tuple[Namespace, list[str]]:  # type: ignore[override]
        """Nothing is left over: a command is asked before the program, and knows its options."""
        found, rest = super().parse_known_args(args, namespace)
        if rest:
            self.error(self.explain(rest))
        return found, rest

    def explain(self, rest: Sequence[str]) -> str:
        """What is wrong with the first word that nothing takes."""
        word = next((one for one in rest if one.startswith("-")), "")
        if not word:
            return f"{rest[0]!r} is one word too many"
        known = [option for action in self._actions for option in action.option_strings]
        close = get_close_matches(word.partition("=")[0], known, 1)
        return f"there is no option {word}" + (f"; did you mean {close[0]}?" if close else "")

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{self.prog}: {message} (help: {self.prog} --help)\n")
