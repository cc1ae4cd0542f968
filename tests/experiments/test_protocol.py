"""The rules of the comparison: which images train, steer and measure a network, and for how long it is trained."""

from argparse import Namespace
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.optim.optimizer import register_optimizer_step_pre_hook

import firefly
from firefly import baselines
from firefly.experiments import options, wider
from firefly.experiments.deeper import line as deeper_line
from firefly.experiments.deeper.line import Deep, DeepLine, run_autogrow
from firefly.experiments.growers import METHODS
from firefly.experiments.lineage import Line, train_whole
from firefly.experiments.setting import Place, Setting, World
from firefly.vision.data import Images
from firefly.vision.models import blocks

TRAIN, TEST, BATCH = 96, 32, 16
SETTING = Setting(
    sizes=(0.2, 0.3), epochs=2, long=3, batch=BATCH, lr=0.01, weight_decay=0.0123, steps=2, candidates=4, child=3
)


def make_net(widths: Any) -> nn.Sequential:
    first, second = [16, 16] if widths == "full" else [widths] * 2 if isinstance(widths, int) else widths
    layers = [nn.Conv2d(3, first, 3, bias=False), nn.BatchNorm2d(first), nn.ReLU(), nn.Conv2d(first, second, 3)]
    return nn.Sequential(*layers, nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(second, 3))


def number_images(first: int, count: int) -> Images:
    """Images that are known by their brightness: of one colour, which is their number."""
    numbers = torch.arange(first, first + count)
    return Images(numbers.view(-1, 1, 1, 1).expand(-1, 3, 6, 6).to(torch.uint8), numbers % 3, 3, "cifar10")


def read_numbers(data: Images, inputs: Tensor) -> list[int]:
    """Which images these are, as a network gets them."""
    return ((inputs[:, 0, 0, 0] * data.std[0] + data.mean[0]) * 255).round().int().tolist()


def tell_apart(data: Images) -> set[int]:
    return set(data.images[:, 0, 0, 0].tolist())


@pytest.fixture
def world(tmp_path: Path) -> World:
    place = Place(torch.device("cpu"), tmp_path, tmp_path / "rows.jsonl", say=lambda text: None)
    parts = number_images(0, TRAIN), number_images(200, TEST), place
    return World("wider-vgg19", make_net, 4, *parts, report=(0.3,), augment=False)


@dataclass
class Watch:
    """Every step of SGD while a test runs; step one of a growth goes by Adam."""

    decays: list[float] = field(default_factory=list)
    momenta: list[float] = field(default_factory=list)  # the largest entry before the step

    def __call__(self, optimizer: torch.optim.Optimizer, *_: Any) -> None:
        if isinstance(optimizer, torch.optim.SGD):
            buffers = [state.get("momentum_buffer") for state in optimizer.state.values()]
            self.decays += [group["weight_decay"] for group in optimizer.param_groups]
            self.momenta.append(max((one.abs().max().item() for one in buffers if one is not None), default=0.0))


@pytest.fixture
def watch() -> Iterator[Watch]:
    watch = Watch()
    handle = register_optimizer_step_pre_hook(watch)
    yield watch
    handle.remove()


# ---- which images ----------------------------------------------------------------------------------------------------


class Witness(nn.Module):
    """A network that remembers the images it was shown, in either mode."""

    def __init__(self, data: Images) -> None:
        super().__init__()
        self.data, self.body = data, nn.Linear(3, 3)
        self.seen: dict[bool, list[int]] = {True: [], False: []}

    def forward(self, x: Tensor) -> Tensor:
        self.seen[self.training] += read_numbers(self.data, x)
        return self.body(x.mean((2, 3)))


class Guess(nn.Module):
    """A network that knows every label, or is always beside it."""

    def __init__(self, data: Images, beside: int) -> None:
        super().__init__()
        self.data, self.beside = data, beside

    def forward(self, x: Tensor) -> Tensor:
        labels = (torch.tensor(read_numbers(self.data, x)) + self.beside) % 3
        return nn.functional.one_hot(labels, 3).float()


