"""The code of docs/continual.md runs as it stands."""

import re
from pathlib import Path

import pytest
import torch

PAGE = Path(__file__).parents[2] / "docs" / "continual.md"


def test_the_code_of_the_page_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    monkeypatch.chdir(tmp_path)
    torch.manual_seed(0)
    (block,) = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    scope: dict[str, object] = {}
    exec(compile(block, PAGE.name, "exec"), scope)
    assert "second" in capsys.readouterr().out
    assert sorted(path.name for path in (tmp_path / "stream").iterdir()) == ["master.json", "task-001", "task-002"]
