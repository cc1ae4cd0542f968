"""Gradient checkpointing: a forward that is run again in the backward pass is the one of the over-grown network."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import firefly
from laws import SMALL, grow
from zoo import ZOO


class Checkpointed(nn.Module):
    """Its middle is run again in the backward pass, as `use` says."""

    def __init__(self, use: dict[str, Any] | None) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.a, self.c, self.use = nn.Linear(8, 6), nn.Linear(8, 4), use
        self.b = nn.Sequential(nn.Linear(6, 10), nn.ReLU(), nn.Dropout(0.3), nn.Linear(10, 8))

    def forward(self, x: Tensor) -> Tensor:
        x = torch.relu(self.a(x))
        return self.c(self.b(x) if self.use is None else checkpoint(self.b, x, **self.use))


@pytest.mark.parametrize("method", ["firefly", "gradmax"])
def test_gradient_checkpointing_changes_nothing(method: str) -> None:
    entry, options = ZOO["mlp"], {"neighborhood": SMALL if method == "firefly" else [firefly.New(4)], "method": method}
    plain, saving = Checkpointed(None), Checkpointed({"use_reentrant": False})
    growths = [grow(one, entry, anatomy=None, **options) for one in (plain, saving)]
    assert growths[0].neurons > 0 and growths[0].chosen == growths[1].chosen
    assert all(torch.equal(a, b) for a, b in zip(plain.state_dict().values(), saving.state_dict().values()))


@pytest.mark.filterwarnings("ignore:None of the inputs have requires_grad")
def test_reentrant_checkpointing_is_refused_in_words() -> None:
    with pytest.raises(firefly.FireflyError, match="use_reentrant=False"):
        grow(Checkpointed({"use_reentrant": True}), ZOO["mlp"], anatomy=None)
