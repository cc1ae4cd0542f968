"""A model that `fully_shard` has spread over two ranks grows as a whole one does, and stays as sharded as it was."""

from __future__ import annotations

import functools
import json
import re
from pathlib import Path
from typing import Any

import pytest
import rank_nets as nets
import torch
from crew import run_ranks
from torch import nn
from torch.nn.parallel import DistributedDataParallel as Wrapper

import firefly
from firefly.surgery.shards import whole
from firefly.training import fit

CLOSE = {"rtol": 1e-9, "atol": 1e-9}  # as in test_growth_on_ranks.py
EXAMPLE = torch.zeros(2, 6, dtype=torch.float64)


def shard(model: nn.Module) -> nn.Module:
    from torch.distributed.fsdp import fully_shard

    fully_shard(model[0], reshard_after_forward=False)
    fully_shard([model[4], model[7]])
    fully_shard(model).set_modules_to_forward_prefetch([model[0]])
    return model


def train(model: nn.Module, optimizer: Any, batches: Any) -> None:
    model.eval()  # without dropout, and the norms as they are
    for batch in batches:
        optimizer.zero_grad()
        nets.loss(model, batch).backward()
        optimizer.step()
    model.train()


def wait(model: nn.Module, batch: Any) -> None:
    """Gradients that come on top of those that there are, and that no rank shares yet."""
    sync: Any = getattr(model, "set_requires_gradient_sync", lambda shared: None)
    sync(False)
    nets.loss(model.eval(), batch).backward()
    model.train()
    sync(True)


def gather(value: Any) -> Any:
    return value.full_tensor() if hasattr(value, "full_tensor") else value


def run(model: nn.Module, batches: Any, held: Any) -> tuple[Any, ...]:
    """Train, preview, train, grow, train, grow again, train; all whole at the end."""
    optimizer = torch.optim.AdamW(model.parameters(), 0.01)
    grow = functools.partial(
        firefly.grow, model, nets.loss, batches, held=held, example=EXAMPLE, steps=10, evaluate_on=len(held)
    )
    train(model, optimizer, batches[:2])
    before = list(model.parameters())
    notes = list(grow(preview=True).notes)
    same = all(a is b for a, b in zip(before, model.parameters()))
    for seed in (0, 1):
        train(model, optimizer, batches[2:4])
        wait(model, batches[0])
        notes += grow(optimizer=optimizer, seed=seed, budget=firefly.Neurons(4)).notes
    waiting = [gather(p.grad) for p in model.parameters()]
    train(model, optimizer, batches[4:])
    values = {name: gather(value.detach()) for name, value in model.state_dict().items()}
    state: list[Any] = [waiting]
    state += [{key: gather(one) for key, one in optimizer.state[p].items()} for p in model.parameters()]
    return values, state, same, [note for note in notes if "sharded" in note], optimizer


def run_sharded(rank: int) -> Any:
    parts = nets.make_parts(9, 2)
    model = shard(nets.make_normed())
    batches = [batch[rank] for batch in parts]
    values, state, same, notes, optimizer = run(model, batches[:6], batches[6:])
    local = [(tuple(p.shape), tuple(p.to_local().shape)) for p in model.parameters()]
    local += [
        (tuple(v.shape), tuple(v.to_local().shape)) for s in optimizer.state.values() for v in s.values() if v.ndim
    ]
    kept = [module._get_fsdp_state() for module in (model[0], model[4], model[7])]
    prefetched = model._get_fsdp_state()._states_to_forward_prefetch == [kept[0]]
    names = type(model).__name__, type(model[1]).__name__
    settings = kept[0]._auto_reshard_after_forward, kept[1] is kept[2], prefetched, *names
    hooks = [len(module._forward_pre_hooks) for module in model]
    return values, state, same, notes, local, settings, hooks


