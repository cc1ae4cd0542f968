"""Growing wider: every method takes its steps, what was stopped goes on the same, the rows tell what a table needs."""

import json
from argparse import Namespace
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from shutil import rmtree
from typing import Any

import pytest
import torch
from stopping import Clock, move, timeless
from torch import nn

from firefly import baselines
from firefly.cli import main
from firefly.errors import FireflyError
from firefly.experiments import curves, notes, options, wider
from firefly.experiments.growers import METHODS, rank_by
from firefly.experiments.lineage import Line
from firefly.experiments.rows import count, count_seconds
from firefly.experiments.setting import Place, Setting, World
from firefly.method import Method
from firefly.stages.batches import hold_batches
from firefly.stages.selection import select
from firefly.vision.data import Images

SETTING = Setting(
    sizes=(0.2, 0.3), epochs=1, long=1, batch=16, lr=0.01, steps=2, candidates=4, child=1, split=0.1, new=0.1
)


def make_net(widths: Any) -> nn.Sequential:
    sizes = [16, 16] if widths == "full" else [widths] * 2 if isinstance(widths, int) else widths
    first, second = sizes
    return nn.Sequential(
        nn.Conv2d(3, first, 3, padding=1, bias=False),
        nn.BatchNorm2d(first),
        nn.ReLU(),
        nn.MaxPool2d(4),
        nn.Conv2d(first, second, 3, padding=1, bias=False),
        nn.BatchNorm2d(second),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(second, 3),
    )


def make_images(number: int, seed: int) -> Images:
    generator = torch.Generator().manual_seed(seed)
    labels = torch.arange(number) % 3
    images = torch.randint(0, 80, (number, 3, 8, 8), generator=generator) + labels[:, None, None, None] * 80
    return Images(images.to(torch.uint8), labels, 3, "cifar10")


@pytest.fixture
def world(tmp_path: Path) -> World:
    place = Place(torch.device("cpu"), tmp_path / "runs", tmp_path / "results.jsonl", say=lambda text: None)
    return World("wider-vgg19", make_net, 4, make_images(96, 0), make_images(32, 1), place, report=(0.3,))


def read(world: World, method: str) -> list[dict[str, Any]]:
    return [row for row in options.read_rows(world.place.results) if row["method"] == method]


@pytest.mark.parametrize("method", METHODS)
def test_every_method_takes_its_steps(world: World, method: str) -> None:
    assert wider.measure(world, SETTING, method, 0)
    rows = read(world, method)
    assert [(row["step"], row["final"]) for row in rows] == [(1, False), (2, False), (2, True)]
    for row in rows:
        beside = sum(3 * 3 * 3 * hidden for hidden in row["layers"].values())  # at least: new layers have more inputs
        assert row["parameters"] >= count(make_net(row["widths"])) + beside
        assert bool(row["layers"]) == (method == "firefly-deeper")
        assert row["layers"] or row["parameters"] == count(make_net(row["widths"]))
        assert row["parameters"] <= SETTING.sizes[row["step"] - 1] * world.full
        assert 0 <= row["test_accuracy"] <= 1
    assert rows[0]["parameters"] > count(make_net(4)) and rows[1]["parameters"] > rows[0]["parameters"]
    assert rows[0]["search_epochs"] == {"nash": 8, "race": 3}.get(method, 0) and rows[0]["growth_seconds"] > 0
    assert [row["epochs"] for row in rows] == [2, 3, 4]


@pytest.mark.gpu
@pytest.mark.parametrize("method", METHODS)
def test_every_method_works_on_a_gpu(world: World, method: str) -> None:
    there = torch.device("cuda:0")
    world = replace(move(world, device=there), train=world.train.to(there), test=world.test.to(there))
    assert wider.measure(world, replace(SETTING, multiple=2), method, 0)
    rows = read(world, method)
    assert [(row["step"], row["final"]) for row in rows] == [(1, False), (2, False), (2, True)]
    assert rows[1]["parameters"] > rows[0]["parameters"] > count(make_net(4))


