"""Losses, loaders, modes, optimisers and budgets that a growth met in the wild."""

from collections.abc import Iterator
from typing import Any

import numpy
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import firefly
from firefly import FireflyError


@pytest.fixture(autouse=True)
def seeded() -> None:
    torch.manual_seed(0)


def cross_entropy(model: nn.Module, batch: Any) -> Tensor:
    return F.cross_entropy(model(batch[0]), batch[1])


def make_mlp(size: int = 8) -> nn.Sequential:
    return nn.Sequential(nn.Linear(8, size), nn.ReLU(), nn.Linear(size, 3))


def make_normed() -> nn.Sequential:
    return nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 3))


def draw(count: int = 4, size: int = 32) -> list[tuple[Tensor, Tensor]]:
    return [(torch.randn(size, 8), torch.randint(0, 3, (size,))) for _ in range(count)]


def grow(model: nn.Module, batches: Any, loss: Any = cross_entropy, **how: Any) -> firefly.Growth:
    known = {"budget": firefly.Neurons(3), "steps": 5}
    return firefly.grow(model, loss, batches, **{**known, **how})


class Stream(torch.utils.data.IterableDataset):
    def __iter__(self) -> Iterator[tuple[Tensor, int]]:
        yield from ((torch.randn(8), k % 3) for k in range(40))


def test_a_loader_of_a_stream_has_no_length() -> None:
    loader = torch.utils.data.DataLoader(Stream(), batch_size=4)
    assert sum(grow(make_mlp(), loader, example=torch.zeros(4, 8)).added["0"].values()) == 3


def test_a_loss_may_take_slopes_by_itself() -> None:
    def penalty(model: nn.Module, x: Tensor) -> Tensor:
        x = x.clone().requires_grad_()
        (slope,) = torch.autograd.grad(model(x).sum(), x, create_graph=True)
        return (slope - torch.cos(3 * x)).square().mean()

    model = nn.Sequential(nn.Linear(1, 16), nn.Tanh(), nn.Linear(16, 1))
    growth = grow(model, [torch.rand(32, 1) for _ in range(4)], penalty, example=torch.zeros(4, 1))
    assert growth.loss_after < growth.loss_before


def test_with_frozen_statistics_the_loss_is_that_of_the_network_one_gets() -> None:
    model = nn.Sequential(*list(make_normed())[:3], *make_normed())
    batches = draw(8)
    for batch in batches * 8:  # statistics of other data than those that it is grown on
        model(batch[0] * 3 + 2)
    model[1].eval(), model[4].eval()
    growth = grow(model, batches, example=batches[0][0], held=batches, neighborhood=firefly.Split(1.0), steps=30)
    with torch.no_grad():
        truth = sum(cross_entropy(model, batch).item() for batch in batches) / 8
    assert growth.loss_after == pytest.approx(truth, rel=1e-5) and growth.loss_after < growth.loss_before


def test_frozen_norms_bear_batches_of_one_and_others_are_refused() -> None:
    model, batches = make_normed(), draw(8, 1)
    kept = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    with pytest.raises((FireflyError, ValueError), match=r"more than 1 value"):
        grow(model, batches, example=torch.zeros(2, 8))
    model.eval()
    model.load_state_dict(kept)
    assert grow(model, batches, example=batches[0][0]).widths["0"][1] > 8
    assert torch.equal(model[1].running_mean[:8], kept["1.running_mean"])


class Student(nn.Module):
    """Its teacher follows it, written by the forward itself."""

    def __init__(self) -> None:
        super().__init__()
        self.net, self.teacher = nn.Linear(8, 8), nn.Linear(8, 8).requires_grad_(False)
        self.predict = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 8))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        if self.training:
            with torch.no_grad():
                self.teacher.weight.lerp_(self.net.weight, 0.1)
        return self.predict(self.net(x)), self.teacher(x)


@pytest.mark.parametrize("preview", [True, False])
def test_parameters_that_a_forward_writes_to_are_as_before(preview: bool) -> None:
    model, batches = Student(), [torch.randn(32, 8) for _ in range(4)]
    before = model.teacher.weight.clone()
    grow(model, batches, lambda model, x: F.mse_loss(*model(x)), example=batches[0], preview=preview)
    assert torch.equal(model.teacher.weight, before)


def test_dropout_is_off_also_where_only_parts_train() -> None:
    model, batches = nn.Sequential(nn.Linear(8, 16), nn.Dropout(), nn.ReLU(), nn.Linear(16, 3)), draw(4)
    model.eval()
    model[1].train()
    found = {grow(model, batches, example=batches[0][0], seed=seed, preview=True).loss_before for seed in range(3)}
    assert len(found) == 1


class Bag(nn.Module):
    def __init__(self, **how: Any) -> None:
        super().__init__()
        self.table, self.head = nn.Embedding(20, 8, padding_idx=0, **how), nn.Linear(8, 3)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.head(torch.tanh(self.table(tokens)).sum(1))


