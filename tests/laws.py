"""What holds for every growth of every model, as checks that the test files share.

The laws are those of the design: with ε = 0 the over-grown network is the network (Sec. 2.2), the committed network is
the over-grown one with the rest switched off, and the optimiser holds each parameter once, with a state that fits it.
"""

import copy
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils._pytree import tree_leaves, tree_map
from torch.utils.flop_counter import FlopCounterMode

import firefly
from firefly.method import Method
from firefly.neighborhood.overgrown import Directions, OverGrown
from firefly.stages.budget import Budget
from firefly.stages.losses import mean_loss
from firefly.stages.selection import Ballot, Chosen, select
from zoo import ZOO, Entry

SMALL: list[Any] = [firefly.Split(), firefly.New(4)]


@cache
def trace_entry(name: str) -> firefly.Anatomy:
    """The anatomy of a zoo model; it depends on the shapes only, so that one trace serves every test."""
    return firefly.trace(ZOO[name].make(), ZOO[name].example())


def growing_entries() -> list[Entry]:
    """The zoo models in which something can grow."""
    return [entry for entry in ZOO.values() if entry.grows]


every_entry = pytest.mark.parametrize("entry", ZOO.values(), ids=list(ZOO))
every_growing = pytest.mark.parametrize("entry", growing_entries(), ids=lambda entry: entry.name)


def cast(value: Any, dtype: torch.dtype = torch.float64) -> Any:
    """The same with its floating-point tensors in this precision."""
    return tree_map(lambda x: x.to(dtype) if isinstance(x, Tensor) and x.is_floating_point() else x, value)


def train(model: nn.Module, entry: Entry, optimizer: torch.optim.Optimizer, steps: int) -> None:
    batches = entry.batches()
    for step in range(steps):
        optimizer.zero_grad()
        entry.loss(model, batches[step % len(batches)]).backward()
        optimizer.step()
    optimizer.zero_grad()


def make_trained(entry: Entry, steps: int = 8, lr: float = 0.01) -> tuple[Any, torch.optim.Optimizer]:
    model = entry.make()
    optimizer = torch.optim.Adam([p for p in model.parameters() if p.requires_grad], lr=lr)
    train(model, entry, optimizer, steps)
    return model, optimizer


def grow(model: nn.Module, entry: Entry, **options: Any) -> firefly.Growth:
    """A quick growth of a zoo model; any argument of `firefly.grow` may be given instead."""
    usual = {"neighborhood": SMALL, "steps": 5, "budget": firefly.Neurons(fraction=0.3)}
    given: dict[str, Any] = {"example": entry.example(), **usual, **options}
    if "anatomy" not in given:
        given["anatomy"] = trace_entry(entry.name)
    return firefly.grow(model, given.pop("loss", entry.loss), given.pop("batches", entry.batches()), **given)


@torch.no_grad()
def run(model: nn.Module, example: Any, training: bool = False) -> list[Tensor]:
    """The tensors that the model returns in this mode; its modes stay as they are."""
    modes = [(module, module.training) for module in model.modules()]
    model.train(training)
    try:
        found = model(**example) if isinstance(example, Mapping) else model(*example)
        return [leaf.clone() for leaf in tree_leaves(found) if isinstance(leaf, Tensor)]
    finally:
        for module, mode in modes:
            module.training = mode


def assert_close(found: list[Tensor], expected: list[Tensor], tolerance: float) -> None:
    """Equal up to a share of the largest entry."""
    assert len(found) == len(expected)
    for a, b in zip(found, expected):
        assert a.shape == b.shape
        if a.numel() and a.is_floating_point():
            assert (a - b).abs().max() <= tolerance * max(1.0, b.abs().max().item())


# ---- a growth with random directions and a random choice -------------------------------------------------------------


