"""Accounting agrees with the networks themselves; forgetting and transfer are what they say."""

import json
import math
from pathlib import Path

import pytest
from nets import EXAMPLE, draw_task, learn_task, make_mlp, make_vgg
from torch import nn

import firefly
from firefly.continual import Master, metrics
from firefly.errors import FireflyError

SCORES = [{"a": 0.9}, {"a": 0.6, "b": 0.8}, {"a": 0.7, "b": 0.8, "c": 1.0}]


def test_what_was_seen_forgotten_and_transferred() -> None:
    assert metrics.mean_seen(SCORES) == pytest.approx([0.9, 0.7, 0.8333333])
    assert metrics.count_forgotten(SCORES) == pytest.approx((0.2 + 0.0) / 2)
    assert metrics.count_forgotten(SCORES[:1]) == 0
    assert metrics.count_transfer(SCORES, {"a": 0.8, "b": 0.8, "c": 0.9}) == pytest.approx((0.1 + 0 + 0.1) / 3)


def test_a_row_a_task_that_adds_up(tmp_path: Path) -> None:
    master, scores, tests = Master(make_vgg, EXAMPLE, tmp_path), [], {}
    for number in range(2):
        learn_task(master, number)
        tests[f"task {number}"] = draw_task(number, 30)
        scores.append(metrics.measure(master, tests))
    assert metrics.count_forgotten(scores) == 0
    metrics.write_account(master, tmp_path / "account.jsonl")
    rows = [json.loads(line) for line in (tmp_path / "account.jsonl").read_text().splitlines()]
    assert [row["union"] for row in rows] == [master.count("task 0"), master.parameters]
    assert rows[0]["union"] == sum(p.numel() for p in master.network("task 0").parameters())
    for number, row in enumerate(rows):
        private = [
            tensor
            for name, tensor in master.network(row["task"]).named_parameters()
            if "weight" in name or "bias" in name
        ]
        norms = sum(tensor.numel() for tensor in private if tensor.ndim == 1)  # all biases here are of norms and head
        head = master.network(row["task"]).get_parameter("9.weight").numel()
        assert row["private"] == norms + head
        assert row["bytes"] == sum(path.stat().st_size for path in (tmp_path / f"task-00{number + 1}").iterdir())
        assert sum(row["grown"].values()) == 4 and math.isclose(row["epochs"]["step one"], 1.0)
        assert row["epochs"]["training"] == 2 and row["epochs"]["mask"] == 0
    assert rows[1]["mask_bits"] == sum(master.born.values())
    table = metrics.tabulate(master).splitlines()
    assert len(table) == 3 and f"{master.parameters:,}" in table[-1]
    with pytest.raises(FireflyError, match="no test data for task 'task 1'"):
        metrics.measure(master, {"task 0": tests["task 0"]})


def test_dormant_layers_are_accounted_for() -> None:
    def make(classes: int) -> nn.Module:
        model = make_mlp(classes)
        firefly.deepen(model, EXAMPLE)
        return model

    master = Master(make, EXAMPLE)
    learn_task(master, 0, growths=0), learn_task(master, 1, growths=0)
    assert [row["mask_bits"] for row in metrics.account(master)] == [9, 9]
