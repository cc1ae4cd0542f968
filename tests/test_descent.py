"""A grower is `grow`, again and again: with what it was told, and with random numbers of its own each time."""

import copy

import torch
from torch import Tensor, nn

import firefly

HOW = {"neighborhood": firefly.New(4), "budget": firefly.Neurons(2), "steps": 3}


def make_net() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 3))


def make_batches() -> list[Tensor]:
    return list(torch.randn(4, 8, 4, generator=torch.Generator().manual_seed(1)))


def loss(model: nn.Module, batch: Tensor) -> Tensor:
    return (model(batch) - batch[:, :3].sin()).square().mean()


def test_every_growth_of_a_grower_has_the_next_seed() -> None:
    model, batches = make_net(), make_batches()
    grower = firefly.Firefly(model, batches[0], seed=5, **HOW)
    twin = copy.deepcopy(model)
    for seed in (5, 6):
        grower.grow(loss, batches)
        before = copy.deepcopy(twin)
        for one, number in ((twin, seed), (before, seed + 7)):
            firefly.grow(one, loss, batches, example=batches[0], seed=number, **HOW)
        pairs = list(zip(model.parameters(), twin.parameters(), before.parameters()))
        assert all(torch.equal(own, same) for own, same, _ in pairs)
        assert not all(torch.equal(own, other) for own, _, other in pairs)  # the seed matters
