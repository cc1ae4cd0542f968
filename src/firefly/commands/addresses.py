"""MODULE:FUNCTION: how a command is told of a function of yours, and every way in which that can go wrong, in words."""

from __future__ import annotations

import os
import re
import sys
import sysconfig
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from difflib import get_close_matches
from importlib import import_module
from pathlib import Path
from typing import Any

import torch
from torch import nn

from firefly.errors import FireflyError, first_line

INSTALLED = ("stdlib", "platstdlib", "purelib", "platlib")
LIBRARIES = [Path(__file__).parents[1], Path(torch.__file__).parent, *map(sysconfig.get_path, INSTALLED)]
WORKER = re.compile(r"Caught \w+ in DataLoader worker process")


@contextmanager
def present_folder() -> Iterator[None]:
    """Meanwhile modules of the present folder are found, as `python -m` finds them."""
    sys.path.insert(0, "")
    try:
        yield
    finally:
        sys.path.remove("")


def find(address: str, example: str = "mypackage.models:make") -> Any:
    """What MODULE:NAME names; the example stands in the error of an address that is none."""
    module_name, _, name = address.partition(":")
    hint = suggest_module(module_name, name)
    if hint or not name or not all(part.isidentifier() for part in module_name.split(".")):
        raise FireflyError(f"{address!r} does not name a function: write MODULE:FUNCTION, e.g. {hint or example}")
    module = import_user(address, module_name)
    try:
        return getattr(module, name)
    except AttributeError as error:
        close = get_close_matches(name, vars(module), 1)
        own = [key for key, value in vars(module).items() if callable(value) and not key.startswith("_")]
        hint = f"did you mean {close[0]}?" if close else f"it has {', '.join(own[:8]) or 'no functions'}"
        raise FireflyError(f"{address}: the module {module_name} has no {name!r}; {hint}") from error


def suggest_module(module: str, name: str) -> str:
    """The address that was meant, where a file was named instead of a module."""
    path = os.path.normpath(module).removesuffix(".py").replace(os.sep, ".")
    named = module.endswith(".py") or os.sep in module
    return f"{path}:{name or 'make'}" if named and all(part.isidentifier() for part in path.split(".")) else ""


def import_user(address: str, name: str) -> Any:
    """The user's module; whatever its code raises is told in a line."""
    with present_folder():
        try:
            return import_module(name)
        except ModuleNotFoundError as error:
            lost = str(error.name)
            if name == lost or name.startswith(f"{lost}."):
                way = f"not in {os.getcwd()}, nor installed: run it where Python finds the module"
            else:
                way = f"{name} imports it: install {lost.partition('.')[0]} here, or take the import out"
            raise FireflyError(f"{address}: there is no module {lost!r} ({way})") from error
        except (Exception, SystemExit) as error:
            raise FireflyError(f"{address}: to import it raised {blame(error)}") from error


def call(address: str, example: str = "mypackage.models:make") -> Any:
    """What the function of this address returns, called without arguments."""
    function = find(address, example)
    if not callable(function) or isinstance(function, nn.Module):
        raise FireflyError(f"{address} is a {type(function).__name__}, not a function: name one that makes it")
    with present_folder():
        try:
            return function()
        except TypeError as error:
            raise FireflyError(
                f"{address} must be a function that works without arguments: {first_line(error)}"
            ) from error
        except FireflyError:
            raise
        except (Exception, SystemExit) as error:  # it is the user's code
            raise FireflyError(f"{address} raised {blame(error)}") from error


def blame(error: BaseException) -> str:
    """What the user's code raised, and the last line of it that stood outside Firefly and torch."""
    said = f"{type(error).__name__}: {first_line(error)}"
    if WORKER.search(said):
        said = str(error).strip().splitlines()[-1]  # the worker's own words are the last of its traceback
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if os.path.exists(frame.filename) and not is_library(frame.filename)]
    return f"{said} (in {os.path.relpath(own[-1].filename)}, line {own[-1].lineno})" if own else said


def is_library(file: str) -> bool:
    """Whether it is Python's own, torch's, this package's or another installed one's."""
    path = Path(file).resolve()
    known = {"site-packages", "dist-packages"} & {*path.parts}
    return bool(known) or any(path.is_relative_to(Path(str(folder)).resolve()) for folder in LIBRARIES)


def make_model(address: str) -> nn.Module:
    """The model that the function of this address makes."""
    model = call(address)
    if not isinstance(model, nn.Module):
        hint = " itself: give it brackets in a function" if isinstance(model, type) else ""
        raise FireflyError(f"{address} must return an nn.Module, not {type(model).__name__}{hint}")
    return model
