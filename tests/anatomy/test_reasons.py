"""Why a width is pinned is said in words, with the layer and the line, never by an operator's name alone."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

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
    assert anatomy["2"].pinned == "it is an output of the model"


def test_no_reason_is_an_operator_alone() -> None:
    transformers = pytest.importorskip("transformers")
    config = transformers.LlamaConfig(vocab_size=50, hidden_size=16, intermediate_size=24, num_hidden_layers=1,
                                      num_attention_heads=4)  # fmt: skip
    anatomy = firefly.trace(transformers.LlamaForCausalLM(config), {"input_ids": torch.randint(0, 50, (2, 5))})
    reasons = [width.pinned for width in anatomy if width.pinned]
    assert any("RMS norm in model.layers.0.input_layernorm normalises over it" in reason for reason in reasons)
    assert not any("aten" in reason for reason in reasons)
