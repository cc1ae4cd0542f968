"""The code of docs/several-gpus.md runs on two ranks, in order, as one script, and its loop goes on after a kill."""

from __future__ import annotations

import contextlib
import io
import os
import re
import signal
from pathlib import Path
from typing import Any

import torch
from crew import GONE, run_ranks

PAGE = Path(__file__).parents[2] / "docs" / "several-gpus.md"


def run_page(rank: int, folder: str, dies: bool | None = None) -> Any:
    import torch.distributed as dist

    def loss(model: Any, batch: Any) -> Any:
        if dies and rank == 1 and len(list(Path("runs").glob("*/checkpoint.json"))) == 3:
            os.kill(os.getpid(), signal.SIGKILL)
        return whole(model, batch)

    os.chdir(folder)
    dist.init_process_group = lambda: None
    said, scope = io.StringIO(), {}
    *blocks, loop = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    with contextlib.redirect_stdout(said):
        for block in blocks if dies is None else blocks[:1]:
            exec(compile(block, PAGE.name, "exec"), scope)
        grown = [growth["added"] for growth in scope["grower"].history]
        whole, scope["loss"] = scope["loss"], loss
        exec(compile(loop, PAGE.name, "exec"), scope)
    return said.getvalue(), grown, scope["model"].module.state_dict() | {"random": torch.rand(4)}


def test_the_blocks_of_the_page_run_and_its_loop_goes_on_after_a_kill(tmp_path: Path) -> None:
    for name in ("one", "other"):
        (tmp_path / name).mkdir()
    (first, grown, whole), (second, other, another) = run_ranks(2, run_page, str(tmp_path / "one"))
    assert grown == other and len(grown) == 2
    assert first.count("widths; parameters") == 2 and second.count("widths; parameters") == 0
    assert "on this rank" in first and "on this rank" in second
    assert run_ranks(2, run_page, str(tmp_path / "other"), True, patience=20)[1] == GONE
    assert not (tmp_path / "other" / "runs" / "0003").exists()
    for expected, (_, _, again) in zip((whole, another), run_ranks(2, run_page, str(tmp_path / "other"), False)):
        torch.testing.assert_close(again, expected, rtol=0, atol=0)
