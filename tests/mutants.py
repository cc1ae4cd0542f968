"""Do the tests notice? Single-line faults, put into a copy of the code one by one (`make mutants`).

Every fault of `faults/*.toml` names a file of the package, a piece of it that stands there exactly once, what to write
instead, what is wrong then, and the tests that are meant to notice. In a copy of the tree the piece is replaced and
these tests run: a fault that they pass with has *survived*. A piece that is not there, or more than once, is an error,
so that the list stays true; so are tests that fail without the fault, or that cannot even be collected with it.

    python tests/mutants.py --list
    python tests/mutants.py --only nash --jobs 2
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import re
import shutil
import sys
import tempfile
import time
import tomllib
from collections import Counter
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from queue import SimpleQueue

ROOT = Path(__file__).resolve().parent.parent
COPIED = ("src", "tests", "benchmarks", "results", "pyproject.toml")
SURVIVORS = 3  # that are put up with
FORKS = multiprocessing.get_context("forkserver")  # one process imports torch, those of the tests begin as its copies
SHARED = ["pytest", "torch", "torch.export._trace", "torch._inductor.codecache", "torch.utils.flop_counter"]
ALIKE = {"OMP_NUM_THREADS": "1", "PYTHONHASHSEED": "0", "PYTHONDONTWRITEBYTECODE": "1"}


@dataclass(frozen=True)
class Fault:
    """One piece of one file, and what a slip would make of it."""

    file: str  # below src/firefly
    line: str  # the piece, as it stands there
    fault: str  # what stands there instead
    wrong: str  # one sentence
    tests: str  # as for pytest: files below tests/, -k, ...


@dataclass(frozen=True)
class Outcome:
    """What became of a fault: "caught", "survived", "does not apply", "too slow" or "error"."""

    fault: Fault
    word: str
    seconds: float = 0.0
    told: str = ""


def read_faults(folder: Path = ROOT / "tests" / "faults") -> list[Fault]:
    return [Fault(**row) for path in sorted(folder.glob("*.toml")) for row in tomllib.loads(path.read_text())["fault"]]


def find_source(root: Path, fault: Fault) -> Path:
    return root / "src" / "firefly" / fault.file


def apply(source: str, fault: Fault) -> str:
    """The source with the fault in it."""
    count = source.count(fault.line)
    if count != 1:
        raise ValueError(f"stands there {count} times: {fault.line}")
    changed = source.replace(fault.line, fault.fault)
    compile(changed, fault.file, "exec")
    return changed


def copy_tree(target: Path) -> Path:
    """The package and its tests, without what Python has compiled of them."""
    target.mkdir()
    for name in COPIED:
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, target / name, ignore=shutil.ignore_patterns("__pycache__", "*.egg-info"))
        else:
            shutil.copy(ROOT / name, target / name)
    return target


def run_tests(root: Path, tests: str, limit: float) -> tuple[int | None, str]:
    """The exit code of pytest in this copy, None if time ran out, and the line that says what failed."""
    words = [word if word.startswith("-") or before == "-k" else f"tests/{word}" for before, word in pairs(tests)]
    log = root / "log.txt"
    process = FORKS.Process(target=run_pytest, args=(root, ["-x", "-q", "-p", "no:cacheprovider", *words], log))
    process.start()
    process.join(limit)
    if process.exitcode is None:
        process.kill()
        process.join()
        return None, f"more than {limit:.0f} s"
    text = log.read_text(errors="replace")
    failed = re.findall(r"^(?:FAILED|ERROR) (.+?)(?: - .*)?$", text, re.MULTILINE)
    return process.exitcode, (failed or text.strip().splitlines()[-1:] or ["?"])[0]


def run_pytest(root: Path, words: list[str], log: Path) -> None:
    """In a process of its own, which has torch already: the tests of this copy against the package of this copy."""
    with log.open("w") as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
    os.chdir(root)
    paths = [str(root / name) for name in ("src", "tests")]
    sys.path[:0], os.environ["PYTHONPATH"] = paths, os.pathsep.join(paths)
    import pytest

    code = int(pytest.main(words))
    found = Path(str(sys.modules["firefly"].__file__)) if "firefly" in sys.modules else root
    if not found.is_relative_to(root):
        print(f"the tests ran against {found}, not against the copy", flush=True)
        code = 9
    sys.stdout.flush()
    os._exit(code)


def pairs(tests: str) -> Iterable[tuple[str, str]]:
    """Every word with the one before it; an expression of several words is put in quotes."""
    words = [word.strip("'\"") for word in re.findall(r"'[^']*'|\"[^\"]*\"|\S+", tests)]
    return zip(["", *words], words)


def try_fault(root: Path, fault: Fault, limit: float) -> Outcome:
    """Put the fault into this copy, run its tests, and take it out again."""
    start, path = time.monotonic(), find_source(root, fault)
    source = path.read_text() if path.is_file() else ""
    try:
        changed = apply(source, fault)
    except (ValueError, SyntaxError) as error:
        return Outcome(fault, "does not apply", told=str(error))
    path.write_text(changed)
    try:
        code, told = run_tests(root, fault.tests, limit)
    finally:
        path.write_text(source)
    word = {None: "too slow", 1: "caught", 0: "survived"}.get(code, "error")
    return Outcome(fault, word, time.monotonic() - start, told)


def try_all(faults: list[Fault], jobs: int, limit: float) -> list[Outcome]:
    """Every fault in its turn, each job in a copy of its own; first the tests as they are, which must pass."""
    copies: SimpleQueue[Path] = SimpleQueue()
    with tempfile.TemporaryDirectory(prefix="mutants-") as folder, ThreadPoolExecutor(jobs) as pool:
        for number in range(jobs):
            copies.put(copy_tree(Path(folder) / str(number)))

        def in_turn(what: Fault | str) -> Outcome:
            root = copies.get()
            try:
                found = check_tests(root, what, limit) if isinstance(what, str) else try_fault(root, what, limit)
            finally:
                copies.put(root)
            if found.word != "passed":
                show(found)
            return found

        plain = list(pool.map(in_turn, dict.fromkeys(fault.tests for fault in faults)))
        broken = {one.fault.tests for one in plain if one.word != "passed"}
        found = list(pool.map(in_turn, [fault for fault in faults if fault.tests not in broken]))
    return [one for one in plain if one.word != "passed"] + found


def check_tests(root: Path, tests: str, limit: float) -> Outcome:
    """Whether the tests pass as things are; without that, failing says nothing."""
    code, told = run_tests(root, tests, limit)
    fault = Fault("", "", "", f"no fault at all, and the tests fail: {tests}", tests)
    return Outcome(fault, "passed" if code == 0 else "error", told=told)


def show(one: Outcome) -> None:
    print(f"{one.word:14} {one.seconds:5.0f} s  {one.fault.file:30} {one.fault.wrong}", flush=True)
    if one.word != "survived":
        print(f"{'':24}{one.told}", flush=True)


def main(words: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", metavar="PATTERN", help="faults whose file, line or sentence has this")
    parser.add_argument("--jobs", type=int, default=1, help="so many at a time (1)")
    parser.add_argument("--limit", type=float, default=180, help="seconds for the tests of one fault (180)")
    parser.add_argument("--list", action="store_true", help="show the faults, try none")
    args = parser.parse_args(words)
    pattern = re.compile(args.only, re.IGNORECASE)
    faults = [one for one in read_faults() if pattern.search(f"{one.file} {one.line} {one.wrong}")]
    if args.list:
        for one in faults:
            print(f"{one.file}: {one.wrong}\n    - {one.line}\n    + {one.fault}\n    {one.tests}")
        print(f"{len(faults)} faults")
        return 0
    os.environ.update(ALIKE)
    FORKS.set_forkserver_preload(SHARED)
    found = Counter(one.word for one in try_all(faults, args.jobs, args.limit))
    print(f"{len(faults)} faults: " + ", ".join(f"{count} {word}" for word, count in found.items()))
    return int(found["survived"] > SURVIVORS or found.keys() - {"caught", "survived"} != set())


if __name__ == "__main__":
    sys.exit(main())
