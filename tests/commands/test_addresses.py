"""Where an error of the user's own code is said to stand."""

import os
import sysconfig
from pathlib import Path

import pytest
import torch

import firefly
from firefly.commands.addresses import blame, is_library


def test_a_project_in_a_folder_called_as_a_library_is_still_the_users(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "firefly" / "torch"
    folder.mkdir(parents=True)
    (folder / "bad.py").write_text("def make():\n    raise KeyError('inner')\n")
    monkeypatch.chdir(folder)
    place: dict = {}
    exec(compile((folder / "bad.py").read_text(), str(folder / "bad.py"), "exec"), place)
    with pytest.raises(KeyError) as caught:
        place["make"]()
    assert blame(caught.value).endswith("(in bad.py, line 2)")


def test_what_is_installed_is_not() -> None:
    for file in (os.__file__, torch.__file__, firefly.__file__, pytest.__file__):
        assert is_library(str(file))
    assert is_library("/usr/lib/python3/dist-packages/numpy/linalg.py")
    assert not is_library(str(Path(sysconfig.get_path("stdlib")).parent.parent / "project" / "mine.py"))
