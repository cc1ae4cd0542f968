"""An attention with more heads than torch allows: the same function, in every mode, copied, saved and loaded."""

import copy
import pickle
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import firefly
from firefly.surgery.multihead import MultiheadAttention, fit_class
from firefly.surgery.swap import get_size, set_size

X = torch.randn(3, 5, 16, generator=torch.Generator().manual_seed(0))
Y = torch.randn(3, 7, 6, generator=torch.Generator().manual_seed(1))
FUTURE = torch.ones(5, 5, dtype=torch.bool).triu(1)
PADDING = torch.tensor([[False] * 5, [False] * 3 + [True] * 2, [False] * 4 + [True]])

MAKES: dict[str, dict[str, Any]] = {
    "plain": {},
    "batch_first": {"batch_first": True},
    "no bias": {"bias": False, "batch_first": True},
    "bias_kv": {"add_bias_kv": True},
    "zero_attn": {"add_zero_attn": True, "batch_first": True},
}
CALLS: dict[str, dict[str, Any]] = {
    "plain": {},
    "weights": {"need_weights": True},
    "weights of all heads": {"need_weights": True, "average_attn_weights": False},
    "causal": {"attn_mask": FUTURE, "is_causal": True},
    "causal, added": {"attn_mask": torch.zeros(5, 5).masked_fill(FUTURE, -torch.inf)},
    "by head": {"attn_mask": FUTURE.expand(12, 5, 5)},
    "padded": {"key_padding_mask": PADDING},
    "padded, causal, weights": {"key_padding_mask": PADDING, "attn_mask": FUTURE, "need_weights": True},
}


def grown_class(module: nn.MultiheadAttention) -> nn.MultiheadAttention:
    other = copy.deepcopy(module)
    other.__class__ = MultiheadAttention
    return other


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("call", CALLS.values(), ids=list(CALLS))
@pytest.mark.parametrize("make", MAKES.values(), ids=list(MAKES))
def test_is_torchs_function(make: dict[str, Any], call: dict[str, Any], training: bool) -> None:
    torch.manual_seed(0)
    own = nn.MultiheadAttention(16, 4, **make).train(training)
    x = X if own.batch_first else X.transpose(0, 1)
    call = {"need_weights": False, **call}
    expected, found = own(x, x, x, **call), grown_class(own)(x, x, x, **call)
    assert (expected[1] is None) == (found[1] is None)
    for a, b in zip(expected, found):
        torch.testing.assert_close(a, b)


def test_other_keys_and_no_batch() -> None:
    torch.manual_seed(0)
    own = nn.MultiheadAttention(16, 4, kdim=6, vdim=6, batch_first=True)
    torch.testing.assert_close(own(X, Y, Y), grown_class(own)(X, Y, Y))
    torch.testing.assert_close(own(X[0], Y[0], Y[0]), grown_class(own)(X[0], Y[0], Y[0]))


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.attn = nn.MultiheadAttention(16, 4, batch_first=True)
        self.layer = nn.TransformerEncoderLayer(16, 2, 20, dropout=0.0, batch_first=True)
        self.head = nn.Linear(16, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.layer(x + self.attn(x, x, x)[0]))


def grow(model: nn.Module, names: list[str]) -> firefly.Growth:
    def loss(model: nn.Module, batch: Tensor) -> Tensor:
        return (model(batch) - 1).square().mean()

    options: dict[str, Any] = {"neighborhood": [firefly.New(16)], "budget": firefly.Neurons(2), "widths": names}
    return firefly.grow(model, loss, [X, X + 1], example=X, steps=5, **options)


def make_grown() -> nn.Module:
    torch.manual_seed(0)
    model = Net()
    grow(model, ["attn", "layer.self_attn"])
    return model


def test_grown_heads_compute_the_same_with_and_without_gradients() -> None:
    """torch has a fast path in eval mode, which knows nothing of more heads."""
    model = make_grown()
    assert isinstance(model.attn, nn.MultiheadAttention) and isinstance(model.layer.self_attn, nn.MultiheadAttention)
    assert model.attn.num_heads + model.layer.self_attn.num_heads > 6
    expected = model.train()(X)
    torch.testing.assert_close(model.eval()(X), expected)
    with torch.no_grad():
        torch.testing.assert_close(model(X), expected)


def test_a_grown_attention_is_copied_pickled_saved_and_loaded(tmp_path: Path) -> None:
    model = make_grown()
    firefly.save(tmp_path / "run", model)
    loaded = firefly.load(tmp_path / "run", Net())
    for other in (loaded, copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        assert torch.equal(other.eval()(X), model.eval()(X))
    assert [w.size for w in firefly.trace(loaded, X)] == [w.size for w in firefly.trace(model, X)]


def test_the_class_follows_the_number_of_heads() -> None:
    module = nn.MultiheadAttention(16, 4)
    set_size(module, "num_heads", 5)
    assert type(module) is MultiheadAttention and get_size(module, "num_heads") == 5
    set_size(module, "num_heads", 4)
    assert type(module) is nn.MultiheadAttention

    class Own(nn.MultiheadAttention):
        pass

    own = Own(16, 4)
    own.num_heads = 5
    fit_class(own)
    assert type(own) is Own


def test_heads_that_torch_hands_nested_tensors_stay_as_they_are() -> None:
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(16, 2, 20, dropout=0.0, batch_first=True)
    model = nn.Sequential(nn.TransformerEncoder(layer, 1), nn.Linear(16, 3))
    anatomy = firefly.trace(model, X)
    assert {width.name for width in anatomy.growable()} == {"0.layers.0.linear1"}
    free = nn.Sequential(nn.TransformerEncoder(layer, 1, enable_nested_tensor=False), nn.Linear(16, 3))
    assert "0.layers.0.self_attn" in {width.name for width in firefly.trace(free, X).growable()}


def test_items_of_sizes_are_set_one_by_one() -> None:
    module: Any = nn.Identity()
    module.sizes, module.names = (4, 6, 6), [1, 2]
    set_size(module, "sizes[1]", 7)
    set_size(module, "names[0]", 5)
    assert module.sizes == (4, 7, 6) and module.names == [5, 2] and get_size(module, "sizes[2]") == 6
