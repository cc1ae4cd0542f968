"""The dense form computes what the plain one does, with a fraction of the calls, and grows in the same way."""

from collections.abc import Sequence
from contextlib import ExitStack
from copy import deepcopy
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional
from torch.utils._python_dispatch import TorchDispatchMode

import firefly
from firefly.nas.growing import trace_plain
from firefly.nas.template import Template, list_operations
from firefly.surgery.residual import PROBE, awake, find_dormant

IMAGES = torch.randn(4, 1, 8, 8, dtype=torch.float64, generator=torch.Generator().manual_seed(0))


def make_pair(start: Sequence[int], nodes: int = 2) -> tuple[Template, Template]:
    torch.manual_seed(0)
    plain = Template((4, 4, 6, 6, 8), start, 4, nodes, 1).double()
    dense = deepcopy(plain)
    dense.dense = True
    return plain, dense


def close(one: Tensor | None, other: Tensor | None) -> bool:
    if one is None or other is None:
        return one is other
    return bool(torch.allclose(one.double(), other.double(), rtol=0, atol=1e-12))


@pytest.mark.parametrize("start", [(2, 3, 8, 9, 1), (0, 0, 0, 0, 0), (0, 3, 0, 8, 2)])
def test_it_computes_the_same(start: Sequence[int]) -> None:
    """Outputs, gradients and what the norms remember, in training and after it."""
    models = make_pair(start)
    with ExitStack() as stack:
        for model in models:  # some awake and some not, on one edge
            asleep = find_dormant(model)
            stack.enter_context(awake(model, {path: layer for path, layer in asleep.items() if "sep" in path}))
        answers = [model(IMAGES) for model in models]
        assert close(*answers)
        for answer in answers:
            answer.square().sum().backward()
        pairs = list(zip(models[0].parameters(), models[1].parameters()))
        assert sum(one.grad is not None for one, _ in pairs) > 50
        assert all(close(one.grad, other.grad) for one, other in pairs)
        assert all(close(one, other) for one, other in zip(models[0].buffers(), models[1].buffers()))
        assert close(*(model.eval()(IMAGES) for model in models))


class Count(TorchDispatchMode):
    """How often a convolution or a norm is called."""

    calls = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.calls += func.overloadpacket.__name__ in ("convolution", "native_batch_norm")
        return func(*args, **(kwargs or {}))


def test_it_takes_a_fraction_of_the_calls() -> None:
    plain, dense = make_pair((2,) * 5, nodes=3)
    counted = []
    for model in (plain, dense):
        with Count() as count, torch.no_grad():
            model(IMAGES)
        counted.append(count.calls)
    assert counted[1] < counted[0] / 3


def find_loss(model: torch.nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
    return functional.cross_entropy(model(batch[0]), batch[1])


@pytest.mark.parametrize("start", [2, 0])
def test_it_grows_in_the_same_way(start: int) -> None:
    batches = [(torch.roll(IMAGES, k, 3), (torch.arange(4) + k) % 4) for k in range(4)]
    growths, anatomy = [], trace_plain(make_pair((start,) * 5, nodes=1)[1], IMAGES[:2])
    for model in make_pair((start,) * 5, nodes=1):
        names = [path for path, place, _ in list_operations(model) if place.cell == 2]
        assert all(anatomy[name].pinned is None for name in names)
        growths.append(
            firefly.grow(
                model,
                find_loss,
                batches,
                example=IMAGES[:2],
                anatomy=anatomy,
                widths=names,
                neighborhood=[firefly.Split(1.0), firefly.New(PROBE, epsilon=0.03)],
                budget=firefly.Neurons(8),
                steps=3,
                evaluate_on=2,
            )
        )
    plain, dense = growths
    assert plain.widths == dense.widths and plain.added == dense.added
    for one, other in zip(
        (plain.loss_before, plain.loss_overgrown, plain.loss_after, plain.predicted),
        (dense.loss_before, dense.loss_overgrown, dense.loss_after, dense.predicted),
    ):
        assert one == pytest.approx(other, abs=1e-12)
