"""The code of the pages of docs/ runs, in order, one script a page."""

import contextlib
import re
from pathlib import Path
from unittest.mock import patch

import pytest
import torch
from torch import nn

import firefly
from firefly.anatomy.register import LAYERS
from firefly.cli import main

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


CARDS = sorted(path.stem for path in (DOCS / "methods").glob("*.md") if "```python" in path.read_text())


SHORT = {"800_000": "150", "fast_splitting()": "fast_splitting(iterations=5)", "patience=100": "patience=3"}


@pytest.mark.parametrize("card", CARDS)
def test_the_blocks_of_the_card_run(card: str) -> None:
    torch.manual_seed(0)
    hidden = [[nn.Linear(8, 8), nn.BatchNorm1d(8), nn.ReLU()] for _ in range(2)]
    model = nn.Sequential(*hidden[0], *hidden[1], nn.Linear(8, 3))
    batches = [(torch.randn(16, 8), torch.randint(0, 3, (16,))) for _ in range(4)]
    scope: dict[str, object] = {"firefly": firefly, "model": model, "batches": batches, "x": batches[0][0]}
    scope["optimizer"] = torch.optim.SGD(model.parameters(), 0.01, momentum=0.9)
    scope["loss"] = lambda model, batch: nn.functional.cross_entropy(model(batch[0]), batch[1])
    scope["train_17_epochs"] = scope["train_an_epoch"] = lambda child: None
    scope["validation_error"] = lambda child: 0.1
    size = sum(p.numel() for p in model.parameters())
    for block in re.findall(r"```python\n(.*?)```", (DOCS / "methods" / f"{card}.md").read_text(), re.DOTALL):
        for long, short in SHORT.items():
            block = block.replace(long, short)
        if "make_unit" not in block:  # that one leaves the units open
            exec(compile(block, f"{card}.md", "exec"), scope)
    assert sum(p.numel() for p in model.parameters()) != size


def list_commands() -> dict[tuple[str, ...], set[str]]:
    """{command of a page: the options that pages give it}."""
    found: dict[tuple[str, ...], set[str]] = {}
    for page in (DOCS.parent / "README.md", *DOCS.rglob("*.md")):
        for line in re.findall(r"(?:^(?:\$ | {4})?|`)firefly ([a-z][^`\n]*)", page.read_text(), re.MULTILINE):
            words = re.split(r" {2,}| #| \|", line)[0].split()
            depth = 2 if words[0] in ("nas", "reproduce") and len(words) > 1 and words[1][0] != "-" else 1
            options = {word.partition("=")[0] for word in words if word.startswith("--")}
            found.setdefault(tuple(words[:depth]), set()).update(options - {"--help"})
    return found


def test_the_commands_of_the_pages_are_there(capsys: pytest.CaptureFixture[str]) -> None:
    commands = list_commands()
    assert len(commands) > 12
    for words, options in commands.items():
        with contextlib.suppress(SystemExit):
            main([*words, "--help"])
        said = capsys.readouterr()
        assert f"firefly {' '.join(words)}" in said.out, (words, said.err[-300:])
        assert {option for option in options if option not in said.out} == set(), words
