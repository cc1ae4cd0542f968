"""Tensors stand in a model for a while, and nothing that a forward notes on it meanwhile stays there."""

import copy
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import firefly
from firefly.surgery.quiet import undisturbed


class Notes(nn.Module):
    """Counts its calls, keeps its features for others to look at, and keeps a list."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(8, 6), nn.Linear(6, 4)
        self.calls, self.seen = 0, ["begun"]
        self.features: Any = None

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        self.latest = self.features = torch.relu(self.first(x))
        self.seen.append("more")
        out: Tensor = self.last(self.features)
        return out


def loss(model: nn.Module, batch: Tensor) -> Tensor:
    return model(batch).square().mean()


def test_nothing_that_a_forward_notes_stays() -> None:
    torch.manual_seed(0)
    model, x = Notes(), torch.randn(5, 8)
    model(x)
    features = model.features
    for act in (
        lambda: firefly.trace(model, x),
        lambda: firefly.grow(model, loss, [x], example=x, budget=firefly.Neurons(1), preview=True),
        lambda: firefly.grow(model, loss, [x], example=x, budget=firefly.Neurons(1), steps=3),
    ):
        act()
        assert model.calls == 1 and model.features is features and model.seen == ["begun", "more"]
    assert model.first.out_features == 7
    model = Notes()
    firefly.trace(model, x)
    assert model.calls == 0 and model.features is None and not hasattr(model, "latest")


def test_dropout_of_attention_is_off_however_it_is_named() -> None:
    x = torch.randn(2, 3, 4, 5)
    plain = F.scaled_dot_product_attention(x, x, x)
    with undisturbed(nn.Linear(2, 2).train(), 0):
        assert torch.allclose(F.scaled_dot_product_attention(x, x, x, dropout_p=0.5), plain)
        assert torch.allclose(F.scaled_dot_product_attention(x, x, x, None, 0.5), plain)
        assert torch.allclose(F.scaled_dot_product_attention(x, x, x, None, 0.5, False), plain)


@pytest.mark.parametrize("need_weights", [False, True])
def test_dropout_inside_an_attention_is_off(need_weights: bool) -> None:
    """Torch's own forward of it hides its dropout from whoever watches the functions that a model calls."""
    torch.manual_seed(0)
    attention, x = nn.MultiheadAttention(8, 2, dropout=0.5), torch.randn(3, 4, 8)
    with undisturbed(attention, 0):
        first, second = (attention(x, x, x, need_weights=need_weights)[0] for _ in range(2))
    assert torch.equal(first, second)


class Caches(nn.Module):
    """What it has once made for its hidden width it does not make again."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.last = nn.Linear(8, 6), nn.Linear(6, 5), nn.Linear(5, 4)
        self.cache: Any = None

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        if self.cache is None:
            self.cache = torch.ones(x.shape[-1])
        return self.last(torch.relu(self.second(x * self.cache)))


def test_a_width_of_a_cache_is_pinned_and_the_cache_stays_empty() -> None:
    model = Caches()
    anatomy = firefly.trace(model, torch.randn(5, 8))
    assert [width.name for width in anatomy.growable()] == ["second"] and model.cache is None


class Student(nn.Module):
    """A teacher follows its student in every training forward, parameter by parameter."""

    def __init__(self) -> None:
        super().__init__()
        self.student, self.last = nn.Sequential(nn.Linear(8, 6), nn.ReLU(), nn.Linear(6, 5)), nn.Linear(5, 4)
        self.teacher = copy.deepcopy(self.student).requires_grad_(False)

    def forward(self, x: Tensor) -> Tensor:
        if self.training:
            for own, theirs in zip(self.teacher.parameters(), self.student.parameters()):
                own.data = 0.9 * own.data + 0.1 * theirs.data
        return self.last(self.student(x) + self.teacher(x))


@pytest.mark.parametrize("training", [False, True])
def test_a_trace_moves_no_teacher_and_lets_no_student_outgrow_it(training: bool) -> None:
    model = Student().train(training)
    with torch.no_grad():
        model.student[0].weight.mul_(3)
    before = {name: parameter.clone() for name, parameter in model.named_parameters()}
    anatomy = firefly.trace(model, torch.randn(5, 8))
    assert all(torch.equal(parameter, before[name]) for name, parameter in model.named_parameters())
    assert not anatomy.growable() if training else anatomy["student.0"].pinned
