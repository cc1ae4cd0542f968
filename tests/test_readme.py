"""The README's code blocks run, in order, as one script; so does the example."""

import re
from pathlib import Path

import pytest
import torch

ROOT = Path(__file__).parent.parent


def test_the_blocks_of_the_readme_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    monkeypatch.chdir(tmp_path)
    torch.manual_seed(0)
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    assert len(blocks) >= 4
    scope: dict[str, object] = {}
    for block in blocks:
        exec(compile(block, "README.md", "exec"), scope)
    assert "neurons in" in capsys.readouterr().out
    fresh, model = scope["fresh"], scope["model"]
    assert all(torch.equal(a, b) for a, b in zip(fresh.parameters(), model.parameters(), strict=True))  # type: ignore[attr-defined]


def test_the_pictures_of_the_readme_exist() -> None:
    for path in re.findall(r"!\[[^]]*\]\(([^)]+)\)", (ROOT / "README.md").read_text()):
        assert (ROOT / path).is_file(), path
