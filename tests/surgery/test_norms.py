"""Running statistics are measured, not drawn: chance in the model must not look like growth."""

import copy

import torch
from torch import Tensor, nn

import firefly
from firefly.baselines.random import random_growth
from firefly.surgery.norms import average_statistics


class Noisy(nn.Module):
    """Rows are left out at random in training, as by stochastic depth, in front of a batch norm."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.drop, self.noise = nn.Linear(3, 8), nn.Dropout(0.5), Rows()
        self.second, self.norm, self.last = nn.Linear(8, 8), nn.BatchNorm1d(8), nn.Linear(8, 2)

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.noise(self.drop(self.first(x).relu()))
        return self.last(self.norm(self.second(hidden)).relu())


class Rows(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x * torch.empty_like(x[:, :1]).bernoulli_(0.5) * 2 if self.training else x


def square(model: nn.Module, batch: Tensor) -> Tensor:
    return model(batch).square().mean()


def test_tiny_splits_keep_the_function_of_a_noisy_model_in_training() -> None:
    torch.manual_seed(0)
    model, x = Noisy().double().train(), torch.randn(64, 3, dtype=torch.float64)
    before = copy.deepcopy(model).eval()(x)
    firefly.grow(
        model,
        square,
        [x],
        example=x,
        neighborhood=firefly.Split(1e-9),
        budget=firefly.Neurons(8),
        method=random_growth(),
    )
    assert model.training and model.drop.training and model.noise.training
    assert (model.eval()(x) - before).abs().max() < 1e-6


def test_statistics_are_the_same_twice() -> None:
    torch.manual_seed(0)
    model, x = Noisy(), torch.randn(64, 3)
    average_statistics(model, square, [x])
    first = model.norm.running_var.clone()
    average_statistics(model, square, [x])
    assert torch.equal(model.norm.running_var, first)


def test_frozen_statistics_that_cannot_be_measured_stay() -> None:
    model = nn.Sequential(nn.Linear(3, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 2))
    model(torch.randn(64, 3))
    before = model.eval()[1].running_var.clone()
    average_statistics(model, square, [torch.randn(1, 3)])
    assert torch.equal(model[1].running_var, before) and not torch.equal(before, torch.ones(8))