def test_a_sharded_model_grows_as_a_whole_one() -> None:
    parts = nets.make_parts(9, 2)
    values, state, *_ = run(nets.make_normed(), parts[:6], [part for batch in parts[6:] for part in batch])
    for other in run_ranks(2, run_sharded):
        assert len(other) == 7, other
        torch.testing.assert_close(other[0], values, **CLOSE)
        torch.testing.assert_close(other[1], state, **CLOSE)
        assert other[2], "a preview leaves the very parameters where they were"
        assert len(other[3]) == 3 and "MB on this rank" in other[3][0]
        assert all(part[0] <= (size[0] + 1) // 2 for size, part in other[4])  # a rank holds its half, state included
        assert other[5] == (False, True, True, "FSDPSequential", "BatchNorm1d")
        assert other[6] == [1, 0, 0, 0, 1, 0, 0, 1]


class Scored(nn.Sequential):
    def score(self, batch: Any) -> torch.Tensor:
        return nets.loss(self, batch)


def grow_by_method(rank: int) -> Any:
    from torch.distributed.fsdp import fully_shard, register_fsdp_forward_method

    model = fully_shard(Scored(*nets.make_mlp()))
    register_fsdp_forward_method(model, "score")
    batches = [batch[rank] for batch in nets.make_parts(4, 2)]
    growth = firefly.grow(model, score, batches, example=EXAMPLE, steps=5)
    model.score(batches[0]).backward()
    return growth.neurons, [p.grad.shape == p.shape for p in model.parameters()]


def score(model: Any, batch: Any) -> torch.Tensor:
    return model.score(batch)


def test_methods_that_gather_as_a_forward_does_may_be_the_loss() -> None:
    for neurons, follow in run_ranks(2, grow_by_method):
        assert neurons > 0 and all(follow)


def fail(rank: int) -> Any:
    from torch.distributed.fsdp import CPUOffloadPolicy, fully_shard

    model, batch = shard(nets.make_normed()), nets.make_parts(1, 2)[0][rank]
    optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
    train(model, optimizer, [batch])
    before = [*model.parameters(), *(s["momentum_buffer"] for s in optimizer.state.values())]
    told = []
    with pytest.raises(KeyError, match="mine"), whole(model, optimizer):
        assert type(model) is nn.Sequential and not hasattr(model[0].weight, "full_tensor")
        assert optimizer.param_groups[0]["params"][0] is model[0].weight
        raise KeyError("mine")
    after = [*model.parameters(), *(s["momentum_buffer"] for s in optimizer.state.values())]
    told.append(len(before) == len(after) and all(a is b for a, b in zip(before, after)))
    train(model, optimizer, [batch])
    told.append(str(firefly.trace(model, EXAMPLE)) == str(firefly.trace(nets.make_normed(), EXAMPLE)))
    offloaded = fully_shard(nets.make_mlp(), offload_policy=CPUOffloadPolicy(pin_memory=False))
    with pytest.raises(firefly.FireflyError, match="offloaded"):
        firefly.trace(offloaded, EXAMPLE)
    return told


def test_what_fails_leaves_the_shards_as_they_were() -> None:
    assert run_ranks(2, fail) == [[True, True]] * 2


def save_and_load(rank: int, folder: str) -> Any:
    model, small = shard(nets.make_normed()), shard(nets.make_normed())
    optimizer, other = (torch.optim.AdamW(one.parameters(), 0.01) for one in (model, small))
    batches = [batch[rank] for batch in nets.make_parts(4, 2)]
    train(model, optimizer, batches)
    firefly.grow(model, nets.loss, batches, example=EXAMPLE, steps=5, optimizer=optimizer)
    firefly.save(folder, model, optimizer=optimizer)
    torch.distributed.barrier()
    firefly.load(folder, small, optimizer=other)
    for one, its in ((model, optimizer), (small, other)):
        train(one, its, batches)
    return [{name: gather(value) for name, value in one.state_dict().items()} for one in (model, small)]


def test_a_checkpoint_of_a_sharded_model_is_whole_and_loads_anywhere(tmp_path: Path) -> None:
    first, second = run_ranks(2, save_and_load, str(tmp_path / "run"))
    torch.testing.assert_close(first[0], first[1], rtol=0, atol=0)  # trained on, the loaded one is the same
    torch.testing.assert_close(first[0], second[0], rtol=0, atol=0)
    alone = nets.make_normed()
    optimizer = torch.optim.AdamW(alone.parameters(), 0.01)
    firefly.load(tmp_path / "run", alone, optimizer=optimizer)
    train(alone, optimizer, nets.make_parts(4, 2))
    torch.testing.assert_close(dict(alone.state_dict()), first[0], **CLOSE)


def rebuild_spread(rank: int) -> Any:
    model, batch = shard(nets.make_normed()), nets.make_parts(4, 2)[0][rank]
    firefly.grow(model, nets.loss, [batch], example=EXAMPLE, steps=2, budget=firefly.Neurons(3))
    told, found = json.loads(json.dumps(firefly.architecture(model))), []
    for one in (shard(nets.make_normed()), Wrapper(nets.make_normed())):
        assert firefly.rebuild(one, told) is one
        nets.loss(one, batch).backward()
        again = firefly.architecture(one)
        found.append(all(again[key] == told[key] for key in ("shapes", "attributes", "history", "parameters")))
        found.append(all(p.grad is not None and p.grad.shape == p.shape for p in one.parameters()))
    plain = firefly.rebuild(nets.make_normed(), told)
    return [*found, [p.shape for p in plain.parameters()] == [p.shape for p in model.parameters()]]


def test_the_architecture_of_a_spread_model_is_that_of_any() -> None:
    assert run_ranks(2, rebuild_spread) == [[True] * 5] * 2


def wake(batches: Any, held: Any, order: str) -> Any:
    """A growth of dormant layers, whose parameters are empty, and a step with what has woken."""
    from torch.distributed.fsdp import fully_shard

    model = nets.make_mlp()
    for word in order.split():
        if word == "deepen":
            firefly.deepen(model, EXAMPLE)
        else:
            fully_shard(model)
    optimizer = torch.optim.Adam(model.parameters(), 0.01)
    train(model, optimizer, batches[:1])
    how: Any = {"neighborhood": [firefly.New(6)], "budget": firefly.Neurons(8), "evaluate_on": len(held), "steps": 5}
    growth = firefly.grow(model, nets.loss, batches, held=held, example=EXAMPLE, optimizer=optimizer, **how)
    train(model, optimizer, batches)
    return growth.woken, {name: gather(value.detach()) for name, value in model.state_dict().items()}


def wake_sharded(rank: int) -> Any:
    batches = [batch[rank] for batch in nets.make_parts(6, 2)]
    return [wake(batches[:4], batches[4:], order) for order in ("deepen shard", "shard deepen")]


def test_dormant_layers_of_a_sharded_model_wake() -> None:
    parts = nets.make_parts(6, 2)
    woken, tensors = wake(parts[:4], [part for batch in parts[4:] for part in batch], "deepen")
    assert woken
    for names, values in [one for rank in run_ranks(2, wake_sharded) for one in rank]:
        assert names == woken
        torch.testing.assert_close(values, tensors, **CLOSE)


# ---- what is spread otherwise, or not grown by all -----------------------------------------------------------------


def go_wrong(rank: int) -> list[str]:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

    batches = [batch[rank] for batch in nets.make_parts(2, 2)]
    sharded, plan = fully_shard(nets.make_mlp()), {"0": ColwiseParallel(), "2": RowwiseParallel()}
    parallel = parallelize_module(nets.make_mlp(), init_device_mesh("cpu", (2,)), plan)
    told = []
    with pytest.raises(firefly.FireflyError) as wrong, firefly.alone():
        firefly.grow(sharded, nets.loss, batches, example=EXAMPLE)
    told.append(str(wrong.value))
    with pytest.raises(firefly.FireflyError) as wrong:
        firefly.grow(parallel, nets.loss, batches, example=EXAMPLE)
    told.append(str(wrong.value))
    with pytest.raises(firefly.FireflyError) as wrong:
        fit(sharded, (torch.randn(8, 6).double(), torch.arange(8) % 3), 1, batch=4, progress=False, device="cpu")
    return [*told, str(wrong.value)]


def test_a_model_that_is_spread_otherwise_is_refused_by_name() -> None:
    for told in run_ranks(2, go_wrong):
        assert "sharded over 2 ranks, and 1 work together here" in told[0], told
        assert re.match(r"0\.weight is spread as \(Shard\(dim=0\),\), not by fully_shard \(tensor parallelism", told[1])
        assert "0.weight is sharded over the ranks, and this loop shares batches" in told[2]
