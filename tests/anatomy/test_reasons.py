"""Why a width is pinned is said in words, with the layer and the line, never by an operator's name alone."""

import runpy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils.parametrizations import spectral_norm, weight_norm

import firefly

X = torch.randn(4, 8, generator=torch.Generator().manual_seed(0))


class RMSNorm(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x * x.square().mean(-1, keepdim=True).add(1e-6).rsqrt()


class Centre(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x - x.mean(-1, keepdim=True)


class Own(nn.Module):
    def __init__(self, function: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: Tensor) -> Tensor:
        return self.function(x)


@pytest.mark.parametrize(
    ("middle", "reason"),
    [
        (nn.LayerNorm(16), "layer norm in 1 normalises over it"),
        (nn.RMSNorm(16), "RMS norm in 1 normalises over it"),
        (RMSNorm(), "RMS norm in 1 normalises over it (test_reasons.py:"),
        (nn.GroupNorm(1, 16), "group norm in 1 normalises over it"),
        (weight_norm(nn.Linear(16, 16)), "weight norm in 1 normalises over it"),
        (spectral_norm(nn.Linear(16, 16)), "spectral norm in 1 divides all of it by its largest singular value"),
        (Centre(), "mean in 1 reduces over it (test_reasons.py:"),
        (nn.Softmax(-1), "softmax in 1 mixes its entries"),
        (Own(lambda x: x @ x.t() @ x), "matrix product in 1 sums over it with no weight of its own (test_reasons.py:"),
        (Own(lambda x: x.triu()), "the operator aten.triu in 1 is not known to Firefly (test_reasons.py:"),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, nn.Module) else None,
)
def test_reasons_are_in_words(middle: Any, reason: str) -> None:
    anatomy = firefly.trace(nn.Sequential(nn.Linear(8, 16), middle, nn.Linear(16, 4)), X)
    assert (anatomy["0"].pinned or "").startswith(reason)
    assert ".py:" not in (anatomy["0"].pinned or "").replace("test_reasons.py:", "")
    assert anatomy["2"].pinned == "it is an output of the model"


MODEL = """
import torch

class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = torch.nn.Linear(8, 16), torch.nn.Linear(16, 4)
    def forward(self, x):
        return self.b(self.a(x).softmax(-1))

class Branch(Net):
    def forward(self, x):
        return self.b(self.a(x)) if x.sum() > 0 else self.a(x)
"""


def test_a_users_line_is_told_wherever_the_file_lies(tmp_path: Path) -> None:
    """Also in a clone of this project, or below a folder of torch's name."""
    file = tmp_path / "firefly" / "torch" / "nets.py"
    file.parent.mkdir(parents=True)
    file.write_text(MODEL)
    nets = runpy.run_path(str(file))
    assert firefly.trace(nets["Net"](), X)["a"].pinned == "softmax mixes its entries (nets.py:9)"
    with pytest.raises(firefly.FireflyError, match=r"Branch\.forward \(nets\.py:13\)"):
        firefly.trace(nets["Branch"](), X)


def test_no_reason_is_an_operator_alone() -> None:
    transformers = pytest.importorskip("transformers")
    config = transformers.LlamaConfig(vocab_size=50, hidden_size=16, intermediate_size=24, num_hidden_layers=1,
                                      num_attention_heads=4)  # fmt: skip
    anatomy = firefly.trace(transformers.LlamaForCausalLM(config), {"input_ids": torch.randint(0, 50, (2, 5))})
    reasons = [width.pinned for width in anatomy if width.pinned]
    assert any("RMS norm in model.layers.0.input_layernorm normalises over it" in reason for reason in reasons)
    assert not any("aten" in reason for reason in reasons)
