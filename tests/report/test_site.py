"""The pages of docs/ as a site: it builds offline without a warning, and is read on a desk and on a phone."""

import os
import re
import subprocess
import sys
from pathlib import Path

import chromium
import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The pages as a site; a warning ends the build."""
    pytest.importorskip("mkdocs")
    pytest.importorskip("mkdocstrings")
    folder = tmp_path_factory.mktemp("site")
    build = [sys.executable, "-W", "ignore", "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder)]
    environment = os.environ | {"NO_MKDOCS_2_WARNING": "1"}
    done = subprocess.run(build, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stderr[-2000:]
    return folder


def test_the_site_asks_nobody(site: Path) -> None:
    for path in site.rglob("*.html"):
        asked = re.findall(r"<(?:script|link|img)[^>]*?(?:src|href)=\"?((?:https?:)?//[^\"> ]+)", path.read_text())
        assert not asked, (path.name, asked)


CUT = """(page, view) => ({
  inside: [...page.querySelectorAll("table, pre > code")].filter(one => one.scrollWidth > one.clientWidth + 1)
    .map(one => one.textContent.trim().slice(0, 60)),
  outside: [...page.querySelectorAll(".md-content :is(h1, h2, p, li, pre, img, table)")].filter(one => {
    const box = one.getBoundingClientRect()
    return box.width && (box.left < -1 || box.right > view.innerWidth + 1) }).map(one => one.outerHTML.slice(0, 60)),
})"""


@pytest.mark.skipif(chromium.PATH is None, reason="no Chromium")
@pytest.mark.parametrize(
    ("name", "wide"),
    [("results", 1280), ("training", 1280), ("quickstart", 1280), ("results", 390), ("command-line", 390)],
)
def test_nothing_on_the_site_is_cut_off(site: Path, tmp_path: Path, name: str, wide: int) -> None:
    """On a desk tables and code are seen whole; on a phone they scroll, and nothing else is wider than it."""
    base = f'<head><base href="{site.as_uri()}/">'
    told = chromium.ask((site / f"{name}.html").read_text().replace("<head>", base, 1), CUT, tmp_path, wide)
    assert isinstance(told, dict) and told["outside"] == [] and (wide < 1280 or told["inside"] == [])
