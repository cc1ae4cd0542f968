"""Why a width cannot grow, in words that a user of torch knows: "layer norm in blocks.0.norm normalises over it"."""

from __future__ import annotations

import re
from pathlib import Path

import torch

WORDS = {
    "layer_norm": "layer norm",
    "rms_norm": "RMS norm",
    "group_norm": "group norm",
    "batch_norm": "batch norm",
    "_weight_norm": "weight norm",
    "scaled_dot_product_attention": "attention",
    "embedding": "embedding",
    **dict.fromkeys(("mm", "bmm", "matmul", "addmm", "baddbmm", "addbmm", "dot", "mv"), "matrix product"),
    **dict.fromkeys(("_unsafe_view", "reshape"), "view"),
    **dict.fromkeys(("_softmax", "log_softmax", "_log_softmax"), "softmax"),
    **dict.fromkeys(("add", "add_"), "addition"),
    **dict.fromkeys(("mul", "mul_"), "product"),
    **dict.fromkeys(("conv1d", "conv2d", "conv3d"), "convolution"),
    **dict.fromkeys(("conv_transpose1d", "conv_transpose2d", "conv_transpose3d"), "transposed convolution"),
}
# in the name of a class, as in LlamaRMSNorm
NORM = re.compile(r"(RMS|Layer|Group|Instance|Batch|Weight|Spectral|)_?Norm")
SINGULAR = "divides all of it by its largest singular value"
STATISTICS = ("reduces over it", "normalises over it", SINGULAR)
TORCH = str(Path(torch.__file__).parent)
ROOMS = tuple(str(Path(__file__).parents[1] / room) for room in ("anatomy", "surgery"))
PYTHON = re.compile(r"^<|/lib/python3\.\d+/\w+\.py$")


def tell(operator: str, path: str, kind: str, what: str) -> str:
    """What an operator, such as `aten.mean`, does to a width in the forward of a module, whose path and class it is."""
    path = path.partition(".parametrizations.")[0]
    place = f" in {path}" if path else ""
    norm = NORM.search(kind)
    if norm is not None and what in STATISTICS:
        adjective = norm[1] if norm[1] == "RMS" else norm[1].lower()
        return f"{adjective} norm{place} {what if what == SINGULAR else STATISTICS[1]}".lstrip()
    if what.startswith("is not known"):
        return f"the operator {operator}{place} {what}"
    name = operator.removeprefix("aten.")
    return f"{WORDS.get(name, name)}{place} {what}"


def is_users(file: str) -> bool:
    """Whether a line of this file may be shown to the user: it is neither torch's, nor Python's, nor tracing itself."""
    return not file.startswith((TORCH, *ROOMS)) and not PYTHON.search(file)
