"""Growing deeper: every method takes its steps, what was stopped goes on the same, the rows tell what a table needs."""

import json
import struct
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from stopping import Clock, move, timeless
from torch import nn

import firefly
from firefly.cli import find_experiment, main
from firefly.errors import FireflyError
from firefly.experiments import deeper, notes, options
from firefly.experiments.deeper.growers import METHODS, grow_deeper, offer, pick_evenly
from firefly.experiments.deeper.line import Deep, DeepLine, append_layer, list_blocks, name_structure
from firefly.experiments.options import read_rows
from firefly.experiments.rows import count
from firefly.experiments.setting import Place, World
from firefly.surgery.residual import find_layers
from firefly.vision.data import Images
from firefly.vision.models import ResidualLayer, blocks

SETTING = Deep(
    sizes=(0.45, 0.75), epochs=1, long=1, batch=16, lr=0.01, steps=2, candidates=4, child=1, split=0.1, new=0.1
)
SETTING = replace(SETTING, dormant=2, layers=2, hidden=2, neighbours=2, interval=1, patience=1, search=3)


def make_net(widths: Any) -> nn.Module:
    return blocks(3, [[6, 6, 6]] * 4 if widths == "full" else widths)


def make_images(number: int, seed: int, name: str = "mnist") -> Images:
    generator = torch.Generator().manual_seed(seed)
    labels, channels = torch.arange(number) % 3, 3 if name == "svhn" else 1
    images = torch.randint(0, 80, (number, channels, 16, 16), generator=generator) + labels[:, None, None, None] * 80
    return Images(images.to(torch.uint8), labels, 3, name)


def make_world(folder: Path, device: str = "cpu", name: str = "mnist") -> World:
    parts = [make_images(96, 0, name).to(device), make_images(32, 1, name).to(device)]
    place = Place(torch.device(device), folder / "runs", folder / "results.jsonl", say=lambda text: None)
    return World("deeper-mnist", make_net, 4, *parts, place, report=(0.75,))


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> World:
    """Everything measured, once."""
    world = make_world(tmp_path_factory.mktemp("deeper"))
    for method in ("firefly", "nash", "autogrow", "scratch", "fixed"):
        assert deeper.measure(world, SETTING, method, 0)
    return world


def read(world: World, method: str) -> list[dict[str, Any]]:
    return [row for row in read_rows(world.place.results) if row["method"] == method]


# ---- the network -----------------------------------------------------------------------------------------------------


def test_the_network_is_four_blocks_that_halve_the_map() -> None:
    model = blocks(widths=[[4, 2, 3], [5], [6, 1], [7]], classes=9, channels=3)
    shapes: list[Any] = []
    for block in model.features:  # type: ignore[union-attr]
        block.register_forward_hook(lambda block, _, out: shapes.append(tuple(out.shape[1:])))
    assert model(torch.randn(2, 3, 32, 32)).shape == (2, 9)
    assert shapes == [(4, 16, 16), (5, 8, 8), (6, 4, 4), (7, 2, 2)]
    assert list_blocks(model) == [[4, 2, 3], [5], [6, 1], [7]]
    assert count(blocks()) == 9 * 16 + 3 * 9 * 256 + 4 * 32 + 170
    assert [len(block) for block in list_blocks(blocks(widths="full"))] == [12] * 4


def test_a_deep_network_begins_as_a_shallow_one() -> None:
    torch.manual_seed(0)
    deep = blocks(widths=[[4, 4], [5, 5], [6, 6], [7, 7]])
    shallow = blocks(widths=[[4], [5], [6], [7]])
    shallow.load_state_dict({key: value for key, value in deep.state_dict().items() if key in shallow.state_dict()})
    images = torch.randn(2, 1, 32, 32)
    assert torch.equal(deep(images), shallow(images))


@pytest.mark.parametrize("widths", [0, "half", [[4]] * 3, [[4], [4], [], [4]], [[4], [4, 0], [4], [4]], [4, 4, 4, 4]])
def test_widths_that_make_no_network_are_refused(widths: Any) -> None:
    with pytest.raises(FireflyError, match=r"blocks: widths=.* each of 4 blocks"):
        blocks(widths=widths)


def test_a_layer_of_the_network_is_what_deepen_makes() -> None:
    example = torch.randn(2, 1, 16, 16)
    model = make_net(4)
    names = firefly.deepen(model, example, count=2)
    assert names == [f"features.{block}.2.deeper.{k}" for block in range(4) for k in range(2)]
    dormant, layer = model.get_submodule(names[0]), ResidualLayer(4, 3)
    assert {name for name, _ in layer.named_parameters()} == {name for name, _ in dormant.named_parameters()}
    assert list_blocks(model) == [[4]] * 4 and count(model) == count(make_net(4))


