"""Every table and number of the README and of docs/ that comes from results/ is written by this command.

    python benchmarks/tables.py                 writes them, between the marks where they stand
    python benchmarks/tables.py --check         fails where a page and the results disagree
    python benchmarks/tables.py --show "find vgg19-4"

A mark is `<!-- table: NAME WORDS -->`, and the piece ends at `<!-- /table -->`. On lines of its own it is a block,
within a line a number. NAME is a piece of one of the files `tables_*.py` beside this one, WORDS go to it.
Differences are paired by seed, with the standard error of the difference; those in bold exceed two of them, over three
seeds or more.
"""

import argparse
import re
import sys
from collections.abc import Callable
from pathlib import Path

import tables_continual
import tables_nas
import tables_other
import tables_pays
import tables_ranks
import tables_wider
import tables_zoo

ROOT = Path(__file__).parents[1]
ROOMS = (tables_wider, tables_pays, tables_other, tables_continual, tables_nas, tables_zoo, tables_ranks)
PIECES: dict[str, Callable[..., str]] = {name: piece for room in ROOMS for name, piece in room.PIECES.items()}
MARK = re.compile(r"(<!-- table: ([^>]*?) -->)(.*?)(<!-- /table -->)", re.DOTALL)


class Wrong(Exception):
    """A mark that cannot be filled."""


def make(words: str) -> str:
    """The piece that a mark asks for."""
    name, *given = words.split()
    if name not in PIECES:
        raise Wrong(f"there is no table {name!r}; known: {', '.join(sorted(PIECES))}")
    try:
        return PIECES[name](*given)
    except (LookupError, TypeError, ValueError, StopIteration) as error:
        raise Wrong(f"table {words!r}: {type(error).__name__}: {error}") from error


def fill(text: str) -> str:
    """The page with every piece as the results have it."""

    def put(found: re.Match[str]) -> str:
        mark, words, old, end = found.groups()
        new = make(words)
        return f"{mark}\n\n{new}\n\n{end}" if old.startswith("\n") or "\n" in new else f"{mark}{new}{end}"

    if text.count("<!-- table:") != len(MARK.findall(text)) or text.count("<!-- /table -->") != len(MARK.findall(text)):
        raise Wrong("a mark has no end, or an end no mark")
    return MARK.sub(put, text)


def list_pages(root: Path) -> list[Path]:
    return [root / "README.md", *sorted((root / "docs").rglob("*.md"))]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="change nothing; fail where something would change")
    parser.add_argument("--show", metavar="NAME WORDS", help="print one piece")
    how = parser.parse_args()
    try:
        if how.show:
            print(make(how.show))
            return 0
        return write(list_pages(ROOT), how.check)
    except Wrong as error:
        print(error, file=sys.stderr)
        return 2


def write(pages: list[Path], check: bool) -> int:
    """Fill the pages, or say which differ."""
    stale = 0
    for path in pages:
        text = path.read_text(encoding="utf-8")
        try:
            new = fill(text)
        except Wrong as error:
            raise Wrong(f"{path}: {error}") from error
        if new != text:
            stale += 1
            print(f"{path}: {'not as the results have it' if check else 'written'}")
            if not check:
                path.write_text(new, encoding="utf-8")
    return 1 if check and stale else 0


if __name__ == "__main__":
    raise SystemExit(main())
