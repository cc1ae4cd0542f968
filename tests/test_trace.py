"""Tracing: every width of the zoo is found, or pinned with a reason that helps."""

from collections.abc import Callable
from typing import Any, cast

import pytest
import torch
from torch import Tensor, nn

import firefly
from laws import (
    assert_grown_is_overgrown,
    assert_untouched,
    count_flops,
    every_entry,
    every_growing,
    grow,
    grow_blindly,
    growing_entries,
    in_double,
    loss_on,
    run,
    snapshot,
    trace_entry,
    train,
)
from zoo import ZOO, Entry

X = torch.randn(4, 8, generator=torch.Generator().manual_seed(0))


# ---- the zoo ---------------------------------------------------------------------------------------------------------


@every_entry
def test_widths_are_as_the_zoo_says(entry: Entry) -> None:
    anatomy = trace_entry(entry.name)
    for name, size in entry.grows.items():
        assert (anatomy[name].size, anatomy[name].pinned) == (size, None), name
    for name, word in entry.pinned.items():
        assert word in (anatomy[name].pinned or ""), name
    for name, size in entry.either.items():
        assert name not in anatomy.widths or anatomy[name].pinned or anatomy[name].size == size, name


@every_entry
def test_anatomy_reads_well(entry: Entry) -> None:
    anatomy = trace_entry(entry.name)
    text = str(anatomy)
    assert len(text.splitlines()) == len(anatomy) + 2
    assert f"{len(anatomy.growable())} of {len(anatomy)} widths can grow" in text
    for width in anatomy:
        assert width.name in text and width.makers and width.size > 0
        assert width.pinned or width.readers
        assert (width.pinned or "") in text


@every_entry
def test_parameters_are_counted(entry: Entry) -> None:
    model = entry.make()
    assert trace_entry(entry.name).parameters() == sum(p.numel() for p in model.parameters())


@every_growing
def test_sizes_predict_the_cost_of_the_grown_model(entry: Entry) -> None:
    model, before = entry.make(), trace_entry(entry.name)
    growth = grow_blindly(model, entry).growth
    sizes = {name: after for name, (_, after) in growth.widths.items()}
    after = firefly.trace(model, entry.example())
    assert growth.neurons > 0
    assert after.sizes() == before.sizes() | sizes
    assert [w.pinned is None for w in after] == [w.pinned is None for w in before]
    assert growth.parameters == (before.parameters(), before.parameters(sizes))
    assert before.parameters(sizes) == after.parameters() == sum(p.numel() for p in model.parameters())
    assert growth.flops == (before.flops(), before.flops(sizes))
    assert before.flops(sizes) == after.flops()


UNCOUNTED = {"bilinear", "lstm", "gru", "experts_by_mask"}  # no rule gives them a cost, or it depends on values


@pytest.mark.parametrize("name", [name for name in ZOO if name not in UNCOUNTED])
def test_flops_are_those_that_torch_counts(name: str) -> None:
    assert trace_entry(name).flops() == count_flops(ZOO[name])


def test_flops_are_the_same_in_both_modes() -> None:
    """In eval mode nobody uses num_batches_tracked, so that the other mode is exported too; it is not counted."""
    entry = ZOO["vgg"]
    model = entry.make()
    training = firefly.trace(model.train(), entry.example()).flops()
    assert firefly.trace(model.eval(), entry.example()).flops() == training


@pytest.mark.parametrize("name", ["vgg", "gpt", "siamese", "weight_norm"])
def test_trace_changes_nothing(name: str) -> None:
    entry = ZOO[name]
    model = entry.make()
    entry.loss(model, entry.batches()[0]).backward()
    next(model.modules()).training = False
    torch.manual_seed(5)
    before = snapshot(model)
    firefly.trace(model, entry.example())
    assert_untouched(before, snapshot(model))


def test_an_example_of_one_image_will_do() -> None:
    """A batch norm in train mode refuses a batch of one."""
    model = nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 4))
    assert firefly.trace(model, X[:1])["0"].pinned is None


# ---- what stands between two layers ----------------------------------------------------------------------------------


class Between(nn.Module):
    """a -> middle -> b -> relu -> c: whatever the middle does, b grows."""

    def __init__(self, middle: Callable[[Tensor], Tensor], inner: int = 16) -> None:
        super().__init__()
        self.a, self.b, self.c, self.middle = nn.Linear(8, 16), nn.Linear(inner, 12), nn.Linear(12, 4), middle

    def forward(self, x: Tensor) -> Tensor:
        return self.c(torch.relu(self.b(self.middle(self.a(x)))))


