"""What each step of `fit` is made of: its learning rate, its decay, its images and its random numbers."""

import math
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.optim.optimizer import register_optimizer_step_pre_hook

from firefly.training import fit

COUNT, BATCH, EPOCHS = 24, 8, 3
STEPS = COUNT // BATCH


@pytest.fixture
def groups() -> Iterator[list[dict[str, Any]]]:
    """The options of the optimiser before each step, one after the other."""
    found: list[dict[str, Any]] = []

    def watch(optimizer: torch.optim.Optimizer, *_: Any) -> None:
        found.extend(
            {key: value for key, value in group.items() if key != "params"} for group in optimizer.param_groups
        )

    handle = register_optimizer_step_pre_hook(watch)
    yield found
    handle.remove()


def make_data() -> tuple[Tensor, Tensor]:
    """Inputs that are known by their first entry, 0 to 23."""
    inputs = torch.randn(COUNT, 4, generator=torch.Generator().manual_seed(0))
    inputs[:, 0] = torch.arange(COUNT)
    return inputs, torch.arange(COUNT) % 2


def train(**how: Any) -> nn.Module:
    torch.manual_seed(0)
    model = nn.Linear(4, 2)
    fit(model, make_data(), EPOCHS, **({"batch": BATCH, "device": "cpu", "lr": 0.01, "progress": False} | how))
    return model


def test_the_learning_rate_falls_with_every_step(groups: list[dict[str, Any]]) -> None:
    train(lr=0.01)
    done = [step / (EPOCHS * STEPS) for step in range(EPOCHS * STEPS)]
    assert [group["lr"] for group in groups] == pytest.approx([0.005 * (1 + math.cos(math.pi * t)) for t in done])


def test_a_schedule_is_asked_at_every_step(groups: list[dict[str, Any]]) -> None:
    train(lr=0.01, schedule=lambda time: 1 + time)
    assert [group["lr"] for group in groups] == pytest.approx([0.01 * (1 + k / STEPS) for k in range(EPOCHS * STEPS)])


def test_every_step_decays_and_has_momentum(groups: list[dict[str, Any]]) -> None:
    train(weight_decay=0.25, momentum=0.5)
    assert len(groups) == EPOCHS * STEPS
    for group in groups:
        assert (group["weight_decay"], group["momentum"], group["nesterov"]) == (0.25, 0.5, True)


def watch_steps(**how: Any) -> tuple[list[list[int]], list[float]]:
    """Per step, the inputs and a number drawn from torch's generator, as dropout would."""
    inputs: list[list[int]] = []
    numbers: list[float] = []

    def loss(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
        inputs.append(batch[0][:, 0].int().tolist())
        numbers.append(torch.rand(()).item())
        return nn.functional.cross_entropy(model(batch[0]), batch[1])

    train(loss=loss, **how)
    return inputs, numbers


def test_every_epoch_shows_every_input_once_in_another_order() -> None:
    inputs, _ = watch_steps()
    numbers = [number for step in inputs for number in step]
    epochs = [numbers[first : first + COUNT] for first in range(0, len(numbers), COUNT)]
    assert len(epochs) == EPOCHS and all(sorted(epoch) == list(range(COUNT)) for epoch in epochs)
    assert len({tuple(epoch) for epoch in epochs}) == EPOCHS


def test_every_step_of_every_epoch_has_random_numbers_of_its_own() -> None:
    _, numbers = watch_steps(seed=1)
    assert len(set(numbers)) == EPOCHS * STEPS
    assert numbers == watch_steps(seed=1)[1]
    assert not set(numbers) & set(watch_steps(seed=2)[1])
