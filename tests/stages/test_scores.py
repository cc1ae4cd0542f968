"""Scores: what a candidate is worth is what the loss loses without it (Sec. 2.2)."""

import pytest
import torch
from torch import Tensor, nn

import firefly

Batch = tuple[Tensor, Tensor]


def make_task() -> tuple[nn.Sequential, list[Batch]]:
    """New neurons of the first layer move the output in proportion to ε, and the loss is quadratic in the output."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 3)).double()
    inputs = torch.randn(4, 16, 4, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    return model, [(x, x[:, :3].sin()) for x in inputs]


def squared(model: nn.Module, batch: Batch) -> Tensor:
    return (model(batch[0]) - batch[1]).square().mean()


def mean_loss(model: nn.Module, batches: list[Batch]) -> float:
    return sum(squared(model, batch).item() for batch in batches) / len(batches)


@pytest.mark.parametrize("path", ["joint", "single"])
def test_one_candidate_is_worth_exactly_what_it_gains(path: str) -> None:
    """The slope is linear in ε here, so that the midpoint rule has no error."""
    model, batches = make_task()
    growth = firefly.grow(model, squared, batches, example=batches[0][0], neighborhood=firefly.New(1), path=path)
    assert growth.loss_overgrown < growth.loss_before
    assert growth.total_gain == pytest.approx(growth.loss_before - growth.loss_overgrown, rel=1e-5)


def test_on_the_single_path_each_candidate_is_worth_what_is_lost_without_it() -> None:
    model, batches = make_task()
    budget = firefly.Neurons(3)
    how = {"neighborhood": firefly.New(3), "budget": budget, "path": "single", "evaluate_on": 2}
    growth = firefly.grow(model, squared, batches, example=batches[0][0], **how)
    assert growth.neurons == 3
    lost = 0.0
    with torch.no_grad():
        for number in range(5, 8):
            column = model[2].weight[:, number].clone()
            model[2].weight[:, number] = 0.0
            lost += mean_loss(model, batches[:2]) - growth.loss_after
            model[2].weight[:, number] = column
    assert growth.total_gain == pytest.approx(lost, rel=1e-5)
