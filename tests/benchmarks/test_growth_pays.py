"""What `benchmarks/growth_pays.py` does to newborn neurons does what it says, and its grown networks end alike."""

import sys
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))

import pays_after
from growth_pays import Job, list_done, make_schedule, read_recipe, run_job
from pays_grower import Grower
from pays_networks import START, TASKS

from firefly.experiments.rows import append

TASK = TASKS["resnet-fashion"]
EXAMPLE = torch.randn(2, *TASK.shape, generator=torch.Generator().manual_seed(1))


def loss(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
    return nn.functional.cross_entropy(model(batch[0]), batch[1])


@cache
def grow(words: str) -> tuple[nn.Module, torch.optim.Optimizer, Grower]:
    """A network grown once, in train mode, from a quarter to three eighths of its widths."""
    torch.manual_seed(0)
    model = TASK.make(START)
    optimizer = torch.optim.Adam(model.parameters(), 1e-3)
    batches = [(EXAMPLE + number, torch.tensor([0, 1])) for number in range(4)]
    loss(model, batches[0]).backward()
    optimizer.step()
    optimizer.zero_grad()
    grower = Grower(model, EXAMPLE, read_recipe(f"{words} steps=2 batches=1 shares=0.375 grow_at=0.5"), 2, 4, 0)
    grower.grow(loss, batches, optimizer)
    return model, optimizer, grower


def answer(model: nn.Module) -> Tensor:
    with torch.no_grad():
        return model(EXAMPLE)


@pytest.mark.parametrize("words", ["firefly", "firefly kinds=new", "net2net", "uniform"])
def test_all_methods_end_with_the_widths_asked_for(words: str) -> None:
    model, _, _ = grow(words)
    assert [p.shape for p in model.parameters()] == [p.shape for p in TASK.make(0.375).parameters()]


@pytest.mark.parametrize("after", ["pairs:1", "rescale:0.5", "renorm:2"])
def test_the_function_stays(after: str) -> None:
    plain, changed = grow("uniform kinds=new")[0], grow(f"uniform kinds=new after={after}")[0]
    assert torch.allclose(answer(plain), answer(changed), atol=1e-3)
    weights = zip(plain.parameters(), changed.parameters())
    assert any(not torch.allclose(one, other, rtol=0.1) for one, other in weights)


def test_twins_are_made_alike_and_read_against_each_other() -> None:
    model, _, _ = grow("uniform kinds=new after=pairs:1")
    makes, reads = model.blocks[0].first.weight, model.blocks[0].second.weight
    assert torch.equal(makes[4], makes[5]) and makes[4].any()
    assert torch.allclose(reads[:, 4], -reads[:, 5]) and reads[:, 4].any()


def test_newborn_second_moments_begin_as_said_and_no_others_change() -> None:
    _, plain, _ = grow("firefly kinds=new")
    model, changed, _ = grow("firefly kinds=new after=moments:0.5")
    before = plain.state[plain.param_groups[0]["params"][0]]["exp_avg_sq"]
    after = changed.state[model.stem[0].weight]["exp_avg_sq"]
    assert torch.equal(after[:4], before[:4])
    assert torch.allclose(after[4:], 0.5 * before[:4].mean()) and not torch.equal(after[4:], before[4:])


def test_newborn_entries_step_further_and_less_so_with_age() -> None:
    model, optimizer, grower = grow("uniform kinds=new age=3 fade=1")
    weight = model.blocks[0].first.weight
    steps: list[Any] = []
    for _ in range(5):
        before = weight.detach().clone()
        for parameter in model.parameters():
            parameter.grad = torch.ones_like(parameter)
        optimizer.state.clear()  # so that every step is as long as the rate
        optimizer.step()
        steps.append(((weight - before) / (weight - before)[0, 0, 0, 0]).detach())
    assert torch.allclose(steps[0][:4, :4], torch.ones(4, 4, 3, 3), atol=1e-3)
    assert torch.allclose(steps[0][4:], torch.full((2, 6, 3, 3), 3.0), rtol=1e-3)
    assert torch.allclose(steps[4][4:], torch.full((2, 6, 3, 3), 2.0), rtol=1e-2)  # half of it gone after an epoch
    assert grower.ages is not None and isinstance(grower.ages, pays_after.Ages)


def test_the_rate_is_held_until_the_last_growth() -> None:
    risen = make_schedule(read_recipe("fixed"), 10, 0.5)
    assert risen(0.0) == 0 and risen(0.25) == pytest.approx(0.5, abs=0.01)
    plain, held = (make_schedule(read_recipe(f"firefly {words} grow_at=0.1,0.5"), 10) for words in ("", "hold=1"))
    assert held(4.9) == 1.0 > plain(4.9)
    assert held(7.5) == pytest.approx(0.5) and held(10) == plain(10) == pytest.approx(0.0)


def test_smoke_tests_and_random_images_are_no_rows_of_a_measurement(tmp_path: Path) -> None:
    row = {"benchmark": "growth_pays", "task": "mlp-digits", "tried": "fixed", "seed": 0, "config": {}}
    out, smoke = tmp_path / "rows.jsonl", {"quick": True, "random": 512}
    append(out, row | {"seed": 1}, row | {"seed": 2, "config": smoke}, row | {"seed": 3, "config": {"random": 640}})
    with out.open("a") as file:
        file.write('{"benchmark": "growth_pays", "ta')  # of a process that was killed
    found = [list_done(out, *how) for how in ((False, 0), (True, 512), (False, 640))]
    assert found == [{("mlp-digits", "fixed", seed)} for seed in (1, 2, 3)]
    made = run_job(Job(TASKS["mlp-digits"], "fixed", 0, quick=True, random=512, device="cpu", shared=True))
    assert made["config"]["quick"] and made["config"]["random"] == 512
