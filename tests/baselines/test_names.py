"""Every method goes by its name alone: it knows which kinds of growth it is for."""

import pytest
import torch
from torch import nn

import firefly
from firefly.method import METHODS


@pytest.mark.parametrize("name", sorted(METHODS))
@pytest.mark.parametrize("way", ["grow", "grower"])
def test_a_name_is_enough(name: str, way: str) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 6), nn.ReLU(), nn.Linear(6, 6), nn.ReLU(), nn.Linear(6, 3))
    batches = [(torch.randn(32, 8), torch.randint(0, 3, (32,))) for _ in range(4)]
    how = {"example": batches[0][0], "method": name, "budget": firefly.Neurons(2), "steps": 5}
    if way == "grow":
        growth = firefly.grow(model, loss, batches, **how)
    else:
        growth = firefly.Firefly(model, **how).grow(loss, batches)
    assert growth.neurons == 2
    only = {"gradmax": {"new"}, "net2net": {"split"}, "splitting": {"split"}, "fast-splitting": {"split"}}
    assert {kind for added in growth.added.values() for kind in added} == only.get(name, {"split", "new"})


def loss(model: nn.Module, batch: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
    return nn.functional.cross_entropy(model(batch[0]), batch[1])