# ---- the lines -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", METHODS)
def test_a_line_grows_wider_and_deeper(world: World, method: str) -> None:
    rows = read(world, method)
    assert [(row["step"], row["final"]) for row in rows] == [(1, False), (2, False), (2, True)]
    assert rows[1]["widths"] == rows[2]["widths"] and [row["epochs"] for row in rows] == [2, 3, 4]
    for row in rows:
        assert row["parameters"] == count(make_net(row["widths"])) <= SETTING.sizes[row["step"] - 1] * world.full
        assert row["parameters"] > 0.8 * SETTING.sizes[row["step"] - 1] * world.full
        assert row["structure"] == "-".join(str(len(block)) for block in row["widths"])
    assert rows[2]["flops"] == firefly.trace(make_net(rows[2]["widths"]), torch.zeros(2, 1, 16, 16)).flops()
    layers = [sum(len(block) for block in row["widths"]) for row in rows]
    assert 4 < layers[0] < layers[1] <= 12
    assert sum(block[0] for block in rows[1]["widths"]) > 16
    assert rows[0]["search_epochs"] == (2 if method == "nash" else 0) and rows[0]["growth_seconds"] > 0


def test_firefly_wakes_no_more_layers_than_it_may(world: World) -> None:
    first, second, _ = (sum(len(block) for block in row["widths"]) for row in read(world, "firefly"))
    assert first <= 4 + SETTING.layers and second <= first + SETTING.layers
    for row in read(world, "firefly"):
        assert all(size >= 2 for block in row["widths"] for size in block[1:])


def test_nash_puts_a_layer_into_every_block(world: World) -> None:
    assert [row["structure"] for row in read(world, "nash")] == ["2-2-2-2", "3-3-3-3", "3-3-3-3"]
    assert all(size >= SETTING.hidden for row in read(world, "nash") for block in row["widths"] for size in block)


def test_methods_share_their_start(world: World) -> None:
    assert len(read(world, "start")) == 1
    before = [read(world, method)[0]["test_loss_grown"][0] for method in METHODS]
    assert before[0] == before[1]


def test_networks_that_do_not_grow(world: World) -> None:
    (scratch,), (fixed,), grown = read(world, "scratch"), read(world, "fixed"), read(world, "firefly")[-1]
    for key in ("widths", "structure", "parameters", "flops", "epochs"):
        assert scratch[key] == grown[key], key
    assert fixed["structure"] == "3-3-3-3" and fixed["share"] == 1 and fixed["epochs"] == grown["epochs"]
    assert scratch["final"] and fixed["final"]


def test_autogrow_ends_with_the_depth_it_found(world: World) -> None:
    (row,) = read(world, "autogrow")
    assert [block[0] for block in row["widths"]] == [16, 32, 64, 128]
    assert all(size == block[0] for block in row["widths"] for size in block)
    assert 1 <= row["search"] <= SETTING.search and row["epochs"] == row["search"] + SETTING.long
    assert sum(len(block) - 1 for block in row["widths"]) == row["search"] - 1  # the last epoch appends nothing
    assert row["final"] and row["parameters"] == count(make_net(row["widths"]))


def test_rows_are_complete(world: World) -> None:
    rows = read_rows(world.place.results)
    keys = ("experiment", "method", "dataset", "seed", "step", "final", "parameters", "flops", "structure", "widths")
    for row in rows:
        assert all(key in row for key in (*keys, "test_accuracy", "epochs", "train_seconds", "device", "config"))
        assert row["experiment"] == "deeper-mnist" and row["config"]["dormant"] == 2 and 0 <= row["test_accuracy"] <= 1
        assert len(row["widths"]) == 4 and name_structure(row["widths"]) == row["structure"]


def test_what_is_done_is_not_done_again(world: World) -> None:
    before = world.place.results.read_text()
    for method in ("firefly", "nash", "autogrow", "scratch", "fixed"):
        assert deeper.measure(world, SETTING, method, 0)
    assert world.place.results.read_text() == before


