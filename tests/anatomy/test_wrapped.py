"""Wrappers that keep tensors of their own are refused, with the way out."""

import pytest
import torch
from torch import nn

import firefly


def test_flat_parameters_are_refused_by_name() -> None:
    class FullyShardedDataParallel(nn.Module):  # as torch names it; making one takes several processes
        def __init__(self, module: nn.Module) -> None:
            super().__init__()
            self.module = module

    model = nn.Sequential(FullyShardedDataParallel(nn.Linear(3, 3)), nn.Linear(3, 1))
    for one in (model, model[0]):
        with pytest.raises(firefly.FireflyError, match="fully_shard"):
            firefly.trace(one, torch.randn(2, 3))