class Straight(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.sign()

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        return gradients[0]


def gate_without_gradient(x: Tensor) -> Tensor:
    with torch.no_grad():
        gate = x.sigmoid()
    return x * gate


def gate_by_halves(x: Tensor) -> Tensor:
    value, gate = x.chunk(2, -1)
    return value * gate.sigmoid()


def standardise(x: Tensor) -> Tensor:
    variance, mean = torch.var_mean(x, dim=1, keepdim=True)
    return (x - mean) / (variance + 1).sqrt()


GROWS: dict[str, tuple[Callable[[Tensor], Tensor], int]] = {
    "casts": (lambda x: x.to(torch.float64).tanh().to(x.dtype), 16),
    "custom function": (Straight.apply, 16),
    "region without gradients": (gate_without_gradient, 16),
    "checkpoint": (lambda x: torch.utils.checkpoint.checkpoint(torch.tanh, x, use_reentrant=False), 16),
    "maxout": (lambda x: x.view(x.size(0), -1, 2).amax(-1), 8),
    "there and back": (lambda x: x.t().exp().t().unsqueeze(-1).squeeze(-1), 16),
    "stack": (lambda x: torch.stack([x, 2 * x, x.abs()]).amax(0), 16),
    "where": (lambda x: torch.where(x > 0, x, 0.1 * x.expm1()), 16),
    "sum over a new dimension": (lambda x: (x[:, None] * torch.ones(3, 1).to(x)).sum(1), 16),
    "repeat": (lambda x: x.repeat(1, 2), 32),
    "interleave": (lambda x: x.repeat_interleave(2, dim=1), 32),
    "glu by hand": (gate_by_halves, 8),
    "glu": (lambda x: torch.nn.functional.glu(x, dim=1), 8),
    "numbers of a mask": (lambda x: x[torch.where(torch.arange(len(x)) >= 0)[0]], 16),
}
PINS: dict[str, tuple[Callable[[Tensor], Tensor], int, str]] = {
    "sort": (lambda x: x.sort(dim=1).values, 16, "sort"),
    "top": (lambda x: x.topk(5, dim=1).values, 5, "topk"),
    "largest": (lambda x: x - x.max(dim=1, keepdim=True).values, 16, "max"),
    "standardise": (standardise, 16, "var_mean"),
    "scaled by the width": (lambda x: x / x.shape[-1] ** 0.5, 16, "doubled"),
    "running sum": (lambda x: x.cumsum(-1), 16, "cumsum"),
    "roll": (lambda x: x.roll(1, -1), 16, "roll"),
    "flip": (lambda x: x.flip(1), 16, "flip"),
    "triangle": (lambda x: x.triu(), 16, "triu"),
    "every other": (lambda x: x[:, ::2] * x[:, 1::2], 8, "slice"),
    "outer product": (lambda x: (x[:, :, None] * x[:, None, :]).flatten(1), 256, "flatten"),
    "norm": (lambda x: x / x.norm(dim=1, keepdim=True), 16, "norm"),
    "padding": (lambda x: torch.nn.functional.pad(x, (1, 1)), 18, "pad"),
    "distance": (lambda x: torch.cdist(x, x.detach()[:3]), 3, "cdist"),
    "branches of a graph": (lambda x: torch.cond(torch.tensor(True), torch.sin, torch.cos, (x,)), 16, "cond"),
    "rows at once": (lambda x: torch.vmap(lambda row: row.flip(0))(x), 16, "_add_batch_dim"),
    "a literal of its size": (lambda x: x.reshape(-1, 16), 16, ""),
    "a constant of its size": (lambda x: x * torch.linspace(0, 1, 16).to(x), 16, ""),
}


@pytest.mark.parametrize("what", list(GROWS))
def test_widths_grow_through(what: str) -> None:
    middle, inner = GROWS[what]
    torch.manual_seed(0)
    model = Between(middle, inner).double().eval()
    anatomy, example = firefly.trace(model, X.double()), (X.double(),)
    assert [width.name for width in anatomy.growable()] == ["a", "b"]
    blind = grow_blindly(model, in_double(ZOO["mlp"]), anatomy=anatomy, example=example)
    assert blind.growth.neurons > 0
    assert_grown_is_overgrown(model, blind, example, 1e-12)


@pytest.mark.parametrize("what", list(PINS))
def test_widths_are_pinned_by(what: str) -> None:
    middle, inner, word = PINS[what]
    torch.manual_seed(0)
    anatomy = firefly.trace(Between(middle, inner), X)
    assert word in (anatomy["a"].pinned or "nothing")
    assert [width.name for width in anatomy.growable()] == ["b"]


class Waves(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(8, 16, dtype=torch.cfloat), nn.Linear(16, 6, dtype=torch.cfloat)
        self.c, self.d = nn.Linear(6, 5), nn.Linear(5, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.d(torch.relu(self.c(self.b(self.a(x.to(torch.cfloat))).abs())))


def test_complex_weights_keep_their_size_and_their_imaginary_part() -> None:
    torch.manual_seed(0)
    model = Waves()
    before = {name: p.clone() for name, p in model.a.named_parameters()}
    anatomy = firefly.trace(model, X)
    assert [width.name for width in anatomy.growable()] == ["c"]
    assert all("holds complex numbers" in (anatomy[name].pinned or "") for name in ("a", "b"))
    assert grow_blindly(model, ZOO["mlp"], anatomy=anatomy, example=(X,)).growth.neurons > 0
    assert all(torch.equal(p, before[name]) for name, p in model.a.named_parameters())


def test_a_mask_stays_a_mask() -> None:
    """A buffer that is multiplied into a weight, as in pruning and autoregressive nets, is data."""

    class Masked(nn.Module):
        mask: Tensor

        def __init__(self) -> None:
            super().__init__()
            self.fc, self.head = nn.Linear(8, 16), nn.Linear(16, 4)
            self.register_buffer("mask", (torch.rand(16, 8) > 0.5).float())

        def forward(self, x: Tensor) -> Tensor:
            return self.head(torch.relu(torch.nn.functional.linear(x, self.fc.weight * self.mask, self.fc.bias)))

    torch.manual_seed(0)
    model = Masked()
    anatomy = firefly.trace(model, X)
    if anatomy.growable():
        grow(model, ZOO["mlp"], anatomy=anatomy)
    assert set(model.mask.unique().tolist()) <= {0.0, 1.0}


def test_parameters_in_a_list_go_by_their_own_names() -> None:
    class Listed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.ws = nn.ParameterList([torch.randn(8, 16), torch.randn(16, 12), torch.randn(12, 4)])

        def forward(self, x: Tensor) -> Tensor:
            return torch.relu(torch.relu(x @ self.ws[0]) @ self.ws[1]) @ self.ws[2]

    assert list(firefly.trace(Listed(), X).widths) == ["ws.0", "ws.1", "ws.2"]


def test_names_of_widths_survive_a_growth() -> None:
    torch.manual_seed(0)
    model = Between(lambda x: torch.cat([x[:, 8:], x[:, :8]], 1))  # a makes two widths
    before = firefly.trace(model, X)
    assert grow_blindly(model, ZOO["mlp"], anatomy=before).growth.neurons > 0
    assert list(firefly.trace(model, X).widths) == list(before.widths)


def test_the_proof_is_not_blind() -> None:
    """The output does not depend on the width (a dead relu), yet it must not grow: index 2 is written down."""

    class Dead(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.one, self.fc, self.head = nn.Linear(8, 7), nn.Linear(7, 1), nn.Linear(1, 4)
            nn.init.constant_(self.fc.bias, -10.0)

        def forward(self, x: Tensor) -> Tensor:
            x = self.one(x)
            return self.head(torch.relu(self.fc(torch.cat([x[:, 2:], torch.tanh(x[:, :2])], 1))))

    torch.manual_seed(0)
    assert firefly.trace(Dead(), X)["one"].pinned


# ---- operators and layers of the user's own --------------------------------------------------------------------------


@torch.library.custom_op("firefly_tests::warp", mutates_args=())
def warp(x: Tensor) -> Tensor:
    return x.tanh()


warp.register_fake(torch.empty_like)
warp.register_autograd(
    lambda ctx, gradient: gradient * (1 - ctx.saved_tensors[0].square()),
    setup_context=lambda ctx, inputs, output: ctx.save_for_backward(output),
)


def make_warped() -> tuple[type[nn.Module], Any]:
    """A new class of layer each time, since a class stays registered."""

    class Warp(nn.Module):
        def __init__(self, inputs: int, width: int) -> None:
            super().__init__()
            self.weight, self.bias = nn.Parameter(torch.randn(width, inputs) / 3), nn.Parameter(torch.zeros(width))
            self.width = width

        def forward(self, x: Tensor) -> Tensor:
            return warp(x @ self.weight.t() + self.bias).view(-1, self.width)

    torch.manual_seed(0)
    return Warp, nn.Sequential(Warp(8, 16), nn.Linear(16, 12), nn.ReLU(), nn.Linear(12, 4))


def test_unknown_operator_pins_with_its_name_and_its_line() -> None:
    _, model = make_warped()
    anatomy = firefly.trace(model, X)
    reason = anatomy["0"].pinned or ""
    assert "firefly_tests.warp" in reason and "test_trace.py:" in reason
    assert anatomy["1"].pinned is None


def test_registered_layer_grows_and_trains() -> None:
    layer, model = make_warped()
    firefly.register(layer, makes={"weight": 0, "bias": 0}, reads={"weight": 1}, sizes={"width": "makes"})
    anatomy = firefly.trace(model, X)
    assert (anatomy["0"].size, anatomy["0"].pinned) == (16, None)
    assert anatomy.flops() == 2 * (8 * 16 + 16 * 12 + 12 * 4)
    entry = ZOO["mlp"]
    before = run(model, (X,))
    growth = grow(model, entry, anatomy=anatomy, example=X, widths=["0"], steps=10, budget=firefly.Neurons(5))
    assert growth.widths == {"0": (16, 21)} and growth.loss_after < growth.loss_before
    assert model[0].width == 21 and model[0].weight.shape == (21, 8) and model[1].in_features == 21
    assert (run(model, (X,))[0] - before[0]).abs().max().item() == pytest.approx(growth.output_change, rel=1e-4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    train(model, entry, optimizer, 12)
    assert loss_on(model, entry) < growth.loss_after


@pytest.mark.parametrize(
    ("layer", "options", "words"),
    [
        (3, {"makes": {"weight": 0}}, "not a class of nn.Module"),
        (nn.Identity, {}, "say at least which"),
        (nn.Identity, {"makes": {"weight": 0}, "sizes": {"n": "sideways"}}, "'sideways'"),
    ],
)
def test_register_refuses_what_makes_no_sense(layer: Any, options: dict[str, Any], words: str) -> None:
    with pytest.raises(firefly.FireflyError, match=words):
        firefly.register(layer, **options)


# ---- errors ----------------------------------------------------------------------------------------------------------


class DistributedDataParallel(nn.Module):
    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module


class Branch(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc, self.head = nn.Linear(8, 16), nn.Linear(16, 4)

    def forward(self, x: Tensor) -> Tensor:
        x = self.fc(x)
        return self.head(x) if x.sum() > 0 else self.head(-x)


def test_errors_name_the_thing_and_the_way_out() -> None:
    mlp = ZOO["mlp"].make()
    with pytest.raises(firefly.FireflyError, match=r"nn\.Module, not str"):
        firefly.trace(cast(Any, "mlp"), X)
    with pytest.raises(firefly.FireflyError, match=r"DistributedDataParallel.*model\.module"):
        firefly.trace(DistributedDataParallel(mlp), X)
    with pytest.raises(firefly.FireflyError, match=r"OptimizedModule.*model\._orig_mod"):
        firefly.trace(cast(Any, torch.compile(mlp, backend="eager")), X)
    with pytest.raises(firefly.FireflyError, match="does not run on the example"):
        firefly.trace(mlp, torch.randn(4, 9))
    with pytest.raises(firefly.FireflyError, match="does not run on the example"):
        firefly.trace(mlp, {"nothing": X})
    with pytest.raises(firefly.FireflyError, match=r"dict whose keys are 1: give the names.*\(batch,\)"):
        firefly.trace(mlp, {1: X})
    with pytest.raises(firefly.FireflyError, match="meta device, without values"):
        firefly.trace(mlp, X.to("meta"))
    with pytest.raises(firefly.FireflyError, match=r"branch on the values.* Branch\.forward \(test_trace\.py:"):
        firefly.trace(Branch(), X)
    with pytest.raises(firefly.FireflyError, match=r"no width 'fc9'.*0, 2, 4"):
        trace_entry("mlp")["fc9"]


def test_every_entry_that_should_grow_is_tested() -> None:
    assert {entry.name for entry in growing_entries()} == {n for n in ZOO if trace_entry(n).growable()}
