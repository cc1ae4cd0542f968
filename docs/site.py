"""What `mkdocs build` needs beside the pages: the first one is the README."""

from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

ROOT = Path(__file__).parents[1]


def on_files(files: Files, config: Any) -> Files:
    """The README as index.md, its links as they are from within docs/."""
    text = (ROOT / "README.md").read_text(encoding="utf-8").replace("](docs/", "](").replace('src="docs/', 'src="')
    files.append(File.generated(config, "index.md", content=text))
    return files
