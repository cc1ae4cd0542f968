"""What people install: a wheel with all its parts, extras that exist, and fresh environments that run it."""

import importlib
import os
import re
import shutil
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest

import firefly

ROOT = Path(__file__).parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
BUILD = "import sys; from setuptools import build_meta; print(build_meta.build_wheel(sys.argv[1]))"


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel, built from a copy: a build leaves files behind."""
    pytest.importorskip("setuptools")
    source, out = tmp_path_factory.mktemp("source"), tmp_path_factory.mktemp("wheel")
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source)
    shutil.copytree(ROOT / "src", source / "src", ignore=shutil.ignore_patterns("__pycache__", "*.egg-info"))
    done = subprocess.run(
        [sys.executable, "-c", BUILD, str(out)], cwd=source, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return out / done.stdout.splitlines()[-1]


def test_the_wheel_holds_all_modules_data_and_types(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
        information = next(name for name in names if name.endswith(".dist-info/METADATA"))
        metadata = archive.read(information).decode()
        entry = archive.read(information.replace("METADATA", "entry_points.txt")).decode()
    source = ROOT / "src"
    modules = {path.relative_to(source).as_posix() for path in source.rglob("*.py")}
    assert modules <= names and {"firefly/py.typed", "firefly/vision/digits.npz"} <= names
    assert not [name for name in names if name.startswith(("tests", "benchmarks", "docs", "examples"))]
    data = [path for path in source.rglob("*") if path.is_file() and path.suffix not in (".py", ".pyc")]
    kept = {path.relative_to(source).as_posix() for path in data if ".egg-info" not in str(path)}
    assert kept <= names  # whatever a module reads beside it
    assert "firefly = firefly.cli:main" in entry and "License-Expression: MIT" in metadata
    for extra in PROJECT["optional-dependencies"]:
        assert f"Provides-Extra: {extra}" in metadata


def test_the_page_on_installing_names_every_extra_for_users() -> None:
    page = (ROOT / "docs" / "install.md").read_text()
    own = PROJECT["optional-dependencies"].keys() - {"check", "peers"}
    assert {extra for extra in own if f"`{extra}`" not in page} == set()
    named = set(re.findall(r"firefly-descent\[([\w,]+)\]", page))
    assert {extra for names in named for extra in names.split(",")} <= PROJECT["optional-dependencies"].keys()


def test_an_integration_without_its_tool_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    for tool, hidden in {"transformers": ["transformers"], "lightning": ["lightning", "pytorch_lightning"]}.items():
        name = f"firefly.integrations.{tool}"
        monkeypatch.delitem(sys.modules, name, raising=False)
        for package in [*hidden, *(f"{package}.pytorch" for package in hidden)]:
            monkeypatch.setitem(sys.modules, package, None)  # as if it were not installed
        with pytest.raises(ImportError, match=rf"pip install 'firefly-descent\[{tool}\]'"):
            importlib.import_module(name)


def test_a_version_says_itself_everywhere() -> None:
    version = PROJECT["version"]
    assert firefly.__version__ == version
    assert re.search(rf"^## {re.escape(version)} \(\d{{4}}-\d\d-\d\d\)$", (ROOT / "CHANGELOG.md").read_text(), re.M)
    assert f"firefly_descent-{version}-py3" in (ROOT / "docs" / "install.md").read_text()


TRY = """
import firefly, importlib, sys
from importlib.resources import files
assert (files("firefly") / "py.typed").is_file()
from firefly.vision import digits
assert len(digits.load()[0]) > 4000
for name in sys.argv[1:]:
    importlib.import_module(name)
"""
MINE = """
import torch
from torch import nn
make_model = lambda: nn.Sequential(nn.Linear(4, 3), nn.ReLU(), nn.Linear(3, 3))
x = torch.randn(64, 4)
make_loaders = lambda: [(x[:32], torch.arange(32) % 3), (x[32:], torch.arange(32) % 3)]
"""


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("way", ["wheel", "checkout"])
def test_a_fresh_environment_runs_it(way: str, wheel: Path, tmp_path: Path) -> None:
    """Needs an index. The extras that bring no second framework are tried, and every command of a run."""
    uv = [sys.executable, "-m", "uv"]
    if subprocess.run([*uv, "--version"], capture_output=True).returncode:
        pytest.skip("no uv")
    python = tmp_path / "venv" / "bin" / "python"
    subprocess.run([*uv, "venv", "-q", "--python", sys.executable, tmp_path / "venv"], check=True)
    target = f"firefly-descent[onnx,tensorboard,report] @ {wheel.as_uri()}"
    what = [target] if way == "wheel" else ["-e", f"{ROOT}[onnx,tensorboard,report]"]
    links = subprocess.run(
        [sys.executable, "-m", "pip", "config", "get", "global.find-links"], capture_output=True, text=True
    ).stdout.strip()
    how = ["--python", python, "-c", ROOT / "constraints.txt", *(["--find-links", links] if links else [])]
    subprocess.run([*uv, "pip", "install", "-q", *how, *what], check=True)
    (tmp_path / "mine.py").write_text(MINE)
    bare = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    firefly = python.with_name("firefly")
    grow = [firefly, "grow", "mine:make_model", "--data", "mine:make_loaders", "--every", "1", "--epochs", "2"]
    for command in (
        [python, "-c", TRY, "onnxruntime", "torch.utils.tensorboard", "matplotlib"],
        [firefly, "demo", "--quick"],
        [*grow, "--out", "run", "--tensorboard"],
        [firefly, "show", "run"],
        [firefly, "report", "run"],
        [firefly, "export", "run", "--to", "onnx"],
    ):
        done = subprocess.run(command, cwd=tmp_path, env=bare, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr[-2000:]
