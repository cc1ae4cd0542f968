"""Every line of docs/command-line.md runs, in order, in one folder."""

import re
import shlex
import sys
from pathlib import Path
from typing import Any

import pytest

from firefly.cli import main, make_parser

PAGE = Path(__file__).parents[2] / "docs" / "command-line.md"


def list_lines(text: str) -> list[str]:
    """The commands in a text; a line that ends in a backslash goes on in the next."""
    return re.findall(r"^firefly (.*)", text.replace("\\\n", " "), re.MULTILINE)


def test_the_page_is_understood() -> None:
    lines = list_lines(PAGE.read_text())
    assert len(lines) > 5 and all(make_parser().parse_args(shlex.split(line)) for line in lines)


@pytest.mark.slow
def test_the_page_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("onnxruntime")
    pytest.importorskip("tensorboard")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "mine", raising=False)
    scope: dict[str, Any] = {}
    ran = []
    for kind, block in re.findall(r"```(python|bash)\n(.*?)```", PAGE.read_text(), re.DOTALL):
        if block.startswith("# mine.py"):
            Path("mine.py").write_text(block)
        if kind == "python":
            exec(compile(block, PAGE.name, "exec"), scope)
            continue
        for line in list_lines(block):
            words = shlex.split(line)
            assert main([*words, "--quiet"] if words[0] == "grow" else words) == 0, line
            ran.append(words[0])
    assert {*ran} == {"grow", "show", "report", "export"} and "would now grow so" in capsys.readouterr().out
    assert scope["model"][0].out_channels > 3 and Path("both.html").stat().st_size > 20_000


def test_the_page_names_every_option() -> None:
    from argparse import ArgumentParser

    from firefly.commands.grow import add_arguments

    parser = ArgumentParser()
    add_arguments(parser)
    page = PAGE.read_text()
    options = {name for action in parser._actions for name in action.option_strings if name.startswith("--")}
    assert {name for name in options if name not in page} == {"--help", "--quiet"}
