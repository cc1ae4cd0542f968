"""DistributedDataParallel as people use it: hooks that remember, dormant layers, buffers of any type, other groups."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import rank_nets as nets
import torch
import torch.distributed as dist
from crew import run_ranks
from torch import nn
from torch.nn.parallel import DistributedDataParallel as Wrapper

import firefly
from firefly.commands import loaders

CLOSE = {"rtol": 1e-9, "atol": 1e-9}  # as in test_growth_on_ranks.py
EXAMPLE = torch.zeros(2, 6, dtype=torch.float64)


def train(model: nn.Module, optimizer: Any, batches: Any) -> None:
    for batch in batches:
        optimizer.zero_grad()
        nets.loss(model, batch).backward()
        optimizer.step()


def grow(model: nn.Module, batches: Any, optimizer: Any = None, **how: Any) -> firefly.growth.Growth:
    how = {"budget": firefly.Neurons(4), "steps": 5, **how}
    return firefly.grow(model, nets.loss, batches, example=EXAMPLE, optimizer=optimizer, **how)


# ---- hooks that remember ---------------------------------------------------------------------------------------------


def compress(rank: int) -> Any:
    from torch.distributed.algorithms.ddp_comm_hooks.powerSGD_hook import PowerSGDState, powerSGD_hook

    batches = [batch[rank] for batch in nets.make_parts(6, 2)]
    model = Wrapper(nets.make_mlp())
    state = PowerSGDState(None, start_powerSGD_iter=2, min_compression_rate=0.5)
    model.register_comm_hook(state, powerSGD_hook)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    train(model, optimizer, batches)
    remembered = sum(one.numel() for one in state.error_dict.values())
    grow(model, batches, optimizer)
    train(model, optimizer, batches)
    return remembered, sum(one.numel() for one in state.error_dict.values()), model.module.state_dict()


def test_a_compressing_hook_begins_anew_with_the_grown_buckets() -> None:
    first, second = run_ranks(2, compress)
    assert len(first) == 3, first
    assert first[0] < first[1] == sum(tensor.numel() for tensor in first[2].values())
    torch.testing.assert_close(first[2], second[2], rtol=0, atol=0)


# ---- dormant layers --------------------------------------------------------------------------------------------------


def wake(batches: Any, held: Any, order: str) -> Any:
    model = given = nets.make_mlp()
    for word in order.split():
        if word == "wrap":
            given = Wrapper(model, gradient_as_bucket_view=True)
        else:
            assert firefly.deepen(given, EXAMPLE)
    optimizer = torch.optim.Adam(model.parameters(), 0.01)
    train(given, optimizer, batches)
    kinds, budget = [firefly.New(6)], firefly.Neurons(8)
    growth = grow(given, batches, optimizer, neighborhood=kinds, budget=budget, held=held, evaluate_on=len(held))
    train(given, optimizer, batches)
    return growth.woken, model.state_dict()


def wake_wrapped(rank: int) -> Any:
    batches = [batch[rank] for batch in nets.make_parts(6, 2)]
    return [wake(batches[:4], batches[4:], order) for order in ("deepen wrap", "wrap deepen")]


def test_dormant_layers_train_and_wake_in_a_wrapper() -> None:
    parts = nets.make_parts(6, 2)
    woken, tensors = wake(parts[:4], [part for batch in parts[4:] for part in batch], "deepen")
    assert woken
    for names, values in [one for rank in run_ranks(2, wake_wrapped) for one in rank]:
        assert names == woken
        torch.testing.assert_close(values, tensors, **CLOSE)


# ---- buffers, metrics, checkpoints, and what is refused --------------------------------------------------------------


class Masked(nn.Module):
    """With buffers of types that one backend or another cannot send."""

    def __init__(self, rank: int) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.last = nn.Linear(6, 8).double(), nn.Linear(8, 3).double()
        for dtype in (torch.bool, torch.int16, torch.complex64, torch.float8_e4m3fn):
            self.register_buffer(str(dtype)[6:], torch.tensor([1, rank]).to(dtype))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(torch.relu(self.first(x)))


def refuse(model: nn.Module, batches: Any) -> str:
    before = [p.clone() for p in model.parameters()]
    with pytest.raises(firefly.FireflyError) as wrong:
        grow(model, batches)
    assert all(map(torch.equal, before, model.parameters()))
    return str(wrong.value)


def do_all(rank: int, folder: str) -> Any:
    batches = [batch[rank] for batch in nets.make_parts(6, 2)]
    model = Masked(rank)
    before = [buffer.to(torch.complex64) for buffer in model.buffers()]
    grow(model, batches, preview=True)
    kept = all(map(torch.equal, before, (buffer.to(torch.complex64) for buffer in model.buffers())))
    grow(model, batches)
    buffers = [buffer.to(torch.complex64).tolist() for buffer in model.buffers()]
    grower = firefly.Firefly(nets.make_mlp(), EXAMPLE, schedule=firefly.Plateau(patience=1))
    due = [grower.due(epoch, 1.0 if rank == 0 else None) for epoch in range(2)]  # who measures, knows
    firefly.save(f"{folder}/{rank}", Wrapper(nets.make_mlp()))
    inner = nn.Sequential(Wrapper(nets.make_mlp()), nn.Linear(3, 3).double())
    alone = [dist.new_group([one]) for one in range(2)][rank]
    late = nets.make_mlp()
    delayed = Wrapper(
        late, delay_all_reduce_named_params=[("0.bias", late[0].bias)], param_to_hook_all_reduce=late[0].weight
    )
    wrong = [inner, Wrapper(nets.make_mlp(), process_group=alone), delayed]
    return kept, buffers, due, [refuse(model, batches) for model in wrong]


def test_what_people_do_on_ranks(tmp_path: Path) -> None:
    for kept, buffers, due, told in run_ranks(2, do_all, str(tmp_path)):
        assert kept, "a preview leaves the buffers of each rank"
        assert buffers == [[1, 0]] * 4  # those of rank 0
        assert due == [False, True]
        assert "0 is a DistributedDataParallel inside the model" in told[0]
        assert "averages over 1 of 2 ranks" in told[1] and "delay_all_reduce_named_params" in told[2]
    assert [path.name for path in tmp_path.iterdir()] == ["0"]  # only the first rank writes


def test_a_loader_with_a_sampler_of_its_own_for_each_rank_is_not_divided_again(monkeypatch: pytest.MonkeyPatch) -> None:
    from torch.utils.data import BatchSampler, DataLoader, DistributedSampler, TensorDataset

    monkeypatch.setattr(loaders, "count_ranks", lambda: 2)
    data = TensorDataset(torch.zeros(12, 1))
    own = DistributedSampler(data, num_replicas=2, rank=1)
    for loader in (DataLoader(data, 2, sampler=own), DataLoader(data, batch_sampler=BatchSampler(own, 2, False))):
        assert loaders.take_part(loader) is loader
    assert len(loaders.take_part(DataLoader(data, 2))) == 3


def test_a_trace_asks_no_other_rank_for_its_statistics(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[bool] = []
    monkeypatch.setattr(nn.SyncBatchNorm, "forward", lambda self, x: asked.append(True))
    model = nn.SyncBatchNorm.convert_sync_batchnorm(nets.make_normed())
    found = firefly.trace(model, EXAMPLE)  # in train mode
    assert str(found) == str(firefly.trace(nets.make_normed(), EXAMPLE)) and not asked
    assert type(model[1]) is nn.SyncBatchNorm
