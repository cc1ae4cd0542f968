"""The trust region: neither the over-grown nor the grown network is taken at a length where the loss would rise."""

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import firefly

Batch = tuple[Tensor, Tensor]
SEEDS = range(12)


def make_task(seed: int) -> tuple[nn.Sequential, Batch]:
    """A network that is nearly as good as it can be, so that long steps make it worse."""
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 3)).double()
    generator = torch.Generator().manual_seed(seed)
    inputs = torch.randn(32, 4, generator=generator, dtype=torch.float64)
    noise = torch.randn(32, 3, generator=generator, dtype=torch.float64)
    return model, (inputs, model(inputs).detach() + 0.1 * noise)


def squared(model: nn.Module, batch: Batch) -> Tensor:
    return (model(batch[0]) - batch[1]).square().mean()


def grow_far(model: nn.Module, batch: Batch, seed: int, **options: Any) -> firefly.Growth:
    """A growth whose step is far too long."""
    kinds = [firefly.Split(1.0), firefly.New(6, epsilon=1.0)]
    given = {"neighborhood": kinds, "budget": firefly.Neurons(1), "steps": 4, "lr": 1.0} | options
    return firefly.grow(model, squared, [batch], example=batch[0], seed=seed, **given)


def test_the_overgrown_network_is_better_however_long_the_step_was() -> None:
    """One step of Adam goes down at first, whatever comes after."""
    for seed in SEEDS:
        model, batch = make_task(seed)
        growth = grow_far(model, batch, seed, steps=1)
        assert growth.shortened < 1
        assert growth.loss_overgrown < growth.loss_before
        assert growth.loss_after <= growth.loss_before


def test_the_grown_network_is_no_worse_however_badly_it_was_chosen() -> None:
    """By magnitude, even candidates that raise the loss are chosen."""
    for seed in SEEDS:
        model, batch = make_task(seed)
        before = squared(model, batch).item()
        growth = grow_far(model, batch, seed, rank="magnitude")
        assert growth.neurons == 1
        assert squared(model, batch).item() == pytest.approx(growth.loss_after)
        assert growth.loss_after <= 1.001 * before


@pytest.mark.parametrize("rank", ["decrease", "magnitude"])
def test_an_average_of_the_weights_takes_the_same_step(rank: str) -> None:
    for seed in SEEDS:
        model, batch = make_task(seed)
        twin = copy.deepcopy(model)
        grow_far(model, batch, seed, also=[twin], rank=rank)
        for name, parameter in model.named_parameters():
            assert torch.equal(parameter, twin.get_parameter(name)), name
