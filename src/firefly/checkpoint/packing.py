"""Any plain Python value as JSON and tensors, and back, exactly as it was."""

import math
from typing import Any

import torch
from torch import Tensor

from firefly.errors import FireflyError

UNSUPPORTED = {torch.complex32, torch.complex128, torch.float8_e8m0fnu, torch.float4_e2m1fn_x2}  # by safetensors

Tensors = dict[str, Tensor]
Json = dict[str, Any]


def copy_out(key: str, tensor: Tensor) -> Tensor:
    """A contiguous copy on the CPU that shares memory with no other."""
    if tensor.layout is not torch.strided or tensor.is_quantized or tensor.dtype in UNSUPPORTED:
        raise FireflyError(f"cannot save {key}: safetensors has no {tensor.layout} {tensor.dtype}; convert it before")
    return tensor.detach().to("cpu", copy=True, memory_format=torch.contiguous_format)


def pack(value: Any, where: str, tensors: Tensors) -> Any:
    """`value` as JSON: its tensors move to `tensors`; what JSON lacks is marked $tensor, $tuple, $float or $dict."""
    try:
        return _pack(value, where, tensors)
    except RecursionError as error:
        raise FireflyError(f"cannot save {where}: it is nested too deeply, or holds itself") from error


def _pack(value: Any, where: str, tensors: Tensors) -> Any:
    if value is None or type(value) in (bool, int, str):
        return value
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else {"$float": str(float(value))}
    if isinstance(value, Tensor):
        while where in tensors:  # 1 and "1" may both be keys
            where += "+"
        tensors[where] = value
        return {"$tensor": where}
    if type(value) in (list, tuple, torch.Size):
        items = [_pack(item, f"{where}/{index}", tensors) for index, item in enumerate(value)]
        return items if type(value) is list else {"$tuple": items}
    if isinstance(value, dict):
        pairs = [(_pack(key, where, tensors), _pack(item, f"{where}/{key}", tensors)) for key, item in value.items()]
        plain = all(type(key) is str and not key.startswith("$") for key in value)
        return dict(pairs) if plain else {"$dict": pairs}
    kind = type(value).__name__
    raise FireflyError(f"cannot save {where} = {value!r:.80}: make it a tensor or a plain number instead of a {kind}")


def revive(value: Json, tensors: Tensors) -> Any:
    """What `pack` marked, as it was."""
    try:
        match value:
            case {"$tensor": key}:
                return tensors[key]
            case {"$float": text}:
                return float(text)
            case {"$tuple": items}:
                return tuple(items)
            case {"$dict": pairs}:
                return dict(pairs)
    except (KeyError, TypeError, ValueError, OverflowError) as error:
        raise FireflyError(f"the checkpoint holds {value!r:.80}, which means nothing: load another one") from error
    return value
