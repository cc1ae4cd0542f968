"""The code of the pages of docs/ runs, in order, one script a page."""

import re
from pathlib import Path
from unittest.mock import patch

import pytest
import torch

from firefly.anatomy.register import LAYERS

DOCS = Path(__file__).parent.parent / "docs"


@pytest.mark.parametrize("page", ["quickstart", "extend", "deeper"])
def test_the_blocks_of_the_page_run(page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    torch.manual_seed(0)
    blocks = re.findall(r"```python\n(.*?)```", (DOCS / f"{page}.md").read_text(), re.DOTALL)
    scope: dict[str, object] = {"__name__": page}
    with patch.dict(LAYERS):  # what a page registers is forgotten after it
        for block in blocks:
            exec(compile(block, f"{page}.md", "exec"), scope)
    assert len(blocks) >= 2 and scope["growth"].neurons > 0  # type: ignore[attr-defined]
