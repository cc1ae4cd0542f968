"""The rooms of the house: imports go down the table in CONTRIBUTING.md, never up, and every module is in it."""

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
SOURCE = ROOT / "src" / "firefly"


def read_floors() -> list[list[str]]:
    """The rooms, top floor first, as CONTRIBUTING.md lists them: | `descent`, `depth` | what they are for |."""
    rows = re.findall(r"^\| ((?:`[a-z_]+`(?:, )?)+) \|", (ROOT / "CONTRIBUTING.md").read_text(), re.MULTILINE)
    return [re.findall(r"`([a-z_]+)`", row) for row in rows]


FLOORS = {room: floor for floor, rooms in enumerate(read_floors()) for room in rooms}
MODULES = sorted(path for path in SOURCE.rglob("*.py") if path.parent != SOURCE or not path.stem.startswith("__"))


def find_room(path: Path) -> str:
    return path.relative_to(SOURCE).parts[0].removesuffix(".py")


def list_imports(path: Path) -> list[str]:
    """The rooms that a module imports, wherever in it; `firefly` itself is the roof."""
    rooms = []
    for node in ast.walk(ast.parse(path.read_text())):
        names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
        if isinstance(node, ast.ImportFrom) and node.module == "firefly":
            names = [f"firefly.{alias.name}" for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module:
            names = [node.module]
        for name in names:
            parts = name.split(".")
            if parts[0] == "firefly":
                rooms.append(parts[1] if len(parts) > 1 else "firefly")
    return rooms


def test_every_room_is_on_a_floor() -> None:
    assert {find_room(path) for path in MODULES} == set(FLOORS)


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(SOURCE)))
def test_imports_go_down(path: Path) -> None:
    own = find_room(path)
    for room in list_imports(path):
        if room == "firefly":  # the public names stand above the core
            assert FLOORS[own] < FLOORS["descent"], f"{own} must import from its rooms, not from firefly"
        elif room != own:
            assert FLOORS[own] < FLOORS[room], f"{own} imports {room}, which is not below it"


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(SOURCE)))
def test_files_and_functions_are_short(path: Path) -> None:
    text = path.read_text()
    assert len(text.splitlines()) <= 300
    assert ast.get_docstring(ast.parse(text)), "a file says what it is for"
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            said = ast.get_docstring(node)
            lines = (node.end_lineno or 0) - node.lineno - (said.count("\n") + 1 if said else 0)
            assert lines <= 60 + len(node.args.kwonlyargs) + len(node.args.args), f"{node.name} has {lines} lines"


def test_no_two_test_files_have_one_name() -> None:
    """pytest would take the second for the first."""
    names = [path.name for path in (ROOT / "tests").rglob("*.py") if path.name != "__init__.py"]
    assert sorted(names) == sorted(set(names))
