"""Several ranks, each with batches of its own, grow as one process with all the batches does; or all say what is wrong.

In float64: the sums of several ranks are rounded in another order than those of one process, by about 1e-16, and twenty
steps of Adam, which divides by the size of the gradient, may make 1e-12 of it. 1e-9 leaves room, and is far below what
any batch left out would change.
"""

from __future__ import annotations

import os
import re
import time
from datetime import timedelta
from typing import Any

import pytest
import rank_nets as nets
import torch
from crew import GONE, run_ranks
from torch import nn
from torch.nn.parallel import DistributedDataParallel as Wrapper

import firefly
from firefly.ranks import talk

CASES = [("mlp", "firefly"), ("normed", "firefly"), ("mlp", "gradmax"), ("mlp", "splitting"), ("mlp", "random")]
HELD, STEPS = 3, 20
CLOSE = {"rtol": 1e-9, "atol": 1e-9}
Found = tuple[dict[str, Any], dict[str, Any], list[Any]]


def grow(model: Any, optimizer: Any, batches: Any, held: Any, method: str = "firefly", **how: Any) -> dict[str, Any]:
    kinds = {"gradmax": [firefly.New(8)], "splitting": [firefly.Split()]}
    neighborhood = kinds.get(method, [firefly.Split(), firefly.New(8)])
    how |= {"example": torch.zeros(2, 6, dtype=torch.float64), "method": method, "neighborhood": neighborhood}
    told = firefly.grow(model, nets.loss, batches, held=held, optimizer=optimizer, steps=STEPS, **how).to_dict()
    return {key: value for key, value in told.items() if key != "seconds"}


def grow_case(net: str, method: str, batches: Any, held: Any, wrap: bool) -> Found:
    """Three steps of training, a growth, and a step with what has grown."""
    model = nets.MAKERS[net]()
    wrapped = Wrapper(model) if wrap else model
    optimizer = torch.optim.Adam(model.parameters(), 0.01)
    wrapped.eval()  # without dropout, and the norms as they are
    train(wrapped, optimizer, batches[:3])
    wrapped.train()
    growth = grow(wrapped, optimizer, batches, held, method, evaluate_on=len(held))
    wrapped.eval()
    train(wrapped, optimizer, batches[:1])
    state = [value for one in optimizer.state.values() for value in one.values()]
    return growth, model.state_dict(), [*state, *(p.grad for p in model.parameters())]


def train(model: nn.Module, optimizer: Any, batches: Any) -> None:
    for batch in batches:
        optimizer.zero_grad()
        nets.loss(model, batch).backward()
        optimizer.step()


def split(ranks: int) -> tuple[list[nets.Batch], list[nets.Batch]]:
    parts = nets.make_parts(8 + HELD, ranks)
    return parts[:8], parts[8:]


def pick_cases(ranks: int) -> list[tuple[str, str]]:
    return CASES if ranks == 2 else CASES[:2]


def grow_all(rank: int, ranks: int) -> list[Found]:
    batches, held = ([batch[rank] for batch in both] for both in split(ranks))
    return [grow_case(*case, batches, held, wrap=True) for case in pick_cases(ranks)]


@pytest.mark.parametrize("ranks", [2, 3])
def test_ranks_grow_as_one_process_with_all_batches(ranks: int) -> None:
    everyone = run_ranks(ranks, grow_all, ranks)
    batches, held = split(ranks)
    alone = [part for batch in held for part in batch]
    for number, (net, method) in enumerate(pick_cases(ranks)):
        growth, tensors, rest = grow_case(net, method, batches, alone, wrap=False)
        for other in everyone:
            mine, own, state = other[number]
            assert mine["added"] == growth["added"] and mine["chosen"] == growth["chosen"], (net, method)
            assert mine["loss_after"] == pytest.approx(growth["loss_after"], abs=1e-9)
            torch.testing.assert_close(own, tensors, **CLOSE)
            torch.testing.assert_close(state, rest, **CLOSE)
            torch.testing.assert_close(own, everyone[0][number][1], rtol=0, atol=0)  # to the last bit
            assert mine == everyone[0][number][0]
    assert growth["added"]


# ---- wrappers --------------------------------------------------------------------------------------------------------


def wrap_and_grow(rank: int) -> dict[str, Any]:
    """A module grown without its wrapper, and the wrapper made anew."""
    model = nets.make_mlp()
    wrapped = Wrapper(model, find_unused_parameters=True, bucket_cap_mb=3)
    wrapped.register_comm_hook(None, count_calls)
    hooked: list[int] = []
    wrapped.register_forward_hook(lambda *_: hooked.append(1))
    wrapped.eval()
    batches = [batch[rank] for batch in nets.make_parts(4, 2)]
    grow(model, None, batches, None, budget=firefly.Neurons(3))
    again = firefly.rewrap(torch.compile(wrapped, backend="eager"))._orig_mod
    nets.loss(wrapped, batches[0]).backward()
    own = [p.grad.clone() for p in model.parameters()]
    for p in model.parameters():
        p.grad = None
    nets.loss(model, batches[0]).backward()  # without the wrapper: the rank's own gradient
    return {
        "same": again is wrapped and wrapped.find_unused_parameters and not wrapped.training,
        "bucket": wrapped.bucket_bytes_cap,
        "hooks": (len(hooked), len(CALLS)),
        "averaged": own,
        "local": [p.grad for p in model.parameters()],
        "bare": firefly.rewrap(model) is model,
    }