@dataclass
class Blind:
    """A growth method for tests: δ and the gains are random, so that every candidate is as likely as any other."""

    seed: int = 0
    over: Any = None
    chosen: Any = None
    growth: Any = None
    method: Method = field(init=False)

    def __post_init__(self) -> None:
        self.generator = torch.Generator().manual_seed(self.seed)
        self.method = Method("blind", self.descend, self.score, self.select, trust=False)

    @torch.no_grad()
    def descend(self, over: OverGrown, *_: Any) -> Directions:
        self.over = over
        drawn = {n: torch.randn(d.shape, generator=self.generator).to(d) for n, d in over.delta.items()}
        return Directions(drawn, over.epsilon)

    def score(self, over: OverGrown, *_: Any) -> dict[str, Tensor]:
        gains = {n: torch.rand(len(e), generator=self.generator) - 0.3 for n, e in over.epsilon.items()}
        return {n: gain * (over.epsilon[n].cpu() > 0) for n, gain in gains.items()}

    def select(self, ballot: Ballot) -> Chosen:
        self.chosen = select(ballot)
        return self.chosen

    def picked(self, kind: str, width: str) -> Tensor:
        """The numbers of the chosen of one kind."""
        return self.over.slots[width].sort(self.chosen.slots[width])[kind]

    def rest_off(self) -> dict[str, Tensor]:
        """ε with everything at zero but the chosen."""
        out = {}
        for name, epsilon in self.over.epsilon.items():
            out[name] = torch.zeros_like(epsilon)
            for i in self.chosen.slots.get(name, ()):
                out[name][int(i)] = epsilon[int(i)] * self.growth.shortened
        return out


def grow_blindly(model: nn.Module, entry: Entry, **options: Any) -> Blind:
    """A growth of a zoo model in random directions, of random candidates."""
    blind = Blind(options.get("seed", 0))
    given: dict[str, Any] = {"budget": firefly.Neurons(fraction=0.4), "batches": entry.batches()[:1]} | options
    blind.growth = grow(model, entry, method=blind.method, **given)
    return blind


def assert_epsilon_zero_preserves(
    over: OverGrown, example: Any, expected: list[Tensor], tolerance: float, training: bool = False
) -> None:
    """f_{0,δ} = f, whatever δ is."""
    with torch.no_grad():
        for k, delta in enumerate(over.delta.values()):
            delta.copy_(torch.randn(delta.shape, generator=torch.Generator().manual_seed(k)))
    with over.attached({name: torch.zeros_like(epsilon) for name, epsilon in over.epsilon.items()}):
        assert_close(run(over.model, example, training), expected, tolerance)


def assert_grown_is_overgrown(model: nn.Module, blind: Blind, example: Any, tolerance: float) -> None:
    """The committed network computes what the over-grown one does with the rest switched off."""
    grown = run(model, example)
    with blind.over.attached(blind.rest_off()):
        assert_close(run(model, example), grown, tolerance)


def make_ballot(anatomy: firefly.Anatomy, gains: Mapping[str, Tensor], budget: Budget) -> Ballot:
    """Candidates of these gains, all of which stand and bring one neuron each."""
    standing = {name: torch.ones(len(gain), dtype=torch.bool) for name, gain in gains.items()}
    ones = {name: torch.ones(len(gain), dtype=torch.long) for name, gain in gains.items()}
    return Ballot(anatomy, budget, gains, gains, standing, ones)


def overgrown_loss(over: OverGrown, loss: Any, batches: list[Any], epsilon: Any = None) -> float:
    """L(f_{ε,δ}) on these batches."""
    with over.attached(epsilon):
        return mean_loss(loss, over.model, batches)


# ---- the model, its tensors and its optimiser ------------------------------------------------------------------------


def sizes_of(module: nn.Module) -> dict[str, Any]:
    return {name: value for name, value in vars(module).items() if type(value) in (int, float, bool, str)}


def snapshot(model: nn.Module, optimizer: torch.optim.Optimizer | None = None) -> dict[str, Any]:
    """All that a failed growth must leave as it was: the very tensors, their values, flags, gradients and states."""
    tensors = [*model.named_parameters(remove_duplicate=False), *model.named_buffers(remove_duplicate=False)]
    return {
        "tensors": {name: (tensor, tensor.detach().clone(), tensor.requires_grad) for name, tensor in tensors},
        "gradients": {n: (p.grad, None if p.grad is None else p.grad.clone()) for n, p in model.named_parameters()},
        "attributes": {path: sizes_of(module) for path, module in model.named_modules()},
        "members": [list(group["params"]) for group in optimizer.param_groups] if optimizer else [],
        "states": {id(p): s for p, s in optimizer.state.items()} if optimizer else {},
        "optimizer": copy.deepcopy(optimizer.state_dict()) if optimizer else {},
        "random": torch.get_rng_state(),
    }


