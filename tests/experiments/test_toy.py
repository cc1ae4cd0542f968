"""The toy experiment: its trainer is Adam, its rows are complete, a run resumes."""

import json
import math
from argparse import ArgumentParser
from pathlib import Path

import pytest
import torch

import firefly
from firefly.experiments import toy
from firefly.experiments.rbf import RBF, Slope, Stack, draw_network, draw_truth, mean_square, train
from firefly.experiments.toy import GROWN, Toy, measure
from firefly.experiments.toy.figure import PANELS, plot, summarise, table

TINY = Toy(neurons=3, iterations=20, steps=5)


def test_a_truth_is_what_the_paper_says() -> None:
    x, y = draw_truth(0)
    assert x.shape == y.shape == (1000, 1)
    assert -5 <= x.min() < -4.9 and 4.9 < x.max() <= 5
    assert torch.equal(draw_truth(0)[1], y) and not torch.equal(draw_truth(1)[1], y)
    drawn = torch.cat([torch.cat(draw_network(15, 3.0, seed).rows()) for seed in range(50)])
    assert 2.8 < drawn.std() < 3.2


def test_the_stacked_slope_is_that_of_autograd() -> None:
    nets, data = [draw_network(size, 1.0, size) for size in (2, 4)], [draw_truth(0), draw_truth(1)]
    stack = Stack.of(nets, torch.float64)
    slopes = Slope(stack, data)(stack.parameters)
    for k, net in enumerate(nets):
        mean_square(net, data[k]).backward()
        found = [p.grad for p in net.parameters() if p.grad is not None]
        expected = found[0][:, 0], found[1], found[2][0]
        for slope, gradient in zip(slopes, expected):
            assert torch.allclose(slope[k, : net.neurons, 0], gradient, rtol=1e-9)
            assert not slope[k, net.neurons :].any()


def test_the_stacked_trainer_is_adam() -> None:
    nets, data = [draw_network(size, 1.0, size) for size in (1, 3, 2)], [draw_truth(seed) for seed in range(3)]
    alone = [draw_network(size, 1.0, size) for size in (1, 3, 2)]
    train(nets, data, 50, 0.05, torch.float64)
    for net, expected, batch in zip(nets, alone, data):
        optimizer = torch.optim.Adam(expected.parameters(), lr=0.05)
        schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 50)
        for _ in range(50):
            optimizer.zero_grad()
            mean_square(expected, batch).backward()
            optimizer.step()
            schedule.step()
        for a, b in zip(net.rows(), expected.rows()):
            assert torch.allclose(a, b, rtol=1e-6)


@pytest.fixture(scope="module")
def rows() -> list[dict]:
    return measure([0, 1], TINY)


def test_every_method_has_a_row_for_every_truth_and_step(rows: list[dict]) -> None:
    found = {(row["method"], row["seed"], row["step"]) for row in rows}
    assert found == {(m, s, k) for m in [*GROWN, "scratch"] for s in (0, 1) for k in range(3)}
    assert len(rows) == len(found)
    for row in rows:
        assert row["experiment"] == "toy" and row["dataset"] == "rbf" and row["device"] == "cpu"
        assert row["final"] == (row["step"] == 2)
        assert row["parameters"] == 3 * row["neurons"] <= 3 * (row["step"] + 1)
        assert math.isfinite(row["loss"]) and row["variance"] > 0
        assert row["config"]["iterations"] == 20
    json.dumps(rows)


def test_all_methods_start_from_the_same_network(rows: list[dict]) -> None:
    for seed in (0, 1):
        losses = [row["loss"] for row in rows if row["seed"] == seed and row["step"] == 0]
        assert max(losses) - min(losses) < 1e-5 * max(losses)


def test_kinds_of_growth_are_those_of_the_method(rows: list[dict]) -> None:
    kinds = {m: {kind for row in rows if row["method"] == m for kind in row["grown"]} for m in GROWN}
    assert "new" in kinds["firefly"]
    for method in ("firefly-split", "splitting", "random-search-split"):
        assert "new" not in kinds[method]


@pytest.mark.parametrize("method", ["firefly", "random-search"])
def test_new_neurons_begin_as_small_as_the_setting_says(method: str) -> None:
    setting, grown = Toy(steps=1, step_lr=1e-6, lr=0.0, scale=1e-3), []
    for seed in range(4):
        net = draw_network(3, 2.0, seed)
        if GROWN[method](net, draw_truth(seed), seed, setting).added["hidden"]["new"]:
            theta, shift, _ = net.rows()
            grown.append((theta[-1], shift[-1]))
    assert grown and all(0 < abs(theta) < 0.01 and 0 < abs(shift) < 0.01 for theta, shift in grown)


def test_numbers_over_truths() -> None:
    made = [{"method": "a", "seed": s, "step": 0, "loss": loss} for s, loss in enumerate((1.0, 2.0, 6.0))]
    curve = summarise(made, "a")
    assert curve.neurons == [1] and curve.mean == [3.0] and curve.median == [2.0]
    assert curve.error[0] == pytest.approx(math.sqrt(7 / 3))


def test_table_and_figure(rows: list[dict], tmp_path: Path) -> None:
    text = table(rows)
    assert all(label in text for label in PANELS["(a) methods"].values())
    assert "m' = 10" in text
    assert plot(rows, tmp_path / "deep" / "toy.png").read_bytes()[1:4] == b"PNG"
    drawing = (tmp_path / "deep" / "toy.svg").read_text()
    assert "<svg" in drawing


def test_a_run_resumes_and_refuses_to_mix(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(toy, "QUICK", Toy(neurons=2, iterations=5, steps=2))
    monkeypatch.setattr(toy, "GROUP", 1)
    parser = ArgumentParser()
    toy.add_arguments(parser)
    out = tmp_path / "toy.jsonl"
    assert toy.run(parser.parse_args(["--truths", "1", "--out", str(out)])) == 0
    first = out.read_text()
    assert toy.run(parser.parse_args(["--truths", "2", "--out", str(out)])) == 0
    both = out.read_text()
    assert both.startswith(first) and both.count("\n") == 2 * first.count("\n") == 4 * (len(GROWN) + 1)
    assert toy.run(parser.parse_args(["--truths", "2", "--out", str(out)])) == 0
    assert out.read_text() == both
    out.write_text(both[: len(both) * 3 // 4])  # a kill: the rows of the second truth are not all there, one is cut
    assert toy.run(parser.parse_args(["--truths", "2", "--out", str(out)])) == 0
    rows = [json.loads(line) for line in out.read_text().splitlines()]
    assert len({toy.name(row) for row in rows}) == len(rows) == both.count("\n")
    assert "RandSearch (split+new)" in capsys.readouterr().out
    monkeypatch.setattr(toy, "QUICK", TINY)
    with pytest.raises(firefly.FireflyError, match="another setting"):
        toy.run(parser.parse_args(["--out", str(out)]))


@pytest.mark.slow
def test_new_neurons_learn_what_splits_cannot() -> None:
    """The paper's point, on truths that are not in the results."""
    setting = Toy(neurons=6, iterations=1500)
    rows = measure(range(500, 504), setting)
    last = {method: summarise(rows, method).mean[-1] for method in GROWN}
    assert max(last["firefly"], last["random-search"]) < 0.3 * min(last["firefly-split"], last["splitting"])


def test_an_rbf_is_an_ordinary_module() -> None:
    assert [w.name for w in firefly.trace(RBF(2), torch.zeros(3, 1, dtype=torch.float64)).growable()] == ["hidden"]