CALLS: list[int] = []


def count_calls(state, bucket):  # torch reads the annotations, and wants no others than its own
    from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook

    CALLS.append(1)
    return allreduce_hook(state, bucket)


def test_a_wrapper_is_made_anew_in_place_and_averages_what_has_grown() -> None:
    first, second = run_ranks(2, wrap_and_grow)
    assert isinstance(first, dict), first
    assert first["same"] and first["bare"] and first["bucket"] == 3 * 2**20
    assert first["hooks"][0] == 1 and first["hooks"][1] >= 1
    for one, two, mean in zip(first["local"], second["local"], first["averaged"]):
        torch.testing.assert_close(mean, (one + two) / 2, **CLOSE)
        assert not torch.equal(one, two)


# ---- what each rank has for itself ---------------------------------------------------------------------------------


def grow_apart(rank: int) -> Any:
    """Buffers, metrics and random numbers of each rank's own; then a growth that one rank does by itself."""
    model, batches = nets.make_normed(), [batch[rank] for batch in nets.make_parts(4, 2)]
    for buffer in model.buffers():
        buffer.add_(rank)
    torch.manual_seed(rank)
    before = torch.random.get_rng_state()
    model.eval()  # now the statistics are part of the function
    growth = grow(model, None, batches, None, budget=firefly.Neurons(3))
    kept = torch.equal(before, torch.random.get_rng_state())
    grower = firefly.Firefly(model, torch.zeros(2, 6).double(), schedule=firefly.Plateau(patience=1))
    due = [grower.due(epoch, (3 - epoch) * (1 if rank else -2)) for epoch in range(4)]  # falls on rank 1 only
    lonely = None
    if rank == 1:
        with firefly.alone():
            lonely = grow(nets.make_mlp(), None, batches, None)["added"]
    return growth, model.state_dict(), kept, due, lonely


def test_what_differs_between_ranks_becomes_one() -> None:
    first, second = run_ranks(2, grow_apart)
    assert first[0] == second[0]
    torch.testing.assert_close(first[1], second[1], rtol=0, atol=0)
    assert first[2] and second[2]
    assert first[3] == second[3] == [False, True, False, True]
    assert first[4] is None and second[4]


# ---- what is wrong -------------------------------------------------------------------------------------------------


def go_wrong(rank: int, how: str) -> Any:
    talk.PATIENCE = timedelta(seconds=1)
    model, batches = nets.make_mlp(), [batch[rank] for batch in nets.make_parts(4, 2)]
    if how == "late" and rank == 1:
        time.sleep(2)
        return "late"
    if how == "weights" and rank == 1:
        with torch.no_grad():
            model[2].bias[3] += 1e-12
    if how == "model" and rank == 1:
        model[4] = nn.Linear(8, 4).double()
    if how == "batches" and rank == 1:
        batches = batches[:3]
    if how == "empty" and rank == 1:
        batches = []
    kind = [firefly.New(4 + rank if how == "options" else 4)]
    return grow_dying(rank, how, model, batches, kind)


def grow_dying(rank: int, how: str, model: nn.Module, batches: Any, kind: Any) -> Any:
    calls = []

    def loss(model: nn.Module, batch: Any) -> torch.Tensor:
        calls.append(1)
        if how == "dead" and rank == 1 and len(calls) == 9:
            os._exit(1)
        return nets.loss(model, batch)

    before = [p.clone() for p in model.parameters()]
    try:
        return firefly.grow(model, loss, batches, example=torch.zeros(2, 6).double(), neighborhood=kind, steps=5)
    finally:
        assert all(map(torch.equal, before, model.parameters()))


WRONG = {
    "model": r"the ranks differ in the shape of 4\.weight: rank 0 has \[\[3, 8\].*rank 1 has \[\[4, 8\]",
    "weights": r"the ranks differ in the values of 2\.bias \(their sum; .*firefly\.rewrap\): rank 0 has",
    "batches": r"the ranks differ in number of batches: rank 0 has \"4\", rank 1 has \"3\"",
    "options": r"the ranks differ in neighborhood: .*count=4.*count=5",
    "empty": r"rank 1 gave up: there are no batches",
    "late": r"not all of the 2 ranks came to this growth \(.*Rank 1 failed.*call it on every rank.*firefly\.alone",
    "dead": r"the other ranks cannot be reached \(.*its own message says why; `torchrun --max-restarts`",
}


@pytest.mark.parametrize("how", WRONG)
def test_a_rank_that_differs_or_ends_is_told_in_words_on_the_others(how: str) -> None:
    first, second = run_ranks(2, go_wrong, how, patience=20)
    assert first[0] == "FireflyError"
    assert re.search(WRONG[how], first[1], re.DOTALL), first
    if how == "empty":
        assert "there are no batches" in second[1] and "gave up" not in second[1]
    elif how in ("late", "dead"):
        assert second == ("late" if how == "late" else GONE)
    else:
        assert second == first
