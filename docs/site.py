"""What `mkdocs build` needs beside the pages: the first one is the README, the last one the changelog."""

import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

ROOT = Path(__file__).parents[1]


def on_files(files: Files, config: Any) -> Files:
    """The README as index.md, and the changelog; their links as they are from within docs/."""
    for name, source in {"index.md": "README.md", "CHANGELOG.md": "CHANGELOG.md"}.items():
        text = (ROOT / source).read_text(encoding="utf-8").replace("](docs/", "](").replace('src="docs/', 'src="')
        files.append(File.generated(config, name, content=text))
    return files


def on_page_content(html: str, page: Any, config: Any, files: Files) -> str:
    """Numbers stay with their signs, and short names such as --budget in one line."""
    html = re.sub(r"(?<=\d) (?=[%±])|(?<=±) ", "\u00a0", html)
    return re.sub(r"<code>([^<]{1,30})</code>", r'<code class="whole">\1</code>', html)
