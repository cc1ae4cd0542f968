"""Step one (Sec. 2.2, eq. 4): its rate falls, it begins again where the loss rose, and it stays inside the ball."""

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.optim.optimizer import register_optimizer_step_pre_hook

import firefly

Batch = tuple[Tensor, Tensor]
STEPS, LR = 30, 0.02


def make_net() -> nn.Sequential:
    torch.manual_seed(0)
    layers = nn.Linear(4, 6, bias=False), nn.Softplus(), nn.Linear(6, 3)
    return nn.Sequential(*layers).double()


def make_batches(count: int = 4) -> list[Batch]:
    generator = torch.Generator().manual_seed(1)
    inputs = torch.randn(count, 16, 4, generator=generator, dtype=torch.float64)
    return [(x, x[:, :3].tanh()) for x in inputs]


def squared(model: nn.Module, batch: Batch) -> Tensor:
    return (model(batch[0]) - batch[1]).square().mean()


def grow(model: nn.Module, loss: Any = squared, **options: Any) -> firefly.Growth:
    kinds = [firefly.Split(0.1), firefly.New(4, epsilon=0.1)]
    given = {"example": make_batches()[0][0], "neighborhood": kinds, "steps": STEPS, "lr": LR} | options
    return firefly.grow(model, loss, make_batches(), **given)


class Watch:
    """Adam before each of its steps: its rate, what it moves, and whether it remembers anything."""

    def __init__(self) -> None:
        self.rates: list[float] = []
        self.places: list[list[Tensor]] = []
        self.rested: list[bool] = []

    def __call__(self, optimizer: torch.optim.Optimizer, *_: Any) -> None:
        (group,) = optimizer.param_groups
        self.rates.append(float(group["lr"]))
        self.places.append([one.detach().clone() for one in group["params"]])
        moments = [value for state in optimizer.state.values() for value in state.values()]
        self.rested.append(not any(value.any() for value in moments))


@pytest.fixture
def watch() -> Iterator[Watch]:
    watch = Watch()
    handle = register_optimizer_step_pre_hook(watch)
    yield watch
    handle.remove()


def test_the_rate_falls_linearly(watch: Watch) -> None:
    grow(make_net())
    assert watch.rates == pytest.approx([LR * (1 - step / STEPS) for step in range(STEPS)])
    assert watch.rested == [True] + [False] * (STEPS - 1)


def test_where_the_loss_has_risen_it_begins_again_with_shorter_steps(watch: Watch) -> None:
    calls = [0]

    def rising(model: nn.Module, batch: Batch) -> Tensor:
        calls[0] += 1
        return squared(model, batch) + calls[0]

    grow(make_net(), rising)
    thirds = [3.0 ** -(step // 10) for step in range(STEPS)]
    assert watch.rates == pytest.approx([LR * third * (1 - step / STEPS) for step, third in enumerate(thirds)])
    for again in (10, 20):
        assert watch.rested[again]
        assert all(map(torch.equal, watch.places[again], watch.places[0]))
        assert not all(map(torch.equal, watch.places[again - 1], watch.places[0]))


def climb(model: nn.Module, batch: Batch) -> Tensor:
    """A loss without a lowest point: whatever leads further down is worth it."""
    return -model(batch[0]).mean()


def rms(tensor: Tensor, dim: int) -> Tensor:
    return tensor.square().mean(dim).sqrt()


def test_new_neurons_reach_the_rim_of_the_ball_and_no_further() -> None:
    model, epsilon = make_net(), 0.2
    reader = model[2].weight.detach().clone()
    growth = grow(model, climb, neighborhood=[firefly.New(4, epsilon=epsilon)], lr=0.2, budget=firefly.Neurons(4))
    assert growth.neurons == 4 and growth.shortened == 1
    found = rms(model[2].weight[:, 6:], 0) / (epsilon * reader.square().mean().sqrt())
    assert found.tolist() == pytest.approx([1.0] * 4, rel=1e-6)


def test_short_directions_stay_short() -> None:
    model = make_net()
    reader = model[2].weight.detach().square().mean().sqrt()
    kinds = [firefly.New(4, epsilon=0.2)]
    assert grow(model, climb, neighborhood=kinds, lr=0.001, budget=firefly.Neurons(4)).neurons == 4
    found = rms(model[2].weight[:, 6:], 0) / (0.2 * reader)
    assert (found > 1e-4).all() and (found < 0.1).all()


def test_split_neurons_reach_the_rim_of_the_ball_and_no_further() -> None:
    model, epsilon = make_net(), 0.2
    with torch.no_grad():
        model[2].weight.abs_()  # softplus is convex: the further apart the copies, the larger their sum
    rows = model[0].weight.detach().clone()
    growth = grow(model, climb, neighborhood=[firefly.Split(epsilon)], lr=0.2, budget=firefly.Neurons(6))
    assert growth.neurons == 6 and growth.shortened == 1
    apart = (model[0].weight[:6] - model[0].weight[6:]) / 2
    assert torch.allclose(model[0].weight[:6] - apart, rows)
    assert (rms(apart, 1) / (epsilon * rms(rows, 1))).tolist() == pytest.approx([1.0] * 6, rel=1e-6)
