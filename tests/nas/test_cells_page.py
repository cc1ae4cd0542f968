"""docs/cells.md: its example runs, and the settings that it names are there."""

import re
from pathlib import Path

import pytest

from firefly.nas.plan import CHOICES, Plan

PAGE = (Path(__file__).parents[2] / "docs" / "cells.md").read_text(encoding="utf-8")


def test_the_example_runs(capsys: pytest.CaptureFixture[str]) -> None:
    (code,) = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    exec(compile(code, "cells.md", "exec"), {})
    assert capsys.readouterr().out == "3349342\n"


def test_settings_are_known() -> None:
    rows = re.findall(r"^\| ((?:`\w+`(?:=\S+)?(?:, )?)+) \|", PAGE, re.MULTILINE)
    words = re.findall(r"`(\w+)(?:=(\w+))?[`,]", "\n".join(re.findall(r"^\| `.*", PAGE, re.MULTILINE)))
    keys = {key for key, value in words if value or any(f"`{key}`" in row for row in rows)}
    assert keys >= {"worth", "share_of", "decide", "inputs"}
    for key, value in words:
        if value and key in CHOICES:
            assert value in CHOICES[key]
        elif value:
            assert hasattr(Plan(), key), key
