"""The README's code runs, and what it and the pages of docs/ link to is there."""

import re
from pathlib import Path

import pytest
import torch

import firefly

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
    found = re.findall(r"(?:\]\(|src=\")([^)\"]+)[)\"]", (ROOT / page).read_text())
    for link, _, place in (link.partition("#") for link in found if "://" not in link):
        target = (ROOT / page).parent / link if link else ROOT / page
        assert target.is_file(), link
        assert not place or place in list_places(target), f"{link}#{place}"


def list_places(page: Path) -> set[str]:
    """The headings of a page, as links name them."""
    titles = re.findall(r"^#+ (.*)$", page.read_text(), re.M)
    return {re.sub(r"\s+", "-", re.sub(r"[^\w\s-]", "", title).strip().lower()) for title in titles}


def test_every_page_stands_once_in_the_contents() -> None:
    contents = (ROOT / "mkdocs.yml").read_text().partition("\nnav:")[2]
    named = re.findall(r"([\w/-]+\.md)$", contents, re.M)
    pages = [path.relative_to(ROOT / "docs").as_posix() for path in PAGES]
    assert sorted(named) == sorted([*pages, "index.md", "CHANGELOG.md"])


def test_the_page_of_the_api_has_every_public_name() -> None:
    shown = re.findall(r"^(?:::: |      heading: )(firefly\.\w+)$", (ROOT / "docs" / "api.md").read_text(), re.M)
    assert {f"firefly.{name}" for name in firefly.__all__} - set(shown) == {"firefly.baselines"}  # it has cards
