"""The README's code runs, and what it and the pages of docs/ link to is there."""

import re
from pathlib import Path

import pytest
import torch

ROOT = Path(__file__).parent.parent
PAGES = sorted((ROOT / "docs").rglob("*.md"))


def test_the_blocks_of_the_readme_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    monkeypatch.chdir(tmp_path)
    torch.manual_seed(0)
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    assert blocks
    scope: dict[str, object] = {}
    for block in blocks:
        exec(compile(block, "README.md", "exec"), scope)
    assert "neurons in" in capsys.readouterr().out


@pytest.mark.parametrize("page", ["README.md", *(f"docs/{path.relative_to(ROOT / 'docs')}" for path in PAGES)])
def test_what_a_page_links_to_exists(page: str) -> None:
    found = re.findall(r"(?:\]\(|src=\")([^)#\"]+)(?:#[^)]*)?[)\"]", (ROOT / page).read_text())
    for link in (link for link in found if "://" not in link):
        assert ((ROOT / page).parent / link).is_file(), link
