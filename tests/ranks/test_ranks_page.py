"""The code of docs/several-gpus.md runs on two ranks, in order, as one script."""

from __future__ import annotations

import contextlib
import io
import re
from pathlib import Path
from typing import Any

from crew import run_ranks

PAGE = Path(__file__).parents[2] / "docs" / "several-gpus.md"


def run_page(rank: int) -> Any:
    import torch.distributed as dist

    dist.init_process_group = lambda: None
    said, scope = io.StringIO(), {}
    with contextlib.redirect_stdout(said):
        for block in re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL):
            exec(compile(block, PAGE.name, "exec"), scope)
    return said.getvalue(), [growth["added"] for growth in scope["grower"].history]


def test_the_blocks_of_the_page_run() -> None:
    (first, grown), (second, other) = run_ranks(2, run_page)
    assert grown == other and len(grown) == 2
    assert first.count("widths; parameters") == 2 and second.count("widths; parameters") == 0
    assert "on this rank" in first and "on this rank" in second
