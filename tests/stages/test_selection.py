"""The choice: only what lowers the loss, best first, and by magnitude in the direction that lowers it (eq. 5)."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import firefly
from firefly.method import Method

SIZE = 6


def make_net() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, SIZE), nn.Tanh(), nn.Linear(SIZE, 3)).double()


def loss(model: nn.Module, batch: Tensor) -> Tensor:
    return model(batch).square().mean()


def grow(gains: list[float], model: nn.Module | None = None, **options: Any) -> firefly.Growth:
    """A growth in which the candidates of the only width are worth this."""
    method = Method(score=lambda over, *_: {name: torch.tensor(gains) for name in over.epsilon}, trust=False)
    batch = torch.randn(8, 4, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    given = {"neighborhood": firefly.Split(), "budget": firefly.Neurons(SIZE), "steps": 3} | options
    return firefly.grow(model or make_net(), loss, [batch], example=batch, method=method, **given)


def test_only_those_are_taken_that_lower_the_loss() -> None:
    growth = grow([0.3, -0.2, 0.0, 0.1, -0.4, 0.2])
    assert growth.chosen["0"]["split"] == [0, 3, 5] and growth.neurons == 3
    assert growth.predicted == pytest.approx(0.6) and growth.notes


def test_none_that_raises_the_loss_fills_up_a_multiple() -> None:
    growth = grow([0.9, 0.5, 0.4, -0.1, -0.4, -0.5], budget=firefly.Neurons(SIZE) & firefly.Multiples(2))
    assert growth.chosen["0"]["split"] == [0, 1]


@pytest.mark.parametrize(("count", "best"), [(1, [4]), (2, [1, 4]), (4, [0, 1, 4, 5])])
def test_the_best_are_taken_first(count: int, best: list[int]) -> None:
    growth = grow([0.3, 0.5, 0.1, 0.2, 0.9, 0.4], budget=firefly.Neurons(count))
    assert growth.chosen["0"]["split"] == best and not growth.notes


def test_by_magnitude_the_sign_does_not_matter_for_the_rank() -> None:
    growth = grow([0.3, -0.5, 0.1, 0.2, -0.9, 0.4], budget=firefly.Neurons(3), rank="magnitude")
    assert growth.chosen["0"]["split"] == [1, 4, 5]


def test_by_magnitude_a_new_neuron_that_raises_the_loss_is_turned_around() -> None:
    columns = []
    for sign in (1.0, -1.0):
        model = make_net()
        grow([0.0] * SIZE + [sign], model, neighborhood=firefly.New(1), budget=firefly.Neurons(1), rank="magnitude")
        columns.append(model[2].weight[:, SIZE].clone())
    assert columns[0].abs().max() > 1e-4 and torch.allclose(columns[0], -columns[1])


def test_costs_count_for_the_choice_by_their_power() -> None:
    """A neuron of the first width costs more parameters than one of the second."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(20, 4), nn.Tanh(), nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 1)).double()
    worth = {"0": 0.3, "2": 0.2}
    method = Method(score=lambda over, *_: {n: torch.full_like(e, worth[n]) for n, e in over.epsilon.items()})
    batch = torch.randn(8, 20, dtype=torch.float64)
    for budget, first in ((firefly.Neurons(1), "0"), (firefly.Parameters(26), "2")):
        growth = firefly.grow(
            model, loss, [batch], example=batch, neighborhood=firefly.Split(), budget=budget, method=method,
            steps=2, preview=True,
        )  # fmt: skip
        assert first in growth.added and ("0" in growth.added) == (first == "0")
