"""Nothing that is not a number is ever committed, wherever in a growth it comes up (tensors, buffers, losses)."""

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import firefly

DATA = [(torch.randn(16, 2, 6, 6, generator=torch.Generator().manual_seed(k)), torch.arange(16) % 3) for k in range(6)]


def make_net() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(2, 2, 3), nn.BatchNorm2d(2), nn.ReLU(), nn.Flatten(), nn.Linear(32, 3))


class Spoilt:
    """Cross entropy that is not a number in one of its calls only."""

    def __init__(self, call: int) -> None:
        self.call, self.calls = call, 0

    def __call__(self, model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
        self.calls += 1
        value = nn.functional.cross_entropy(model(batch[0]), batch[1])
        return value * float("nan") if self.calls == self.call else value


def grow(model: nn.Module, loss: Any, **options: Any) -> firefly.Growth:
    given = {"example": DATA[0][0], "budget": firefly.Neurons(4), "steps": 40, "evaluate_on": 2} | options
    return firefly.grow(model, loss, DATA, **given)


def count_calls() -> int:
    loss = Spoilt(-1)
    grow(make_net(), loss)
    return loss.calls


@pytest.mark.parametrize("call", [1, 2, 5, 8, 12, 20, 30, 40, *range(45, count_calls() + 1, 3)])
def test_one_bad_loss_never_spoils_the_model(call: int) -> None:
    model = make_net()
    before = copy.deepcopy(model.state_dict())
    try:
        growth = grow(model, Spoilt(call))
    except firefly.FireflyError:
        assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
        return
    assert all(value.isfinite().all() for value in model.state_dict().values())
    numbers = [growth.loss_before, growth.loss_overgrown, growth.loss_after, growth.output_change, growth.predicted]
    assert all(map(torch.isfinite, torch.tensor(numbers))) and growth.neurons > 0


def test_a_bad_batch_in_step_one_costs_one_step_only() -> None:
    """The growth is almost that of an undisturbed step one."""
    plain, spoilt = grow(make_net(), Spoilt(-1)), grow(make_net(), Spoilt(25))
    assert spoilt.loss_overgrown < spoilt.loss_before
    assert abs(plain.loss_overgrown - spoilt.loss_overgrown) < 0.3 * (plain.loss_before - plain.loss_overgrown)


class Patient(nn.Module):
    """Whatever is not a number becomes zero, so that neither loss nor output tells of it."""

    def forward(self, x: Tensor) -> Tensor:
        return torch.nan_to_num(x)


def test_statistics_that_are_not_a_number_are_refused_even_where_nothing_else_tells() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(2, 2, 3), nn.BatchNorm2d(2), Patient(), nn.ReLU(), nn.Flatten(), nn.Linear(32, 3))
    before = copy.deepcopy(model.state_dict())
    bad = DATA[0][0].clone()
    bad[0, 0, 0, 0] = float("nan")
    with pytest.raises(firefly.FireflyError, match="finite"):
        grow(model, Spoilt(-1), held=[DATA[1], (bad, DATA[0][1])], method="uniform", budget=firefly.Neurons(2))
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