@pytest.mark.parametrize(
    "method", [Method(), baselines.splitting(always=True), baselines.gradmax(), baselines.uniform()]
)
def test_gains_count_per_power_of_the_cost(method: Method) -> None:
    ranked = rank_by(0.5, method)
    if method.name == "uniform":  # it ranks nothing
        assert ranked is method
    else:
        assert ranked.select.func is select and ranked.select.keywords["power"] == 0.5  # type: ignore[attr-defined]
        kept = getattr(method.select, "keywords", {})
        assert kept.items() <= ranked.select.keywords.items()  # type: ignore[attr-defined]


@pytest.mark.parametrize("unseen", [False, True])
def test_the_batches_of_the_scores_are_those_of_step_one_or_others(world: World, unseen: bool) -> None:
    setting = replace(SETTING, batch=8, evaluate_on=2, unseen=unseen)
    step_one, held = hold_batches(Line("firefly", 0, setting, world).batches(1), 6, 2)
    seen = [any(torch.equal(images, batch[0]) for batch in step_one) for images, _ in held]
    assert seen == [not unseen] * 2


def test_a_shared_machine_is_told(world: World) -> None:
    assert wider.measure(move(world, shared=True), SETTING, "uniform", 0)
    assert all(row["shared"] for row in options.read_rows(world.place.results))


def test_methods_share_their_start(world: World) -> None:
    for method in ("firefly", "uniform"):
        wider.measure(world, SETTING, method, 0)
    assert len(read(world, "start")) == 1
    before = [row["test_loss_grown"][0] for row in options.read_rows(world.place.results) if row["step"] == 1]
    assert before[0] == before[1]


