"""Running statistics after a growth: measured for new neurons, moved along for split ones, kept for all others."""

from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import firefly

SIZE = 4


def make_net() -> nn.Sequential:
    torch.manual_seed(0)
    first = nn.Conv2d(3, SIZE, 3, bias=False), nn.BatchNorm2d(SIZE), nn.ReLU()
    second = nn.Conv2d(SIZE, 5, 3, bias=False), nn.BatchNorm2d(5), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten()
    model = nn.Sequential(*first, *second, nn.Linear(5, 2)).double()
    for norm in (model[1], model[4]):
        norm.running_mean.normal_()
        norm.running_var.uniform_(0.5, 2.0)
    return model


def make_batches(count: int = 4) -> list[tuple[Tensor, Tensor]]:
    """Two classes that differ in their contrast; every batch is brighter than the one before."""
    generator, labels = torch.Generator().manual_seed(1), torch.arange(8) % 2
    images = torch.randn(count, 8, 3, 8, 8, generator=generator, dtype=torch.float64)
    images *= 1 + labels.view(-1, 1, 1, 1)
    return [(part + number, labels) for number, part in enumerate(images)]


def loss(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
    return nn.functional.cross_entropy(model(batch[0]), batch[1])


@torch.no_grad()
def measure(model: nn.Sequential, batches: list[tuple[Tensor, Tensor]]) -> tuple[Tensor, Tensor]:
    """Mean and variance of what the first norm gets, averaged over the batches."""
    inputs = [model[0](images).transpose(0, 1).flatten(1) for images, _ in batches]
    return torch.stack([x.mean(1) for x in inputs]).mean(0), torch.stack([x.var(1) for x in inputs]).mean(0)


@dataclass
class Grown:
    """A network whose first width has grown, its statistics before and after, and those of the data."""

    training: bool
    kinds: list[Any]
    lr: float = 0.02
    model: nn.Sequential = field(default_factory=make_net)

    def __post_init__(self) -> None:
        self.model.train(self.training)
        batches = make_batches()
        self.own = self.model[1].running_mean.clone(), self.model[1].running_var.clone()
        self.others = self.model[4].running_mean.clone(), self.model[4].running_var.clone()
        self.before = measure(self.model, batches[:2])  # those that are held from step one
        rows = self.model[0].weight.detach().clone()
        how = {"widths": ["0"], "neighborhood": self.kinds, "evaluate_on": 2, "steps": 5, "lr": self.lr}
        growth = firefly.grow(self.model, loss, batches, example=batches[0][0], budget=firefly.Neurons(SIZE), **how)
        self.after = measure(self.model, batches[:2])
        self.added = growth.added["0"]
        self.split = (self.model[0].weight[:SIZE] != rows).flatten(1).any(1)
        self.parents = self.split.nonzero().flatten()  # of the copies, in order

    @property
    def found(self) -> tuple[Tensor, Tensor]:
        return self.model[1].running_mean, self.model[1].running_var


def test_neurons_that_did_not_change_keep_theirs() -> None:
    grown = Grown(True, [firefly.Split(0.5), firefly.New(3)])
    for found, own, other, others in zip(
        grown.found, grown.own, (grown.model[4].running_mean, grown.model[4].running_var), grown.others
    ):
        assert torch.equal(found[:SIZE][~grown.split], own[~grown.split])
        assert torch.equal(other, others)


@pytest.mark.parametrize("training", [True, False])
def test_new_neurons_have_those_of_the_data(training: bool) -> None:
    grown = Grown(training, [firefly.New(3)], lr=0.02 if training else 1e-12)  # in eval mode: of where they began
    assert grown.added["new"] > 0
    for found, after in zip(grown.found, grown.after):
        assert torch.allclose(found[SIZE:], after[SIZE:], rtol=1e-9)


def test_split_neurons_have_those_of_their_parent_and_the_change_of_the_split() -> None:
    grown = Grown(True, [firefly.Split(0.5)])
    assert grown.added["split"] == len(grown.parents) > 0
    numbers = torch.cat([torch.arange(SIZE), grown.parents])
    mean = (grown.own[0] - grown.before[0])[numbers] + grown.after[0]
    variance = (grown.own[1] / grown.before[1])[numbers] * grown.after[1]
    for found, expected, own in zip(grown.found, (mean, variance), grown.own):
        assert torch.allclose(found, expected, rtol=1e-9)
        assert not torch.allclose(found[:SIZE][grown.split], own[grown.split], rtol=1e-4)  # it matters


def test_in_eval_mode_split_neurons_keep_those_of_their_parent() -> None:
    grown = Grown(False, [firefly.Split(0.5)])
    numbers = torch.cat([torch.arange(SIZE), grown.parents])
    assert len(grown.parents)
    for found, own in zip(grown.found, grown.own):
        assert torch.equal(found, own[numbers])