def test_a_gradient_that_is_not_a_number_is_refused() -> None:
    def loss(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
        return (model(batch[0]) * 0).sum().sqrt() + nn.functional.cross_entropy(model(batch[0]), batch[1])

    model = make_net()
    before = copy.deepcopy(model.state_dict())
    with pytest.raises(firefly.FireflyError, match="not a number"):
        grow(model, loss)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


@pytest.mark.parametrize("spoil", ["nan data", "inf data", "all nan"])
def test_bad_data_is_refused_or_left_out(spoil: str) -> None:
    images, labels = DATA[0]
    bad = images.clone()
    bad[0, 0, 0, 0] = float("inf") if spoil == "inf data" else float("nan")
    batches = [(bad, labels)] * 6 if spoil == "all nan" else [*DATA[:5], (bad, labels)]
    model = make_net()
    try:
        firefly.grow(model, Spoilt(-1), batches, example=DATA[0][0], budget=firefly.Neurons(4), steps=12, evaluate_on=2)
    except firefly.FireflyError:
        assert spoil == "all nan"
    assert all(value.isfinite().all() for value in model.state_dict().values())


def test_infinite_entries_that_were_there_stay() -> None:
    """A mask of minus infinity is no fault of the growth."""

    class Masked(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.last = nn.Linear(4, 6), nn.Linear(6, 3)
            self.register_buffer("mask", torch.tensor([0.0, 0.0, float("-inf")]))

        def forward(self, x: Tensor) -> Tensor:
            return self.last(torch.relu(self.first(x))) + self.mask

    torch.manual_seed(0)
    model, batch = Masked(), (torch.randn(8, 4), torch.arange(8) % 2)

    def loss(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
        return nn.functional.cross_entropy(model(batch[0]), batch[1])

    growth = firefly.grow(model, loss, [batch] * 4, example=batch[0], budget=firefly.Neurons(2), steps=10)
    assert growth.neurons == 2 and growth.output_change < 10


# ---- what else a growth must leave alone -----------------------------------------------------------------------------


def test_bystanders_keep_their_buffers() -> None:
    torch.manual_seed(0)
    generator = nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 8))
    critic = nn.Sequential(nn.Linear(8, 5), nn.BatchNorm1d(5), nn.ReLU(), nn.Linear(5, 1))
    before = copy.deepcopy(critic.state_dict())
    batches = [torch.randn(16, 4) for _ in range(4)]

    def loss(model: nn.Module, batch: Tensor) -> Tensor:
        return nn.functional.softplus(-critic(model(batch))).mean()

    options: dict[str, Any] = {"example": batches[0], "budget": firefly.Neurons(2), "steps": 5}
    firefly.grow(generator, loss, batches, bystanders=[critic], **options)
    assert all(torch.equal(value, before[name]) for name, value in critic.state_dict().items())
    grower = firefly.Firefly(generator, batches[0], budget=firefly.Neurons(1), steps=5)
    grower.grow(loss, batches, bystanders=[critic])
    assert all(torch.equal(value, before[name]) for name, value in critic.state_dict().items())


def test_a_gradient_that_waits_for_a_step_follows_its_neurons() -> None:
    """Accumulated over two batches, with a growth between them: what the first brought is still there."""
    model = make_net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    Spoilt(-1)(model, DATA[0]).backward()
    before = {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}
    growth = grow(model, Spoilt(-1), optimizer=optimizer, neighborhood=[firefly.Split()], budget=firefly.Neurons(1))
    (split,) = growth.chosen["0"]["split"]
    rows, stays = model[0].weight.grad, 1 - split
    assert torch.equal(rows[[split, 2]], before["0.weight"][[split, split]] / 2)
    assert torch.equal(rows[stays], before["0.weight"][stays])
    assert torch.equal(model[4].bias.grad, before["4.bias"])
    Spoilt(-1)(model, DATA[1]).backward()
    optimizer.step()
    assert all(parameter.isfinite().all() for parameter in model.parameters())


def test_scores_are_those_of_the_users_own_batches() -> None:
    seen: list[float] = []

    def loss(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
        seen.append(batch[0].sum().item())
        return nn.functional.cross_entropy(model(batch[0]), batch[1])

    valid = [(images, labels.clone()) for images, labels in DATA[4:]]
    model = make_net().eval()
    with torch.no_grad():
        expected = sum(loss(model, batch).item() for batch in valid) / 2
    seen.clear()
    growth = firefly.grow(model, loss, DATA[:4], example=DATA[0][0], budget=firefly.Neurons(2), steps=4, held=valid)
    assert abs(growth.loss_before - expected) < 1e-6
    assert {images.sum().item() for images, _ in valid} <= set(seen)
    with pytest.raises(firefly.FireflyError, match="held has no batches"):
        firefly.grow(model, loss, DATA[:4], example=DATA[0][0], held=[])
