"""Whatever a model takes and returns: it is traced, or the error says in words what stands in the way."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.distributions import Categorical, Independent, MultivariateNormal, Normal
from torch.nn.utils.rnn import pack_padded_sequence

import firefly

X = torch.randn(4, 8, generator=torch.Generator().manual_seed(0))
SEQUENCE = torch.randn(2, 5, 16, generator=torch.Generator().manual_seed(0))
CAUSAL = nn.Transformer.generate_square_subsequent_mask(5)
PACKED = pack_padded_sequence(torch.randn(4, 6, 8), torch.tensor([6, 3, 5, 2]), batch_first=True, enforce_sorted=False)


class Own:
    def __init__(self, y: Tensor) -> None:
        self.y = y


class Returns(nn.Module):
    """Two layers, and whatever `wrap` makes of what they compute."""

    def __init__(self, wrap: Any) -> None:
        super().__init__()
        self.fc, self.head, self.wrap = nn.Linear(8, 16), nn.Linear(16, 3), wrap

    def forward(self, x: Tensor) -> Any:
        return self.wrap(self.head(torch.relu(self.fc(x))))


@pytest.mark.parametrize(
    "wrap",
    [
        lambda y: Categorical(logits=y),
        lambda y: Independent(Normal(y, y.exp()), 1),
        lambda y: MultivariateNormal(y, torch.eye(3)),
        lambda y: Own(y),
        lambda y: {"y": [y, Own(y)], "n": 3},
    ],
    ids=["categorical", "independent", "multivariate", "own", "nested"],
)
def test_any_output_will_do(wrap: Any, capfd: pytest.CaptureFixture[str]) -> None:
    anatomy = firefly.trace(Returns(wrap), X)
    assert anatomy["fc"].pinned is None and anatomy["head"].pinned
    assert capfd.readouterr() == ("", "")


class Translate(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Transformer(16, 4, 1, 1, 24, batch_first=True)
        self.head = nn.Linear(16, 3)

    def forward(self, x: Tensor, y: Tensor, mask: Tensor) -> Tensor:
        out: Tensor = self.head(self.body(x, y, tgt_mask=mask))
        return out


@pytest.mark.parametrize("training", [True, False])
def test_a_causal_mask_is_no_branch(training: bool) -> None:
    anatomy = firefly.trace(Translate().train(training), (SEQUENCE, SEQUENCE, CAUSAL))
    assert anatomy["body.encoder.layers.0.linear1"].pinned is None
    assert anatomy["body.decoder.layers.0.linear1"].pinned is None


def test_a_forward_may_write_to_its_input() -> None:
    class Writes(Returns):
        def forward(self, x: Tensor) -> Any:
            return super().forward(x.mul_(0.5).add_(1.0))

    x = X.clone()
    assert firefly.trace(Writes(lambda y: y), x)["fc"].pinned is None
    assert torch.equal(x, X)


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.rnn, self.head = nn.GRU(8, 16, batch_first=True), nn.Linear(16, 3)

    def forward(self, x: Any) -> Tensor:
        out: Tensor = self.head(self.rnn(x)[1][-1])
        return out


class Packs(Recurrent):
    def forward(self, x: Tensor, lengths: Any = None) -> Tensor:
        return super().forward(pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=False))


class Items(Returns):
    def forward(self, x: Tensor) -> Any:
        return self.head(torch.relu(self.fc(x))[: int(x.sum().abs().item()) + 1])


class Numpy(Returns):
    def forward(self, x: Tensor) -> Any:
        return super().forward(x) * float(x.numpy().mean())


ERRORS: dict[str, tuple[nn.Module, Any, str]] = {
    "packed": (Recurrent(), PACKED, r"packed sequences.*Recurrent\.forward \(test_exporting\.py:\d+\).*model\.part"),
    "packs": (Packs(), (torch.randn(4, 6, 8), torch.tensor([6, 3, 5, 2])), r"packed sequences.*Packs\.forward"),
    "items": (Items(None), X, r"values of a tensor in Items\.forward \(test_exporting\.py:\d+\)"),
    "numpy": (Numpy(lambda y: y), X, r"cannot follow Numpy\.forward \(test_exporting\.py:\d+\).*numpy"),
    "nothing": (Returns(lambda y: None), X, r"Returns\.forward returns no tensor"),
    "shape": (Returns(lambda y: y), X[:, :7], "does not run on the example: mat1"),
    "type": (Returns(lambda y: y), X.long(), "does not run on the example: mat1"),
    "none": (Returns(lambda y: y), None, "does not run on the example"),
    "no forward": (nn.Module(), X, "does not run on the example.*forward"),
    "meta": (Returns(lambda y: y).to("meta"), X.to("meta"), r"fc\.weight is on the meta device"),
}


@pytest.mark.parametrize("what", list(ERRORS))
def test_errors_are_in_words_and_alone(what: str, capfd: pytest.CaptureFixture[str]) -> None:
    model, example, words = ERRORS[what]
    with pytest.raises(firefly.FireflyError, match=words):
        firefly.trace(model, example)
    assert capfd.readouterr() == ("", "")


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_torch_script_cannot_grow() -> None:
    with pytest.raises(firefly.FireflyError, match=r"TorchScript.*made from"):
        firefly.trace(torch.jit.script(nn.Linear(8, 3)), X)
    model = nn.Sequential(nn.Linear(8, 6), torch.jit.script(nn.Linear(6, 3)))
    with pytest.raises(firefly.FireflyError, match=r"cannot follow 1, a TorchScript module.*made from"):
        firefly.trace(model, X)