@pytest.mark.parametrize("sparse", [False, True])
@pytest.mark.parametrize("method", ["firefly", "net2net", "gradmax", "uniform"])
def test_the_row_of_padding_stays_zero(method: str, sparse: bool) -> None:
    model = Bag(sparse=sparse)
    batches = [(torch.randint(1, 20, (16, 6)), torch.randint(0, 3, (16,))) for _ in range(4)]
    assert "table" in grow(model, batches, example=batches[0][0], method=method).added
    assert model.table.weight.shape == (20, 11) and not model.table.weight[0].any() and model.table.weight[1].all()
    assert model.table.sparse is sparse


class Router(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.w, self.head = nn.Parameter(torch.randn(8, 16) / 3), nn.Linear(16, 3)
        self.every, self.max_length, self.n_hidden = 16, 16, 16  # log every 16 steps; 16 tokens at most; the size

    def forward(self, x: Tensor) -> Tensor:
        return self.head(torch.relu(x @ self.w))


def test_numbers_that_happen_to_equal_a_size_stay() -> None:
    model, batches = Router(), draw()
    assert grow(model, batches, example=batches[0][0]).widths["w"] == (16, 19)
    assert (model.every, model.max_length, model.n_hidden) == (16, 16, 19)


class Around(torch.optim.Optimizer):
    """An optimiser around another one, as SAM is."""

    def __init__(self, params: Any) -> None:
        super().__init__(params, {"lr": 1e-2})
        self.base_optimizer = torch.optim.Adam(self.param_groups, lr=1e-2)
        self.param_groups = self.base_optimizer.param_groups

    def step(self, closure: Any = None) -> None:
        self.base_optimizer.step()


def test_the_state_of_an_optimiser_inside_another_follows() -> None:
    model, batches = make_mlp(), draw()
    optimizer = Around(model.parameters())
    for again in range(2):
        for batch in batches:
            optimizer.zero_grad()
            cross_entropy(model, batch).backward()
            optimizer.step()
        if not again:
            grow(model, batches, example=batches[0][0], optimizer=optimizer)
    state = optimizer.base_optimizer.state
    assert len(state) == 4 and all(state[p]["step"] == 8 for p in model.parameters())


def test_a_loss_that_names_a_size_is_told() -> None:
    model, batches = make_mlp(), draw()
    old = {name: p.detach().clone() for name, p in model.named_parameters()}

    def anchored(model: nn.Module, batch: Any) -> Tensor:
        far = sum((p - old[name]).square().sum() for name, p in model.named_parameters())
        return cross_entropy(model, batch) + far

    with pytest.raises(FireflyError, match=r"but not on the model with more neurons .*must match"):
        grow(model, batches, anchored, example=batches[0][0])
    assert all(torch.equal(p, old[name]) for name, p in model.named_parameters())


class Centre(nn.Module):
    """A norm of one's own, with words that torch's have, too."""

    def __init__(self) -> None:
        super().__init__()
        self.track_running_stats = True
        self.register_buffer("mean", torch.zeros(8))

    def forward(self, x: Tensor) -> Tensor:
        return x - self.mean


def test_a_norm_of_ones_own_need_not_be_like_torchs() -> None:
    model = nn.Sequential(nn.Linear(8, 8), Centre(), nn.ReLU(), nn.Linear(8, 6), nn.ReLU(), nn.Linear(6, 3))
    assert grow(model, draw(), example=torch.zeros(4, 8)).added


def test_an_average_of_other_precision_keeps_it() -> None:
    model, average = make_normed(), make_normed().to(torch.bfloat16)
    grow(model, draw(), example=torch.zeros(4, 8), also=[average])
    assert {tensor.dtype for tensor in (*average.parameters(), average[1].running_mean)} == {torch.bfloat16}


def deep(budget: firefly.Neurons) -> firefly.Growth:
    model = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 3))
    firefly.deepen(model, torch.zeros(4, 8))
    return grow(model, draw(), example=torch.zeros(4, 8), budget=budget)


def test_layers_alone_grow_layers_alone() -> None:
    growth = deep(firefly.Layers(1))  # type: ignore[arg-type]
    (name,) = (name for name, (before, after) in growth.widths.items() if after > before)
    assert growth.widths[name][0] == 0


def test_budgets_that_would_mean_something_else_are_refused() -> None:
    with pytest.raises(FireflyError, match=r"Tied\('layers.\*'\): no width is called so; there are 0, "):
        deep(firefly.Neurons(4) & firefly.Tied("layers.*"))  # type: ignore[arg-type]
    with pytest.raises(FireflyError, match=r"a share is Neurons\(fraction=0\.3\)"):
        firefly.Neurons(0.3)
    assert firefly.Neurons(numpy.int64(3)).count == 3  # type: ignore[arg-type]
