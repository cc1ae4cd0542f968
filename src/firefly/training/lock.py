"""One `fit` at a time in a folder: `fit.lock` names the process that works there, and what it is writing.

The lock is the operating system's, so a process that is killed lets go of it; what it was writing when that happened is
still named in the file, and the next one clears it away.
"""

from __future__ import annotations

import json
import os
import socket
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from firefly.errors import FireflyError
from firefly.ranks.talk import find_rank, together
from firefly.surgery.guard import unbroken

NAME = "fit.lock"


class Lock:
    """The folder of a run, held by this process, or by the first of several ranks, which alone writes there."""

    def __init__(self, folder: Path, descriptor: int | None) -> None:
        self.folder, self.descriptor = folder, descriptor
        self.current: str | None = None  # the checkpoint that `fit.json` names
        self.unfinished: Any = None  # left by a process that was killed
        if descriptor is not None:
            self.unfinished = read(descriptor).get("writing")
            self.note(None)

    @property
    def writes(self) -> bool:
        return self.descriptor is not None

    def note(self, writing: str | None) -> None:
        """Say which checkpoint is being written."""
        assert self.descriptor is not None
        content = {"pid": os.getpid(), "host": socket.gethostname(), "writing": writing}
        os.ftruncate(self.descriptor, 0)
        os.lseek(self.descriptor, 0, os.SEEK_SET)
        os.write(self.descriptor, json.dumps(content).encode())


@contextmanager
def hold(folder: str | os.PathLike[str]) -> Iterator[Lock]:
    """Let no other `fit` work in the folder meanwhile. It is made if need be, and goes if nothing came of it."""
    held: list[tuple[Path, int, bool]] = []

    def let_go() -> None:
        with unbroken():
            while held:
                release(*held.pop())

    try:
        try:
            with together():
                if find_rank() == 0:
                    with unbroken():
                        held.append(take(folder))
            yield Lock(*held[0][:2]) if held else Lock(Path(folder), None)
        finally:
            let_go()
    finally:  # an interrupt may have come between the lines above
        let_go()


def take(folder: str | os.PathLike[str]) -> tuple[Path, int, bool]:
    """The folder, its locked file, and whether it was made for this."""
    try:
        root = Path(folder)
        if (root / "checkpoint.json").exists():
            raise FireflyError(f"{root} holds a checkpoint of firefly.save: give the run another folder")
        fresh = not root.exists()
        root.mkdir(parents=True, exist_ok=True)
        return root, acquire(root / NAME), fresh
    except (OSError, TypeError, ValueError) as error:
        why = getattr(error, "strerror", None) or error
        raise FireflyError(f"{str(folder)!r} is no folder to write to: {why}; give another one") from error


def acquire(path: Path) -> int:
    """The locked file."""
    while True:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
        try:
            lock(descriptor, path)
            if path.exists() and os.path.samestat(os.fstat(descriptor), path.stat()):
                return descriptor
        except BaseException:
            os.close(descriptor)
            raise
        os.close(descriptor)  # its owner took it away just now: once more


def lock(descriptor: int, path: Path) -> None:
    if sys.platform == "win32":
        return
    import fcntl

    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        other = read(descriptor)
        who = f"process {other.get('pid', 'unknown')} on {other.get('host', 'an unknown host')}"
        raise FireflyError(
            f"another fit is at work in {path.parent} ({who}): wait for it, stop it, or use another folder"
        ) from error
    except OSError:
        return  # some network file systems cannot lock


def release(root: Path, descriptor: int, fresh: bool) -> None:
    """Let go of the lock, whatever becomes of its file: an interrupt may come as that is deleted."""
    path = root / NAME
    try:
        if sys.platform != "win32":
            path.unlink(missing_ok=True)
    finally:
        if sys.platform != "win32":
            import fcntl

            with suppress(OSError):  # closing alone would not let go if a worker was forked meanwhile
                fcntl.flock(descriptor, fcntl.LOCK_UN)
        os.close(descriptor)
    if sys.platform == "win32":  # where an open file cannot be deleted
        path.unlink(missing_ok=True)
    if fresh:
        with suppress(OSError):  # it is not empty, as a rule
            root.rmdir()


def read(descriptor: int) -> dict[str, Any]:
    """What the file says; nothing if it is new, or half written."""
    os.lseek(descriptor, 0, os.SEEK_SET)
    with suppress(ValueError):
        content = json.loads(os.read(descriptor, 10_000))
        return content if isinstance(content, dict) else {}
    return {}
