"""The proof of widths: few runs of the model, and no width passes that must stay equal to another one."""

import warnings
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import firefly
from firefly.anatomy import exporting

X = torch.randn(4, 8, generator=torch.Generator().manual_seed(0))


class Block(nn.Module):
    """Attention that spells out the number of its heads, and a hidden layer."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads, self.window = heads, heads
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 20), nn.Linear(20, width)

    def forward(self, x: Tensor) -> Tensor:
        batch, time, _ = x.shape
        q, k, v = (part.reshape(batch, time, self.heads, -1) for part in self.qkv(x).chunk(3, -1))
        attended = nn.functional.scaled_dot_product_attention(*(t.transpose(1, 2) for t in (q, k, v)))
        x = x + self.out(attended.transpose(1, 2).flatten(2))
        return x + self.down(torch.relu(self.up(x)))


def count_runs(model: nn.Module, example: Tensor) -> int:
    runs: list[Any] = []
    handle = model.register_forward_pre_hook(lambda *_: runs.append(1))
    firefly.trace(model, example)
    handle.remove()
    return len(runs)


def test_what_one_block_needs_is_learnt_once() -> None:
    """Sixteen blocks whose heads are spelled out take few runs more than four."""
    torch.manual_seed(0)
    x = torch.randn(2, 5, 12)
    few, many = (nn.Sequential(*(Block(12, 3) for _ in range(n))) for n in (4, 16))
    anatomy = firefly.trace(many, x)
    assert {anatomy[f"{n}.qkv"].pinned for n in range(16)} == {None}
    assert {(path, name) for path, name, _ in anatomy.mirrors if name == "heads"} == {
        (str(n), "heads") for n in range(16)
    }
    assert count_runs(many, x) <= count_runs(few, x) + 10


def test_noise_is_drawn_once(monkeypatch: pytest.MonkeyPatch) -> None:
    drawn: list[int] = []
    randn = torch.randn
    monkeypatch.setattr(torch, "randn", lambda shape, **how: drawn.append(1) or randn(shape, **how))
    model = nn.Sequential(*(Block(12, 3) for _ in range(4)))
    firefly.trace(model, randn(2, 5, 12))
    assert 0 < len(drawn) <= 2 * len(list(model.parameters()))


def test_tied_weights_need_one_export(monkeypatch: pytest.MonkeyPatch) -> None:
    exports: list[int] = []
    once = exporting._export_once
    monkeypatch.setattr(exporting, "_export_once", lambda *given: exports.append(1) or once(*given))
    model = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 6), nn.ReLU(), nn.Linear(6, 8), nn.Linear(8, 8))
    model[5].weight = model[0].weight
    firefly.trace(model, X)
    assert len(exports) == 1


class Equal(nn.Module):
    """The widths of the first and of the fourth layer must stay equal, which no operator says."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.third, self.fourth = (nn.Linear(8, 8) for _ in range(4))
        self.read = nn.ModuleList(nn.Linear(8, 8) for _ in range(4))

    def forward(self, x: Tensor) -> Tensor:
        hidden = [torch.relu(layer(x)) for layer in (self.first, self.second, self.third, self.fourth)]
        if hidden[0].shape != hidden[3].shape:
            raise ValueError("unequal")
        return sum(read(h) for read, h in zip(self.read, hidden))  # type: ignore[return-value]


def test_widths_that_must_stay_equal_are_pinned() -> None:
    anatomy = firefly.trace(Equal(), X)
    assert "unequal" in (anatomy["first"].pinned or "") and "unequal" in (anatomy["fourth"].pinned or "")
    assert [width.name for width in anatomy.growable()] == ["second", "third"]


class Warns(nn.Module):
    def __init__(self, sizes: bool) -> None:
        super().__init__()
        self.fc, self.head, self.sizes = nn.Linear(8, 16), nn.Linear(16, 4), sizes

    def forward(self, x: Tensor) -> Tensor:
        x = torch.relu(self.fc(x))
        if not self.sizes or x.shape[-1] != 16:
            warnings.warn(f"old, or of a wrong size ({x.shape[-1]})", UserWarning, stacklevel=1)
        out: Tensor = self.head(x)
        return out


def test_only_a_new_warning_pins() -> None:
    assert firefly.trace(Warns(sizes=False), X)["fc"].pinned is None
    assert "warns with one more neuron: old" in (firefly.trace(Warns(sizes=True), X)["fc"].pinned or "")


class Scaled(nn.Module):
    """Divides by the root of a width, so that this one must not grow; the other one may."""

    def __init__(self, dtype: torch.dtype = torch.float32) -> None:
        super().__init__()
        self.a, self.b, self.c = nn.Linear(8, 16), nn.Linear(16, 12), nn.Linear(12, 4)
        self.register_buffer("mask", torch.tensor([0.0, 0.0, 0.0, -torch.inf]))
        self.to(dtype)

    def forward(self, x: Tensor) -> Tensor:
        x = self.a(x)
        out: Tensor = self.c(torch.relu(self.b(x / x.shape[-1] ** 0.5)))
        return out + self.mask


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32, torch.float64])
def test_the_proof_sees_in_every_precision(dtype: torch.dtype) -> None:
    """Also beside an output that is infinite."""
    anatomy = firefly.trace(Scaled(dtype), X.to(dtype))
    assert [width.name for width in anatomy.growable()] == ["b"]