@pytest.fixture
def nash(world: World, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """What NASH is told when it is its turn to grow a network."""
    told: dict[str, Any] = {}
    monkeypatch.setattr(baselines, "nash", lambda *_, **given: told.update(given))
    line = Line("nash", 0, SETTING, world, METHODS["nash"])
    model = line.make_start()
    METHODS["nash"](line, model, line.make_optimizer(model), firefly.Neurons(2), 1)
    return told


def test_nash_trains_its_children_on_some_images_and_judges_them_by_others(world: World, nash: dict[str, Any]) -> None:
    child = Witness(world.train)
    nash["tune"](child)
    assert not child.seen[False]
    nash["judge"](child)
    trained, judged = Counter(child.seen[True]), Counter(child.seen[False])
    assert len(judged) == TRAIN // 5 and set(judged.values()) == {1}
    assert trained.keys() | judged.keys() <= tell_apart(world.train)  # never a test image
    assert not trained.keys() & judged.keys()
    rest = TRAIN - TRAIN // 5
    assert trained.total() == SETTING.child * (rest // BATCH * BATCH) and max(trained.values()) <= SETTING.child


def test_nash_prefers_the_child_that_makes_fewer_mistakes(world: World, nash: dict[str, Any]) -> None:
    assert nash["judge"](Guess(world.train, 0)) < nash["judge"](Guess(world.train, 1))


def test_autogrow_is_steered_by_training_images_held_out(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    told: dict[str, Any] = {}

    class Enough(Exception):
        pass

    def fit(model: nn.Module, data: Images, *_: Any, test: Images, **__: Any) -> None:
        told.update(data=data, test=test)
        raise Enough

    monkeypatch.setattr(deeper_line, "fit", fit)
    grey = replace(world, make=lambda widths: blocks(3, widths, 3))
    with pytest.raises(Enough):
        run_autogrow(DeepLine("autogrow", 0, Deep(sizes=(1.0,), search=2), grey))
    trained, steered = tell_apart(told["data"]), tell_apart(told["test"])
    assert len(steered) == TRAIN // 5 and trained | steered == tell_apart(world.train)
    assert not trained & steered


@pytest.mark.parametrize("images", [None, 24])
def test_with_images_held_out_the_test_set_is_never_read(tmp_path: Path, images: int | None) -> None:
    read: list[str] = []

    def load(split: str) -> Images:
        read.append(split)
        return number_images(0, TRAIN) if split == "train" else number_images(200, TEST)

    nothing = dict.fromkeys(("device", "out", "report", "minutes"))
    args = Namespace(**(nothing | {"runs": tmp_path, "shared": False, "device": "cpu"}))
    setting = replace(SETTING, held_out=30, images=images, batch=8)
    found = options.make_world("wider-vgg19", args, setting, load, lambda data, widths: make_net(widths), 4, [0.3])
    assert read == ["train"]
    assert len(found.test) == min(30, images or 30) and tell_apart(found.test) <= tell_apart(load("train"))
    assert not tell_apart(found.test) & tell_apart(found.train)
    plain = options.make_world("x", args, SETTING, load, lambda data, widths: make_net(widths), 4, [0.3])
    assert tell_apart(plain.test) == tell_apart(load("test")) and len(plain.train) == TRAIN


def test_the_option_sets_images_apart() -> None:
    args = Namespace(size="middle", set=[], held_out=True, seeds=[0])
    assert options.choose(wider.VGG19.settings, args).held_out == 5000
    assert options.choose(wider.VGG19.settings, Namespace(**{**vars(args), "held_out": False})).held_out == 0


# ---- how long, and with what -----------------------------------------------------------------------------------------


def read_rows(world: World, method: str) -> list[dict[str, Any]]:
    return [row for row in options.read_rows(world.place.results) if row["method"] == method]


def test_grown_networks_are_trained_for_as_long_as_their_rows_say(world: World, watch: Watch) -> None:
    assert wider.measure(world, SETTING, "uniform", 0)
    rows = [*read_rows(world, "start"), *read_rows(world, "uniform")]
    assert [row["epochs"] for row in rows] == [2, 4, 6, 9]
    assert len(watch.decays) == rows[-1]["epochs"] * (TRAIN // BATCH)
    assert set(watch.decays) == {SETTING.weight_decay}


@pytest.mark.parametrize("method", ["full", "scratch"])
def test_networks_that_never_grow_are_trained_for_as_long_as_grown_ones(
    world: World, watch: Watch, method: str
) -> None:
    if method == "full":
        assert wider.measure(world, SETTING, "full", 0)
    else:
        train_whole(Line("scratch", 0, SETTING, world), [5, 6], 2)
    (row,) = read_rows(world, method)
    assert row["epochs"] == 9 and len(watch.decays) == 9 * (TRAIN // BATCH)
    assert set(watch.decays) == {SETTING.weight_decay}


@pytest.mark.parametrize("carry", [True, False])
def test_momentum_is_carried_into_the_next_round_if_asked(world: World, watch: Watch, carry: bool) -> None:
    assert wider.measure(replace(world, report=()), replace(SETTING, carry=carry), "uniform", 0)
    rounds = range(0, len(watch.momenta), SETTING.epochs * (TRAIN // BATCH))
    assert len(rounds) == 3
    assert [watch.momenta[first] > 0 for first in rounds] == [False, carry, carry]
    assert all(watch.momenta[first + 1] > 0 for first in rounds)