def assert_untouched(before: dict[str, Any], after: dict[str, Any]) -> None:
    assert before.keys() == after.keys()
    assert before["tensors"].keys() == after["tensors"].keys()
    for name, (tensor, value, flag) in before["tensors"].items():
        other, now, other_flag = after["tensors"][name]
        assert tensor is other and equal_bits(value, now) and flag == other_flag, name
    for name, (grad, value) in before["gradients"].items():
        assert after["gradients"][name][0] is grad, name
        assert grad is None or equal_bits(value, after["gradients"][name][1]), name
    assert before["attributes"] == after["attributes"]
    for old, new in zip(before["members"], after["members"], strict=True):
        assert len(old) == len(new) and all(a is b for a, b in zip(old, new))
    assert before["states"].keys() == after["states"].keys()
    assert all(after["states"][key] is state for key, state in before["states"].items())
    assert equal_trees(before["optimizer"], after["optimizer"])
    assert torch.equal(before["random"], after["random"])


def equal_bits(a: Tensor, b: Tensor) -> bool:
    return a.dtype == b.dtype and torch.equal(a.nan_to_num(123.0), b.nan_to_num(123.0))


def equal_trees(a: Any, b: Any) -> bool:
    if isinstance(a, Tensor):
        return isinstance(b, Tensor) and equal_bits(a, b)
    if isinstance(a, Mapping):
        return isinstance(b, Mapping) and a.keys() == b.keys() and all(equal_trees(a[key], b[key]) for key in a)
    if isinstance(a, (list, tuple)):
        return len(a) == len(b) and all(map(equal_trees, a, b))
    return bool(a == b)


def assert_optimizer_fits(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    """Each trainable parameter of the model is in the optimiser once, and its state has its shape."""
    members = [id(p) for group in optimizer.param_groups for p in group["params"]]
    assert len(set(members)) == len(members)
    assert set(members) == {id(p) for p in model.parameters() if p.requires_grad}
    assert {id(p) for p in optimizer.state} <= set(members)
    for parameter, state in optimizer.state.items():
        for key, value in state.items():
            if isinstance(value, Tensor) and value.ndim:
                assert value.shape == parameter.shape and value.isfinite().all(), key


def ties(model: nn.Module) -> set[frozenset[str]]:
    """Which names share one tensor."""
    names: dict[int, set[str]] = {}
    for name, parameter in model.named_parameters(remove_duplicate=False):
        names.setdefault(id(parameter), set()).add(name)
    return {frozenset(group) for group in names.values() if len(group) > 1}


def in_double(entry: Entry) -> Entry:
    """The same entry with a model, an example and batches in double precision."""
    return replace(
        entry,
        make=lambda: entry.make().double(),
        example=lambda: cast(entry.example()),
        batches=lambda: cast(entry.batches()),
    )


@torch.no_grad()
def loss_on(model: nn.Module, entry: Entry, count: int | None = None) -> float:
    """The mean loss on (so many of) the entry's batches, in the model's own mode, dropout off, buffers unchanged."""
    model = copy.deepcopy(model)
    for module in model.modules():
        if isinstance(module, nn.modules.dropout._DropoutNd):
            module.training = False
    values = [entry.loss(model, batch).item() for batch in entry.batches()[:count]]
    return sum(values) / len(values)


def count_flops(entry: Entry) -> int:
    """Floating-point operations of one example's forward pass, as torch counts them."""
    model, example = entry.make(), entry.example()
    with sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter:
        model(*example)  # in train mode, since torch counts nothing in the fast path of its transformer layers
    return counter.get_total_flops() // len(example[0])
