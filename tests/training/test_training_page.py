"""The code of docs/training.md runs, in order, as one script."""

import re
from pathlib import Path
from typing import Any

import pytest

PAGE = Path(__file__).parents[2] / "docs" / "training.md"


def test_the_blocks_of_the_page_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    scope: dict[str, Any] = {}
    for block in re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL):
        exec(compile(block, PAGE.name, "exec"), scope)
    said = capsys.readouterr().out.splitlines()
    assert said[1::2] == ["2 growths", "0.2"] and scope["average"] is not None
    assert said[2].startswith("2 growths to") and scope["found"].parameters[1] <= 400
    assert sorted(path.name for path in (tmp_path / "runs" / "grown").iterdir()) == ["epoch-5", "fit.json"]
