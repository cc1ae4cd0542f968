"""The words of a command: budgets and numbers as people write them, losses and optimisers by name."""

import pytest
import torch
from torch import nn
from torch.nn import functional

from firefly import Flops, Multiples, Neurons, Parameters
from firefly.commands import arguments
from firefly.errors import FireflyError
from firefly.stages.budget import Both

CPU = torch.device("cpu")


@pytest.mark.parametrize(
    ("text", "budget"),
    [
        ("parameters=200k", Parameters(200_000)),
        ("parameters=200_000", Parameters(200_000)),
        ("parameters=1.5M", Parameters(1_500_000)),
        ("flops=2e6", Flops(2_000_000)),
        ("flops=1G", Flops(10**9)),
        ("neurons=64", Neurons(64)),
        ("neurons=30%", Neurons(fraction=0.3)),
        ("parameters=0.5%", Parameters(fraction=0.005)),
        ("parameters=200k,multiples=8", Both(Parameters(200_000), Multiples(8))),
        ("parameters=200k, multiples=8", Both(Parameters(200_000), Multiples(8))),
    ],
)
def test_a_budget_is_what_it_says(text: str, budget: object) -> None:
    assert arguments.read_budget(text) == budget


@pytest.mark.parametrize("text", ["", "k", "-3", "1e", "1e999", "nan", "inf", "²", "1,5", "0x10", "1 2", "9" * 99])
def test_what_is_no_number(text: str) -> None:
    assert arguments.read_number(text)[0] is None


def test_a_named_loss_is_that_of_torch() -> None:
    torch.manual_seed(0)
    model, inputs = nn.Linear(4, 3), torch.randn(5, 4)
    for name, targets in (
        ("cross_entropy", torch.tensor([0, 1, 2, 0, 1])),
        ("mse", torch.randn(5, 3)),
        ("bce", torch.rand(5, 3)),
        ("l1", torch.randn(5, 3)),
    ):
        expected = arguments.LOSSES[name](model(inputs), targets)
        assert torch.equal(arguments.read_loss(name, CPU)(model, (inputs, targets)), expected)
    assert torch.equal(
        arguments.LOSSES["cross_entropy"](model(inputs), torch.zeros(5).long()),
        functional.cross_entropy(model(inputs), torch.zeros(5).long()),
    )


def test_a_model_of_several_inputs_and_one_with_a_loss_of_its_own() -> None:
    class Sum(nn.Module):
        def forward(self, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
            return a + b

    class Own(nn.Module):
        def forward(self, a: torch.Tensor, labels: torch.Tensor) -> dict[str, torch.Tensor]:
            return {"loss": (a - labels).square().mean()}

    a, b = torch.ones(3, 2), 2 * torch.ones(3, 2)
    assert arguments.read_loss("mse", CPU)(Sum(), (a, b, a)) == 4
    assert arguments.read_loss("own", CPU)(Own(), {"a": a, "labels": b}) == 1
    with pytest.raises(FireflyError, match="returned Tensor without a loss"):
        arguments.read_loss("own", CPU)(Sum(), (a, b))


def test_an_optimizer_has_its_usual_numbers_or_those_given() -> None:
    model = nn.Linear(2, 2)
    sgd = arguments.make_optimizer("sgd", model, lr=None, weight_decay=None)
    assert sgd.defaults["lr"] == 0.1 and sgd.defaults["nesterov"]
    adam = arguments.make_optimizer("Adam", model, lr=0.5, weight_decay=0.25)
    assert (adam.defaults["lr"], adam.defaults["weight_decay"]) == (0.5, 0.25)
    other = arguments.make_optimizer("torch.optim:RMSprop", model, lr=0.5, weight_decay=None)
    assert type(other).__name__ == "RMSprop" and other.defaults["lr"] == 0.5


def test_kinds_follow_the_method() -> None:
    names = {
        method: [kind.name for kind in arguments.choose_kinds(method, new)]
        for method, new in (("firefly", None), ("gradmax", 3), ("splitting", None), ("uniform", 0))
    }
    assert names == {"firefly": ["split", "new"], "gradmax": ["new"], "splitting": ["split"], "uniform": ["split"]}