def test_what_was_stopped_goes_on_the_same(world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = move(world, folder=tmp_path / "whole", results=tmp_path / "whole.jsonl")
    assert wider.measure(whole, SETTING, "firefly", 3)

    stops = 0
    monkeypatch.setattr(notes, "time", Clock())
    while not wider.measure(move(world, deadline=notes.time.monotonic() + 2.5), SETTING, "firefly", 3):
        stops += 1
    assert stops == 2  # one step at a time: two rounds and the long training
    assert [timeless(row) for row in read(world, "firefly")] == [timeless(row) for row in read(whole, "firefly")]


def test_an_interrupted_training_is_taken_up(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    setting = replace(SETTING, epochs=2, long=0)
    line = Line("firefly", 0, setting, world, METHODS["firefly"])
    grown = []

    def interrupt(model: nn.Module, *given: Any, **named: Any) -> Any:
        grown.append(1)
        raise KeyboardInterrupt

    trained = Line.train
    monkeypatch.setattr(Line, "train", lambda self, *a, **k: trained(self, *a, **k) if a[3] < 1 else interrupt(*a))
    with pytest.raises(KeyboardInterrupt):
        line.run([])
    monkeypatch.setattr(Line, "train", trained)
    assert grown and wider.measure(world, setting, "firefly", 0)
    assert [row["step"] for row in read(world, "firefly")] == [1, 2]


@pytest.mark.parametrize("asked", [(0.3,), (0.2, 0.3)])
def test_networks_that_are_gone_are_grown_again(world: World, tmp_path: Path, asked: tuple[float, ...]) -> None:
    whole = replace(move(world, folder=tmp_path / "whole", results=tmp_path / "whole.jsonl"), report=asked)
    assert wider.measure(whole, SETTING, "firefly", 3)
    assert wider.measure(replace(world, report=()), SETTING, "firefly", 3)
    rmtree(world.place.folder)
    assert wider.measure(replace(world, report=asked), SETTING, "firefly", 3)
    here, there = ([timeless(row) for row in read(one, "firefly")] for one in (world, whole))
    assert len(here) == len(there) == 2 + len(asked) and all(row in there for row in here)


def test_experiments_in_one_folder_do_not_meet(world: World) -> None:
    other = replace(world, experiment="wider-mobilenet")
    for method in ("firefly", "start"):
        assert Line(method, 0, SETTING, world).folder(0) != Line(method, 0, SETTING, other).folder(0)


def test_the_long_training_has_its_own_rate(world: World) -> None:
    assert wider.measure(world, SETTING, "firefly", 0)
    again = replace(SETTING, long_lr=0.1)
    for method in ("firefly", "full", "scratch"):
        assert wider.measure(world, again, method, 0)
    rounds, slow, fast = (
        [row for row in read(world, "firefly") if chosen(row)]
        for chosen in (
            lambda row: not row["final"],
            lambda row: row["final"] and row["config"]["long_lr"] is None,
            lambda row: row["final"] and row["config"]["long_lr"] == 0.1,
        )
    )
    assert len(rounds) == 2 and len(slow) == len(fast) == 1  # the rounds serve both
    assert slow[0]["train_loss"] != fast[0]["train_loss"] and slow[0]["widths"] == fast[0]["widths"]
    assert [row["method"] for row in options.read_own(world, SETTING)] == ["start", *["firefly"] * 3]
    names = curves.name_lines(options.read_rows(world.place.results))
    assert len(set(names[1:3])) == 1 and "(long_lr 0.1)" not in names[1] and len(set(names)) == 5


def test_experiments_in_one_file_do_not_take_each_others_rows(world: World) -> None:
    other = replace(world, experiment="wider-mobilenet")
    for one in (world, other):
        for method in ("uniform", "full"):
            assert wider.measure(one, SETTING, method, 0)
    assert len(options.read_rows(world.place.results)) == 10
    assert [len(wider.find_rows(one, SETTING)) for one in (world, other)] == [5, 5]


def test_rows_from_before_a_setting_was_known_have_its_default(world: World) -> None:
    for method in ("uniform", "full"):
        assert wider.measure(world, SETTING, method, 0)
    rows = options.read_rows(world.place.results)
    for row in rows:
        del row["config"]["long_lr"], row["config"]["unseen"]
    world.place.results.write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert len(options.read_own(world, SETTING)) == len(rows)
    assert len(options.read_own(world, replace(SETTING, long_lr=0.1))) == len(rows) - 2
    assert len(wider.find_rows(world, SETTING)) == len(rows)  # the full network once
    late = [row | {"seed": 1, "config": row["config"] | {"unseen": False}} for row in rows]
    assert wider.VGG19.table(rows + late).count("uniform") == 2  # the rounds, and trained for long: one line each


def test_networks_that_never_grow(world: World) -> None:
    with pytest.raises(FireflyError, match="the widths that firefly found"):
        wider.measure(world, SETTING, "scratch", 0)
    for method in ("firefly", "scratch", "full"):
        assert wider.measure(world, SETTING, method, 0)
        assert wider.measure(world, SETTING, method, 0)  # nothing is done twice
    (scratch,), (full,) = read(world, "scratch"), read(world, "full")
    grown = read(world, "firefly")[-1]
    assert scratch["widths"] == grown["widths"] and scratch["epochs"] == grown["epochs"] == full["epochs"]
    assert full["share"] == 1 and full["final"] and scratch["final"]


def test_one_full_network_serves_settings_of_the_same_recipe(world: World) -> None:
    wider.measure(world, SETTING, "full", 0)
    wider.measure(world, replace(SETTING, steps=9), "full", 0)
    assert len(read(world, "full")) == 1
    wider.measure(world, replace(SETTING, lr=0.02), "full", 0)
    wider.measure(world, replace(SETTING, long=2), "full", 0)
    assert len(read(world, "full")) == 3


@pytest.mark.parametrize("budget", ["neurons", "flops", "both"])
def test_every_budget_keeps_to_multiples(world: World, budget: str) -> None:
    wider.measure(world, replace(SETTING, budget=budget, more=1.5, multiple=2), "firefly", 0)
    widths = [width for row in read(world, "firefly") for width in row["widths"]]
    assert max(widths) > world.start and not any(width % 2 for width in widths)


def test_parameters_and_flops_grow_by_the_same_factor_at_most(world: World) -> None:
    wider.measure(world, replace(SETTING, budget="both"), "firefly", 0)
    start, first, second, _ = [*read(world, "start"), *read(world, "firefly")]
    for before, after in ((start, first), (first, second)):
        factor = 0.1 * after["step"] + 0.1
        assert before["flops"] < after["flops"] <= before["flops"] * factor / before["share"] + 1
        assert after["share"] <= factor


def test_settings_do_not_meet(world: World) -> None:
    wider.measure(world, SETTING, "uniform", 0)
    other = replace(SETTING, budget="neurons", more=0.5)
    wider.measure(world, other, "uniform", 0)
    configs = [row["config"]["budget"] for row in read(world, "uniform")]
    assert configs.count("parameters") == 3 and configs.count("neurons") == 3


def test_change_reads_words() -> None:
    changed = options.change(SETTING, ["epochs=7", "sizes=[0.1,0.2]", "budget=flops", "images=null", "carry=false"])
    assert (changed.epochs, changed.sizes, changed.budget, changed.images) == (7, (0.1, 0.2), "flops", None)
    assert changed.carry is False
    for word, told in {
        "epoch=7": "KEY=VALUE",
        "epochs=seven": "something like 1",
        "epochs=1.5": "something like 1",
        "images=few": "something like null",
        "budget=0": "one of parameters, both",
        "budget=param": "one of parameters, both",
    }.items():
        with pytest.raises(FireflyError, match=told):
            options.change(SETTING, [word])
    assert options.change(SETTING, ["lr=1", "images=9", "long_lr=0.2"]).images == 9
    assert options.change(SETTING, ["sizes=0.1,0.2"]) == options.change(SETTING, ["sizes=[0.1,0.2]"])


def make_rows(accuracy: Callable[[int, int], float]) -> list[dict[str, Any]]:
    shared = {"experiment": "wider-vgg19", "config": {"epochs": 1}, "train_seconds": 1.0}
    rows = [
        {
            **shared,
            "method": method,
            "seed": seed,
            "step": step,
            "final": False,
            "share": 0.01 * 2**step,
            "epochs": step,
        }
        | {
            "test_accuracy": accuracy(step, seed),
            "parameters": 1000 * 2**step,
            "flops": 10**6 * step,
            "growth_seconds": 2.0,
        }
        for method in ("firefly", "uniform")
        for seed in (0, 1)
        for step in (1, 2)
    ]
    return [*rows, {**rows[-1], "method": "full", "final": True, "share": 1.0, "test_accuracy": 0.9}]


def test_the_table_gives_mean_and_standard_error() -> None:
    text = curves.table(make_rows(lambda step, seed: 0.5 + 0.1 * step + 0.02 * seed))
    assert "2.00 %: 61.00 ± 1.00 (2)   4.00 %: 71.00 ± 1.00 (2)" in text
    assert "full network" in text and "100.00 %" in text and "90.00" in text


def test_the_seconds_of_a_network_are_those_of_all_rounds_before_it() -> None:
    rows = make_rows(lambda step, seed: 0.5)
    start = {**rows[0], "method": "start", "step": 0, "growth_seconds": 0.0, "train_seconds": 10.0}
    long = {**rows[0], "step": 2, "final": True, "growth_seconds": 0.0, "train_seconds": 100.0}
    elsewhere = {**rows[0], "config": {"epochs": 9}, "train_seconds": 1000.0}
    every = [start, *rows, long, elsewhere]
    assert count_seconds(start, every) == 10.0
    assert count_seconds(rows[1], every) == 10.0 + 2 * (1.0 + 2.0)
    assert count_seconds(long, every) == 10.0 + 2 * (1.0 + 2.0) + 100.0
    scratch = {key: value for key, value in long.items() if key != "growth_seconds"} | {"method": "scratch"}
    assert count_seconds(scratch, every) == 100.0


def test_other_settings_are_named() -> None:
    rows = make_rows(lambda step, seed: 0.5)
    rows.append({**rows[0], "config": {"epochs": 9}})
    assert "Firefly (epochs 9)" in curves.table(rows)


def test_report_draws_the_figure(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("matplotlib")
    path = tmp_path / "wider-vgg19.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in make_rows(lambda step, seed: 0.5 + 0.1 * step)))
    assert main(["report", str(path)]) == 0
    assert (tmp_path / "wider-vgg19.png").stat().st_size > 10_000
    assert (tmp_path / "wider-vgg19.svg").exists()


def clock(method: str, seconds: float) -> dict[str, Any]:
    """A line of benchmarks/growth_seconds.py."""
    named = {"benchmark": "growth_seconds", "experiment": "wider-vgg19", "method": method}
    return named | {"growth_seconds": seconds}


def test_bars_are_what_the_benchmark_measured_if_it_did() -> None:
    rows = make_rows(lambda step, seed: 0.5)
    networks, clocked = curves.set_apart([*rows, clock("firefly", 2.0), clock("firefly", 4.0), clock("nash", 9.0)])
    assert networks == rows and clocked == {"Firefly": 3.0, "NASH": 9.0}
    assert curves.table([*rows, clock("firefly", 2.0)]) == curves.table(rows)


def test_seconds_on_a_shared_machine_do_not_count() -> None:
    rows = make_rows(lambda step, seed: 0.5)
    slow = [{**row, "shared": True, "growth_seconds": 99.0} for row in rows]
    assert curves.find_seconds(curves.group(rows + slow, False)) == curves.find_seconds(curves.group(rows, False))
    assert curves.find_seconds(curves.group(slow, False)) == {}


def test_report_with_seconds_from_another_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("matplotlib")
    networks, seconds = tmp_path / "wider-vgg19.jsonl", tmp_path / "seconds.jsonl"
    networks.write_text("".join(json.dumps(row) + "\n" for row in make_rows(lambda step, seed: 0.5)))
    mobile = clock("firefly", 2.0) | {"experiment": "wider-mobilenet"}
    seconds.write_text(json.dumps(clock("firefly", 2.0)) + "\n" + json.dumps(mobile) + "\n")
    assert main(["report", str(networks), str(seconds)]) == 0
    assert "compiled before" in (tmp_path / "wider-vgg19.svg").read_text()
    assert not (tmp_path / "wider-mobilenet.png").exists()
    assert main(["report", str(seconds)]) == 2
    assert "has no networks" in capsys.readouterr().err


@pytest.mark.parametrize("experiment", [wider.VGG19, wider.MOBILENET])
def test_the_sizes_are_within_reach(experiment: wider.Wider) -> None:
    """Every ladder begins above the start network and reaches the sizes that the issue of the experiment asks for."""
    make = getattr(wider.models, experiment.model)
    classes = 10 if experiment.dataset == "cifar10" else 100
    share = count(make(classes, widths=experiment.start)) / count(make(classes, widths="full"))
    for setting in experiment.settings.values():
        assert share < setting.sizes[0] and list(setting.sizes) == sorted(setting.sizes)
    assert experiment.settings["middle"].sizes[-1] >= 0.06
    assert experiment.report in experiment.settings["middle"].sizes


def test_help_teaches(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["reproduce", "wider-mobilenet", "--help"])
    told = capsys.readouterr().out
    assert "firefly reproduce wider-mobilenet --middle" in told and "goes on where it was stopped" in told


def test_missing_data_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["reproduce", "wider-vgg19", "--data", str(tmp_path)]) == 2
    assert "firefly data get cifar10" in capsys.readouterr().err


def test_too_few_images_are_refused_before_anything_is_trained(tmp_path: Path) -> None:
    args = Namespace(device="cpu", runs=tmp_path, out=None, minutes=None, shared=False, report=None)
    for images in (15, 16):
        setting = replace(SETTING, batch=8, images=images)
        ask = partial(options.make_world, "wider-vgg19", args, setting, lambda split: make_images(32, 0))
        if images < 16:
            with pytest.raises(FireflyError, match="15 training images make no batch of 16"):
                ask(lambda images, widths: make_net(widths), 4, ())
        else:
            assert len(ask(lambda images, widths: make_net(widths), 4, ()).train) == 16
