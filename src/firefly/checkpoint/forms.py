"""The form of a checkpoint's content: every value in it is known to be of its kind before anything uses it.

A form is a type, `object` for anything, a function that says yes or no, a list of one form, or a dict: {str: form} for
any names, {"name": form, …} for these ones at least.
"""

import re
from typing import Any

import torch

from firefly.errors import FireflyError

FILE = re.compile(r"tensors-[0-9a-f]{16}\.safetensors")
SITE = re.compile(r".+\.deeper\.\d+", re.DOTALL)


def is_size(value: Any) -> bool:
    """Whether this is a whole number, or a tuple or list of them."""
    items = value if type(value) in (tuple, list, torch.Size) and value else [value]
    return all(type(item) is int for item in items)


def is_file(value: Any) -> bool:
    return type(value) is str and FILE.fullmatch(value) is not None


def is_site(value: Any) -> bool:
    return type(value) is str and SITE.fullmatch(value) is not None


def is_count(value: Any) -> bool:
    return type(value) is int and 0 <= value < 2**31


LAYER = {"path": is_site, "channels": is_count, "kernel": is_count, "norm": bool, "activation": str, "dtype": str} | {
    "space": lambda value: type(value) is int and 0 <= value <= 3
}
HEAD = {"file": is_file, "sha256": str, "strides": {str: [is_count]}}
CONTENT = {"attributes": {str: {str: is_size}}, "ties": {str: str}, "deeper": [LAYER], "history": [dict]}
ARCHITECTURE = CONTENT | {"shapes": {str: [is_count]}}
OPTIMIZER = {
    "class": str,
    "names": [[str]],
    "state": {int: {object: object}},
    "param_groups": [{str: object, "params": [int]}],
}


def check_form(value: Any, form: Any, where: str) -> None:
    """Refuse a value that is not of this form, and name it."""
    kind = type(form) if isinstance(form, (list, dict)) else form
    if not (kind is object or (type(value) is kind if isinstance(kind, type) else kind(value))):
        raise FireflyError(f"{where} = {value!r:.60} is not what firefly.save writes there: load another one")
    if isinstance(form, list):
        for place, item in enumerate(value):
            check_form(item, form[0], f"{where}[{place}]")
    elif isinstance(form, dict):
        for name, inner in form.items():
            if isinstance(name, type):
                for key, item in value.items():
                    check_form(key, name, f"a name in {where}")
                    check_form(item, inner, f"{where}[{key!r:.60}]")
            elif name not in value:
                raise FireflyError(f"{where} has no {name!r}: load another checkpoint")
            else:
                check_form(value[name], inner, f"{where}[{name!r}]")