def test_what_was_stopped_goes_on_the_same(world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    other = make_world(tmp_path)
    stops = 0
    monkeypatch.setattr(notes, "time", Clock())
    while not deeper.measure(move(other, deadline=notes.time.monotonic() + 2.5), SETTING, "firefly", 0):
        stops += 1
    assert stops == 2  # one step at a time: two rounds and the long training
    assert [timeless(row) for row in read(other, "firefly")] == [timeless(row) for row in read(world, "firefly")]


def test_autogrow_goes_on_where_it_was_stopped(world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    other = make_world(tmp_path)
    calls: list[int] = []

    def interrupt(model: nn.Module, optimizer: Any, stage: int) -> None:
        calls.append(stage)
        if len(calls) == 2:
            raise KeyboardInterrupt
        append_layer(model, optimizer, stage)

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr("firefly.experiments.deeper.line.append_layer", interrupt)
        deeper.measure(other, SETTING, "autogrow", 0)
    assert calls == [0, 1] and not other.place.results.exists()
    assert deeper.measure(other, SETTING, "autogrow", 0)
    (again,), (whole,) = read(other, "autogrow"), read(world, "autogrow")
    assert timeless(again) == timeless(whole)


def test_scratch_needs_what_firefly_found(tmp_path: Path) -> None:
    with pytest.raises(FireflyError, match="--methods firefly --seeds 7 first"):
        deeper.measure(make_world(tmp_path), SETTING, "scratch", 7)


@pytest.mark.parametrize(("name", "mirrored"), [("mnist", False), ("fashion-mnist", True), ("svhn", False)])
def test_digits_are_never_mirrored(tmp_path: Path, name: str, mirrored: bool) -> None:
    world = replace(make_world(tmp_path, name=name), augment=deeper.AUGMENT[name])
    batches = DeepLine("firefly", 0, SETTING, world).batches(1)
    assert batches.data.flip == mirrored and batches.data.pad == 4


# ---- growth ----------------------------------------------------------------------------------------------------------


def test_new_layers_and_wider_ones_share_a_budget(tmp_path: Path) -> None:
    line = DeepLine("firefly", 0, replace(SETTING, layers=1), make_world(tmp_path))
    model = line.make_start()
    optimizer = line.make_optimizer(model)
    before = count(model)
    budget = firefly.Parameters(400)
    growth = grow_deeper(line, model, optimizer, budget, 1).growth
    assert len(growth.woken) <= 1 and len(find_layers(model)) == 8
    assert before < growth.parameters[1] == count(model) <= before + 400
    assert growth.spent["parameters"][1] == 400


def test_widths_can_be_multiples(tmp_path: Path) -> None:
    line = DeepLine("firefly", 0, replace(SETTING, multiple=2), make_world(tmp_path))
    model = line.make_start()
    growth = grow_deeper(line, model, line.make_optimizer(model), line.budget(1, count(model)), 1).growth
    assert growth.woken and growth.parameters[1] == count(model) <= SETTING.sizes[0] * line.world.full
    assert all(size % 2 == 0 for block in list_blocks(model) for size in block)


def test_how_many_stand_for_election() -> None:
    model = make_net(4)
    firefly.deepen(model, torch.randn(2, 1, 16, 16), count=3)
    anatomy = firefly.trace(model, torch.randn(2, 1, 16, 16))
    assert offer(anatomy, 1) == [f"features.{block}.2.deeper.1" for block in range(4)]
    assert len(offer(anatomy, 0)) == len(offer(anatomy, 9)) == 12
    names = list("abcdefghijk")
    assert pick_evenly(names, 1) == ["f"] and pick_evenly(names, 3) == ["b", "f", "j"]
    assert pick_evenly(names, 11) == names


def test_a_size_that_is_reached_already_is_refused(tmp_path: Path) -> None:
    line = DeepLine("firefly", 0, SETTING, make_world(tmp_path))
    with pytest.raises(FireflyError, match="no more than it has already"):
        line.budget(1, line.world.full)


# ---- the command -----------------------------------------------------------------------------------------------------


def write_mnist(root: Path, number: int) -> None:
    for split, seed in (("train", 0), ("t10k", 1)):
        images = make_images(number, seed).images.numpy()[:, 0]
        images = np.pad(images, ((0, 0), (6, 6), (6, 6)))
        folder = root / "MNIST" / "raw"
        folder.mkdir(parents=True, exist_ok=True)
        for name, values in (("images-idx3", images), ("labels-idx1", np.arange(number, dtype=np.uint8) % 3)):
            head = bytes([0, 0, 8, values.ndim]) + struct.pack(f">{values.ndim}I", *values.shape)
            (folder / f"{split}-{name}-ubyte").write_bytes(head + values.tobytes())


def write_svhn(root: Path, number: int) -> None:
    root.mkdir(parents=True, exist_ok=True)
    for split in ("train", "test"):
        labels = np.arange(number, dtype=np.uint8)[:, None] % 10 + 1
        pixels = np.random.default_rng(0).integers(0, 256, (32, 32, 3, number), dtype=np.uint8)
        header = b"MATLAB 5.0 MAT-file".ljust(124) + struct.pack("<H", 0x0100) + b"IM"
        (root / f"{split}_32x32.mat").write_bytes(header + pack_array("X", pixels) + pack_array("y", labels))


def pack_array(name: str, values: np.ndarray) -> bytes:
    def pack(kind: int, content: bytes) -> bytes:
        return struct.pack("<II", kind, len(content)) + content + b"\0" * (-len(content) % 8)

    shape = struct.pack(f"<{values.ndim}i", *values.shape)
    parts = pack(6, struct.pack("<II", 9, 0)), pack(5, shape), pack(1, name.encode()), pack(2, values.tobytes("F"))
    return pack(14, b"".join(parts))


TINY = ["epochs=1", "long=1", "batch=16", "images=64", "search=2", "dormant=1", "hidden=2", "steps=2"]


@pytest.mark.parametrize(("dataset", "write"), [("mnist", write_mnist), ("svhn", write_svhn)])
def test_the_command_measures_and_reports(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], dataset: str, write: Callable[[Path, int], None]
) -> None:
    write(tmp_path / "data", 80)
    words = ["reproduce", "deeper", "--dataset", dataset, "--data", str(tmp_path / "data"), "--device", "cpu"]
    words += ["--runs", str(tmp_path / "runs"), "--methods", "autogrow", "--held-out", "--set", "held_out=16", *TINY]
    assert main(words) == 0
    said = capsys.readouterr().out
    assert "autogrow 0, step 0 long: " in said and "Firefly, as published" in said
    rows = read_rows(tmp_path / "runs" / "results.jsonl")
    assert rows[0]["experiment"] == f"deeper-{dataset}" and 0 <= rows[0]["held_accuracy"] <= 1
    assert rows[0]["dataset"] == dataset and "test_accuracy" not in rows[0]
    assert main(["report", str(tmp_path / "runs" / "results.jsonl"), "--out", str(tmp_path)]) == 0
    assert (tmp_path / f"deeper-{dataset}.png").exists()


def test_small_images_get_a_frame(tmp_path: Path) -> None:
    write_mnist(tmp_path, 5)
    images = deeper.load("mnist", tmp_path, "train").images
    assert images.shape == (5, 1, 32, 32) and not images[:, :, :2].any() and images[:, :, 8:24, 8:24].any()


def test_settings_can_be_changed() -> None:
    setting = options.change(deeper.SETTINGS["middle"], ["offer=1", "sizes=[0.1,0.2]", "budget=neurons"])
    assert (setting.offer, setting.sizes, setting.budget) == (1, (0.1, 0.2), "neurons")
    with pytest.raises(FireflyError, match=r"--set depth=3: .*dormant"):
        options.change(setting, ["depth=3"])


def test_the_sizes_ascend_and_end_below_the_published() -> None:
    for setting in deeper.SETTINGS.values():
        assert list(setting.sizes) == sorted(set(setting.sizes))
        assert setting.sizes[-1] * count(blocks(widths="full")) < 1.9e6


def test_the_table(world: World) -> None:
    rows = read_rows(world.place.results)
    again = [row | {"seed": 1, "test_accuracy": 1.0, "structure": "9-9-9-9"} for row in rows if row["final"]]
    text = deeper.table(rows + again)
    grown = read(world, "firefly")[-1]
    line = next(line for line in text.splitlines() if line.startswith("Firefly "))
    assert f"{grown['parameters']:,}" in line and "(2)" in line and f"{50 + 50 * grown['test_accuracy']:.2f} ±" in line
    assert "99.59" in text and "NASH, as published" in text
    short = deeper.table([row for row in rows if not row["final"]])
    assert grown["structure"] in short  # without long trainings: after the last growth
    assert deeper.table([]) == "nothing measured yet"


def test_every_data_set_has_its_own_name() -> None:
    for name in deeper.DATASETS:
        assert find_experiment(f"deeper-{name}").dataset == name
    assert set(deeper.PUBLISHED) == set(deeper.DATASETS)
    json.dumps(options.plain(deeper.SETTINGS["paper"]))


@pytest.mark.gpu
def test_on_a_gpu(tmp_path: Path) -> None:
    world = make_world(tmp_path, "cuda")
    for method in ("firefly", "nash", "autogrow", "scratch"):
        assert deeper.measure(world, SETTING, method, 0)
    assert all(row["parameters"] == count(make_net(row["widths"])) for row in read_rows(world.place.results))
