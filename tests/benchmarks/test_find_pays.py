"""`benchmarks/find_pays.py`: networks of a task have its size, costs are counted, nothing is done twice."""

import sys
from argparse import Namespace
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))

from find_bench import even_widths, fill, scale_widths
from find_methods import plan_finding, punish
from find_pays import Job, find_need, list_jobs, list_known, make_bench, read_try, run_job, trace_full
from gpt_text import GPT, read_text

import firefly
from firefly.experiments.rows import append


def ask(folder: Path, words: str, **how: Any) -> Job:
    usual = {"quick": True, "test": False, "device": "cpu", "jobs": 2, "shared": False, "runs": folder, "out": None}
    return Job("digits", words, 0, Namespace(**usual | how))


def test_widths_are_the_largest_of_their_shape(tmp_path: Path) -> None:
    bench, _ = make_bench(ask(tmp_path, "uniform limit=parameters"))
    for choose in (even_widths, scale_widths):
        sizes = choose(bench.full, bench.fits)
        assert bench.fits(sizes) and not any(bench.fits({**sizes, name: sizes[name] + 1}) for name in sizes)
    even, alike = even_widths(bench.full, bench.fits), scale_widths(bench.full, bench.fits)
    assert max(even.values()) - min(even.values()) <= 1
    shares = [alike[name] / bench.full[name].size for name in alike]
    assert max(shares) / min(shares) < 1.25
    assert fill({"a": 1.0, "b": 2.0}, lambda sizes: sizes["a"] + sizes["b"] <= 10) == {"a": 3, "b": 7}


def test_networks_of_any_widths_are_made(tmp_path: Path) -> None:
    bench, _ = make_bench(ask(tmp_path, "uniform"))
    sizes = {width.name: size for width, size in zip(bench.full.growable(), (24, 20))}  # one larger, one smaller
    model = bench.build(sizes)
    assert [model[0].out_channels, model[4].out_channels] == [24, 20]
    assert firefly.trace(model, bench.task.example).sizes() == bench.full.resized(sizes).sizes()
    assert len(model[0].weight.flatten(1).unique(dim=0)) == 24  # drawn anew, no copies


def test_costs_and_sizes_are_counted(tmp_path: Path) -> None:
    full = run_job(ask(tmp_path, "full"))
    pruned, found = (run_job(ask(tmp_path, words)) for words in ("taylor limit=parameters", "find-anew rounds=2"))
    image = trace_full("digits")
    assert full["train_flops"] == 3 * image.flops() * 640 and full["epochs"] == [1]
    assert pruned["epochs"] == [1, 1] and found["epochs"] == [4, 1]
    scoring = 3 * image.flops() * 640
    assert pruned["train_flops"] == full["train_flops"] + scoring + 3 * pruned["flops"] * 640
    assert found["finding_flops"] == found["train_flops"] - 3 * found["flops"] * 640 > 0
    for row in (pruned, found):
        assert row["parameters"] <= 0.4 * full["parameters"] and 0 <= row["held_accuracy"] <= 1
        assert all(row[what] <= most for what, most in row["limits"].items())
    assert "flops" in found["limits"] and "flops" not in pruned["limits"]
    assert found["config"]["optimizer"][0] | {"kind": "SGD", "momentum": 0.9} == found["config"]["optimizer"][0]


def test_random_search_spends_what_a_finding_costs(tmp_path: Path) -> None:
    job = ask(tmp_path, "random finding=0.3")
    row = run_job(job)
    purse = 0.3 * plan_finding(make_bench(job)[0])
    assert purse <= row["finding_flops"] < 2 * purse


def test_slimming_pulls_the_scales_down() -> None:
    model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.BatchNorm1d(4))
    with torch.no_grad():
        model[1].weight.copy_(torch.tensor([1.0, -2.0, 0.5, 0.0]))
    loss = punish(["1.weight"], 0.1, lambda model, batch: model(batch).sum() * 0)
    loss(model, torch.randn(5, 3)).backward()
    assert torch.allclose(model[1].weight.grad, 0.1 * model[1].weight.detach().sign())


def test_what_is_done_is_not_done_again(tmp_path: Path) -> None:
    out = tmp_path / "rows.jsonl"
    how = Namespace(
        quick=True, test=False, device="cpu", jobs=1, runs=tmp_path, out=out, seeds=[0, 1], tasks=["digits"]
    )
    how.tries, how.epochs = ["uniform", "slimming lr=0.02"], 0
    assert [(job.words, job.seed) for job in list_jobs(how, list_known(how))] == [
        ("full-l1", 0),
        ("uniform", 0),
        ("slimming lr=0.02", 0),
        ("full-l1", 1),
        ("uniform", 1),
        ("slimming lr=0.02", 1),
    ]
    row = {"benchmark": "find_pays", "task": "digits", "tried": "uniform", "seed": 1, "held_loss": 1.0}
    append(out, row | {"config": {"quick": True}}, row | {"seed": 0, "config": {"quick": False}})
    assert ("uniform", 1) not in [(job.words, job.seed) for job in list_jobs(how, list_known(how))]
    with out.open("a") as file:
        file.write('{"benchmark": "find_pays", "ta')  # of a process that was killed
    assert ("uniform", 0) in [(job.words, job.seed) for job in list_jobs(how, list_known(how))]


def test_a_full_network_is_pruned_only_where_it_saw_the_same_images(tmp_path: Path) -> None:
    ways: list[dict[str, Any]] = [{"quick": True}, {"quick": False}, {"quick": False, "test": True}]
    kept = [make_bench(ask(tmp_path, "taylor epochs=1", **how))[0].kept for how in ways]
    assert len(set(kept)) == 3  # a few, without those that are measured on, all of them
    assert make_bench(ask(tmp_path, "full epochs=1", quick=False))[0].kept == kept[1]


def test_tries_are_read_in_words() -> None:
    assert read_try("find-on rounds=3 limit=flops") == replace(read_try("find-on"), rounds=3, limit="flops")
    assert find_need("taylor epochs=9 lr=0.1") == "full epochs=9" and find_need("uniform") is None
    with pytest.raises(SystemExit, match="known are"):
        read_try("find-on round=3")
    with pytest.raises(SystemExit, match="no method"):
        read_try("guess")


def test_the_text_comes_with_python_and_every_letter_has_the_one_after_it() -> None:
    x, y = read_text(16)
    assert x.shape == y.shape and len(x) > 10_000 and torch.equal(x.flatten()[1:], y.flatten()[:-1])
    assert int(x.min()) >= 0 and int(x.max()) < GPT().embed.num_embeddings
