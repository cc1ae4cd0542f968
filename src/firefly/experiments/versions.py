"""What a row was measured with: the versions of this package and of what computes.

Where the checkout has no history (a copy on another machine), the environment's FIREFLY_COMMIT says the commit.
"""

from __future__ import annotations

import os
import subprocess
from functools import cache
from pathlib import Path

import torch

import firefly


@cache
def list_versions() -> dict[str, str | None]:
    """{firefly, commit, torch, cuda, cudnn}; None for what there is not."""
    cudnn = torch.backends.cudnn.version() if torch.backends.cudnn.is_available() else None
    return {
        "firefly": firefly.__version__,
        "commit": find_commit(Path(firefly.__file__).resolve().parent) or os.environ.get("FIREFLY_COMMIT"),
        "torch": str(torch.__version__),
        "cuda": torch.version.cuda,
        "cudnn": None if cudnn is None else str(cudnn),
    }


def find_commit(package: Path) -> str | None:
    """The commit of the checkout that the package is run from, with a + if its code was changed since."""
    root = ask_git(package, "rev-parse", "--show-toplevel")
    if root is None or Path(root).resolve() / "src" / "firefly" != package:
        return None  # installed, perhaps below somebody else's checkout
    commit, changes = (
        ask_git(package, "rev-parse", "--short=12", "HEAD"),
        ask_git(package, "status", "--porcelain", "."),
    )
    return f"{commit}+" if commit and changes else commit


def ask_git(folder: Path, *words: str) -> str | None:
    try:
        answer = subprocess.run(["git", "-C", str(folder), *words], capture_output=True, text=True, timeout=20)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return answer.stdout.strip() if answer.returncode == 0 else None