def test_the_proof_sees_under_autocast() -> None:
    with torch.autocast("cpu", dtype=torch.bfloat16):
        anatomy = firefly.trace(Scaled(), X)
    assert [width.name for width in anatomy.growable()] == ["b"]


class Budget(nn.Module):
    """Each width may grow by itself, but not all of them at once."""

    def __init__(self) -> None:
        super().__init__()
        self.layers, self.read = (nn.ModuleList(nn.Linear(8, 8) for _ in range(6)) for _ in range(2))

    def forward(self, x: Tensor) -> Tensor:
        hidden = [torch.relu(layer(x)) for layer in self.layers]
        if sum(h.shape[1] > 8 for h in hidden) > 4:
            raise ValueError("too many")
        return sum(read(h) for read, h in zip(self.read, hidden))  # type: ignore[return-value]


def test_what_is_offered_is_proven_together() -> None:
    anatomy = firefly.trace(Budget(), X)
    assert len(anatomy.growable()) == 4
    assert all("too many" in (width.pinned or "") for width in anatomy if width.name in ("layers.4", "layers.5"))


class Multiple(nn.Module):
    """Each hidden width must be a multiple of the same number."""

    def __init__(self, number: int) -> None:
        super().__init__()
        self.layers, self.read = (nn.ModuleList(nn.Linear(*sizes) for _ in range(20)) for sizes in ((8, 6), (6, 8)))
        self.number = number

    def forward(self, x: Tensor) -> Tensor:
        hidden = [torch.relu(layer(x)) for layer in self.layers]
        if any(h.shape[1] % self.number for h in hidden):
            raise ValueError("no multiple")
        return sum(read(h) for read, h in zip(self.read, hidden))  # type: ignore[return-value]


@pytest.mark.parametrize("number", [2, 3])
def test_a_width_that_takes_several_neurons_at_once_only_is_pinned(number: int) -> None:
    assert not firefly.trace(Multiple(number), X).growable()


class Halves(nn.Module):
    """Two parts of equal size; the size of the first is written down."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two, self.first = nn.Linear(3, 4), nn.Linear(4, 3), 2

    def forward(self, x: Tensor) -> Tensor:
        x = self.one(x)
        return self.two(torch.cat([x[:, self.first :], x[:, : self.first].relu()], 1))


@pytest.mark.parametrize("width, first", [("one", 3), ("one#2", 2)])
def test_a_size_that_two_parts_have_follows_the_right_one(width: str, first: int) -> None:
    torch.manual_seed(0)
    model, x = Halves().double(), torch.randn(5, 3, dtype=torch.float64)
    before = model(x)
    firefly.grow(
        model,
        lambda model, batch: model(batch).square().mean(),
        [x],
        example=x,
        widths=[width],
        neighborhood=[firefly.Split(1e-9)],
        budget=firefly.Neurons(1),
        method="random",
    )
    assert model.first == first and torch.allclose(model(x), before, atol=1e-7)


class Fixed(torch.autograd.Function):
    """The identity, with a backward that knows the size."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        return gradient * torch.ones(8)


class Trains(nn.Module):
    """Two hidden layers; training does something to the first that only 8 neurons take."""

    def __init__(self, what: str) -> None:
        super().__init__()
        self.what = what
        self.first, self.second, self.last = nn.Linear(8, 8), nn.Linear(8, 6), nn.Linear(6, 4)
        if what == "a hook's mask":
            self.first.weight.register_hook(lambda gradient: gradient * torch.ones(8, 8))
        self.register_buffer("usage", torch.zeros(8))

    def forward(self, x: Tensor) -> Tensor:
        x = torch.relu(self.first(x))
        if self.what == "backward":
            x = Fixed.apply(x)
        if self.training and self.what == "noise":
            x = x + 0.1 * torch.randn(len(x), 8)
        if self.training and self.what == "a new buffer":
            self.usage = 0.9 * self.usage + 0.1 * x.detach().mean(0)
        if self.training and self.what == "a view":
            x = x.view(-1, 8)[: len(x)]
        return self.last(torch.relu(self.second(x)))


@pytest.mark.parametrize("what", ["noise", "a new buffer", "a view", "backward", "a hook's mask"])
def test_what_training_cannot_bear_is_pinned(what: str) -> None:
    """Whatever the mode at the trace: a growth while evaluating must not break the training that follows."""
    for training in (False, True):
        anatomy = firefly.trace(Trains(what).train(training), torch.randn(8, 8))
        assert [width.name for width in anatomy.growable()] == ["second"], anatomy


def test_a_norm_that_cannot_train_on_the_example_pins_nothing() -> None:
    model = nn.Sequential(nn.Linear(8, 6), nn.BatchNorm1d(6), nn.ReLU(), nn.Linear(6, 4)).eval()
    assert firefly.trace(model, X[:1])["0"].pinned is None
