"""Growing deeper (Sec. 2.3, App. B.2): dormant layers change nothing, and a growth wakes the best of them."""

import copy
import pickle
import re
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

import firefly
from firefly import report
from firefly.neighborhood.overgrown import OverGrown
from firefly.stages.budget import Budget
from firefly.stages.selection import select
from firefly.surgery.residual import Residual, apply_layers, find_layers
from laws import (
    assert_close,
    assert_epsilon_zero_preserves,
    assert_grown_is_overgrown,
    assert_optimizer_fits,
    assert_untouched,
    equal_trees,
    grow,
    grow_blindly,
    in_double,
    loss_on,
    make_ballot,
    run,
    snapshot,
    train,
)
from zoo import ZOO, Entry

PLACES = {
    "mlp": ["1", "3"],
    "vgg": ["features.2", "features.6", "features.9"],
    "resnet": ["stem.2", "layer1.0", "layer2.0", "layer2.1"],
    "vit": ["patch", "blocks.0", "blocks.1"],
    "gpt": ["blocks.0", "blocks.1"],
    "conv1d": ["2", "6"],
}
some = pytest.mark.parametrize("name", PLACES)


def make_deep(entry: Entry, **options: Any) -> nn.Module:
    model = entry.make()
    firefly.deepen(model, entry.example(), **options)
    return model


def wake(model: nn.Module, entry: Entry, count: int = 4, **options: Any) -> firefly.Growth:
    """A growth of nothing but the dormant layers."""
    given = {"anatomy": None, "widths": lambda width: width.dormant, "budget": firefly.Neurons(count)} | options
    return grow(model, entry, **given)


# ---- dormant ---------------------------------------------------------------------------------------------------------


@some
def test_dormant_layers_change_nothing(name: str) -> None:
    entry = ZOO[name]
    plain, model = entry.make(), entry.make()
    state = torch.get_rng_state()
    names = firefly.deepen(model, entry.example(), count=2)
    assert names == [f"{place}.deeper.{k}" for place in PLACES[name] for k in range(2)]
    assert torch.equal(torch.get_rng_state(), state)
    assert sum(p.numel() for p in model.parameters()) == sum(p.numel() for p in plain.parameters())
    for training in (True, False):
        for a, b in zip(run(plain, entry.example(), training), run(model, entry.example(), training), strict=True):
            assert torch.equal(a, b)
    entry.loss(plain, entry.batches()[0]).backward()
    entry.loss(model, entry.batches()[0]).backward()
    for key, parameter in plain.named_parameters():
        assert torch.equal(parameter.grad, model.get_parameter(key).grad)  # type: ignore[arg-type]
    for key, buffer in plain.named_buffers():
        assert torch.equal(buffer, model.get_buffer(key))
    assert all(p.grad is None for layer in find_layers(model).values() for p in layer.parameters())


def test_the_anatomy_shows_them() -> None:
    entry = ZOO["resnet"]
    plain, model = firefly.trace(entry.make(), entry.example()), make_deep(entry)
    anatomy = firefly.trace(model, entry.example())
    dormant = [f"{place}.deeper.0" for place in PLACES["resnet"]]
    assert [width.name for width in anatomy if width.dormant] == dormant
    assert {width.name: width.size for width in anatomy if not width.dormant} == plain.sizes()
    assert (anatomy.parameters(), anatomy.flops()) == (plain.parameters(), plain.flops())
    assert "dormant layer" in str(anatomy) and "4 dormant layers" in str(anatomy)
    assert all(layer.dormant and layer.make.out_channels == 0 for layer in find_layers(model).values())
    assert not any(width.pinned for width in anatomy if width.dormant)


def test_a_frozen_layer_stays_asleep() -> None:
    entry = ZOO["mlp"]
    model = make_deep(entry)
    model.get_submodule("1.deeper").requires_grad_(False)
    anatomy = firefly.trace(model, entry.example())
    assert [width.name for width in anatomy if width.dormant] == ["3.deeper.0"]
    assert wake(model, entry).woken == ["3.deeper.0"]


def test_copies_and_exports_compute_the_same() -> None:
    entry = ZOO["mlp"]
    model = make_deep(entry).eval()
    wake(model, entry, budget=firefly.Neurons(4) & firefly.Layers(1))
    expected = run(model, entry.example())
    for other in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        assert all(torch.equal(a, b) for a, b in zip(run(other, entry.example()), expected))
        assert sum(hook is apply_layers for m in other.modules() for hook in m._forward_hooks.values()) == 2
        assert not {id(p) for p in other.parameters()} & {id(p) for p in model.parameters()}
    for strict in (True, False):
        exported = torch.export.export(model, entry.example(), strict=strict).module()
        assert_close([exported(*entry.example())], expected, 1e-6)


def test_a_state_dict_comes_back() -> None:
    entry = ZOO["vgg"]
    model, other = make_deep(entry), make_deep(entry)
    train(model, entry, torch.optim.SGD(model.parameters(), lr=0.1), 2)
    other.load_state_dict(model.state_dict())
    assert equal_trees(other.state_dict(), model.state_dict())


def test_a_layer_that_cannot_grow_is_pinned_and_left_asleep() -> None:
    entry = ZOO["mlp"]
    model = make_deep(entry)

    def refuse(layer: Residual, _: Any) -> None:
        if layer.make.weight.shape[0] > 3:
            raise ValueError("three are enough")

    model.get_submodule("1.deeper.0").register_forward_pre_hook(refuse)  # type: ignore[arg-type]
    anatomy = firefly.trace(model, entry.example())
    assert "three are enough" in str(anatomy["1.deeper.0"].pinned) and anatomy["3.deeper.0"].pinned is None
    assert anatomy.parameters() == sum(p.numel() for p in model.parameters())
    assert {"0", "2", "3.deeper.0"} == {width.name for width in anatomy.growable()}
    assert grow_blindly(model, entry, anatomy=anatomy, budget=firefly.Neurons(30)).growth.woken == ["3.deeper.0"]
    model = Odd()
    firefly.deepen(model, torch.randn(3, 6), "second")
    model.second = nn.Sequential(nn.Identity(), model.second)  # type: ignore[assignment]
    model.second.forward = lambda x: x  # type: ignore[method-assign, assignment]
    assert not any(width.dormant for width in firefly.trace(model, torch.randn(3, 6)))  # it is never called


def test_memory_formats_are_kept() -> None:
    entry = ZOO["vgg"]
    model: nn.Module = make_deep(entry).to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    growth = wake(model, entry)
    weight = find_layers(model)[growth.woken[0]].make.weight
    assert weight.is_contiguous(memory_format=torch.channels_last) and not weight.is_contiguous()


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # torch's own
def test_a_compiled_model_goes_on() -> None:
    entry = ZOO["vgg"]
    model = make_deep(entry).eval()
    assert_close([torch.compile(model)(*entry.example())], run(model, entry.example()), 1e-5)
    wake(model, entry)
    assert_close([torch.compile(model)(*entry.example())], run(model, entry.example()), 1e-5)


# ---- places ----------------------------------------------------------------------------------------------------------


class Odd(nn.Module):
    """Places where no layer fits, and some where one does."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.relu = nn.Linear(6, 5), nn.Linear(5, 5), nn.ReLU()
        self.pair, self.list = Pair(), Iterating(nn.Linear(5, 5), nn.Tanh())
        self.named = Named()
        self.unused, self.head = nn.Linear(5, 5), nn.Sequential(nn.Linear(5, 4), nn.Linear(4, 3))

    def forward(self, x: Tensor) -> Tensor:
        x = self.relu(self.second(self.relu(self.first(x))))
        return self.head(self.list(self.named(self.pair(x)[0])))


class Named(nn.Module):
    deeper = True

    def forward(self, x: Tensor) -> Tensor:
        return 2 * x


class Pair(nn.Module):
    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return x, -x


class Iterating(nn.Module):
    def __init__(self, *layers: nn.Module) -> None:
        super().__init__()
        for k, layer in enumerate(layers):
            self.add_module(f"layer{k}", layer)

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.children():
            x = layer(x) if isinstance(layer, (nn.Linear, nn.Tanh)) else layer[0](x)  # type: ignore[index]
        return x


def test_sites_by_name_and_type() -> None:
    x = torch.randn(3, 6)
    assert firefly.deepen(Odd(), x) == ["first.deeper.0", "second.deeper.0", "list.layer1.deeper.0", "head.0.deeper.0"]
    assert firefly.deepen(Odd(), x, "second", count=2) == ["second.deeper.0", "second.deeper.1"]
    assert firefly.deepen(Odd(), x, ["first", nn.Tanh]) == ["first.deeper.0", "list.layer1.deeper.0"]
    model = nn.Sequential(nn.Sequential(nn.Linear(6, 5), nn.ReLU()), nn.Linear(5, 3))
    assert firefly.deepen(model, x, "0") == ["0.1.deeper.0"]  # a Sequential must get no children
    assert firefly.deepen(model, x, "0.1") == ["0.1.deeper.1"]  # one more in the same place
    assert len(model) == 2 and len(model[0]) == 2
    assert firefly.deepen(ZOO["resnet"].make(), ZOO["resnet"].example(), nn.BatchNorm2d)[:2] == [
        "stem.1.deeper.0",
        "layer1.0.bn1.deeper.0",
    ]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"sites": "third"}, "no module 'third'"),
        ({"sites": ["relu"]}, "'relu': it is called 2 times"),
        ({"sites": ["first", "pair"]}, "'pair': its output is not one tensor"),
        ({"sites": "head"}, "'head.1': no layer reads what it returns"),
        ({"sites": "unused"}, "'unused' is not called"),
        ({"sites": "named"}, "'named': it has an attribute 'deeper'"),
        ({"sites": "list"}, "'list': its forward calls its children itself"),
        ({"sites": nn.Conv2d}, "no Conv2d"),
        ({"count": 0}, "count=0"),
        ({"kernel": 2}, "kernel=2"),
        ({"activation": torch.relu}, "give a module class"),
    ],
)
def test_errors_name_the_place_and_leave_the_model(options: dict[str, Any], message: str) -> None:
    model = Odd()
    before = [name for name, _ in model.named_modules()]
    with pytest.raises(firefly.FireflyError, match=message):
        firefly.deepen(model, torch.randn(3, 6), **options)
    assert [name for name, _ in model.named_modules()] == before
    assert not any(module._forward_hooks for module in model.modules())


def test_what_a_layer_is_made_of() -> None:
    entry = ZOO["vgg"]
    model = make_deep(entry, kernel=5, activation=nn.GELU, norm=False)
    layer = model.get_submodule("features.2.deeper.0")
    assert isinstance(layer, Residual) and layer.make.kernel_size == (5, 5) and isinstance(layer.activation, nn.GELU)
    assert isinstance(layer.norm, nn.Identity)
    assert isinstance(make_deep(entry).get_submodule("features.2.deeper.0").norm, nn.BatchNorm2d)
    assert isinstance(make_deep(ZOO["conv_flatten"]).get_submodule("conv.deeper.0").norm, nn.Identity)
    assert wake(model, entry).woken


# ---- the laws --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["mlp", "resnet", "vit"])
def test_laws_hold_where_layers_wake_and_streams_grow(name: str) -> None:
    entry = in_double(ZOO[name])
    model = make_deep(entry).eval()
    anatomy, example = firefly.trace(model, entry.example()), entry.example()
    widths, expected = [width.name for width in anatomy.growable()], run(model, entry.example())
    for fold in (True, False):
        generator = torch.Generator().manual_seed(0)
        over = OverGrown(model, anatomy, widths, [firefly.Split(), firefly.New(4)], generator, fold=fold)
        assert all(scale.isfinite().all() and (scale > 0).all() for scale in over.scale.values())
        assert all(scale.isfinite() and scale > 0 for scale in over.reader_scale.values())
        assert_epsilon_zero_preserves(over, example, expected, 1e-12)
    blind = grow_blindly(model, entry, anatomy=anatomy, budget=firefly.Neurons(40))
    assert blind.growth.woken and any(not anatomy[name].dormant for name in blind.growth.added)
    assert_grown_is_overgrown(model, blind, example, 1e-12)
    again = firefly.trace(model, example)
    assert {n: after for n, (_, after) in blind.growth.widths.items()} == {w.name: w.size for w in again.growable()}
    assert blind.growth.parameters == (anatomy.parameters(), sum(p.numel() for p in model.parameters()))


def test_flops_count_the_new_layers() -> None:
    entry = ZOO["vgg"]
    model = make_deep(entry)
    growth = wake(model, entry, 6)
    with FlopCounterMode(display=False) as counter:
        model(*entry.example())
    assert growth.flops[1] == counter.get_total_flops() // len(entry.example()[0]) > growth.flops[0]


def test_newborn_norms_know_the_data() -> None:
    entry = ZOO["vgg"]
    model = make_deep(entry)
    assert model.training
    growth = wake(model, entry)
    norm: Any = model.get_submodule(f"{growth.woken[0]}.norm")
    assert norm.running_mean.abs().min() > 0 and (norm.running_var - 1).abs().min() > 1e-4
    before = run(model, entry.example())
    model.train()
    train(model, entry, torch.optim.SGD(model.parameters(), lr=0.0), 20)  # the running averages settle
    assert_close(run(model, entry.example()), before, 0.3)


# ---- waking ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["vgg", "mlp"])
def test_a_woken_layer_learns_and_is_an_ordinary_width(name: str) -> None:
    entry = ZOO[name]
    model = make_deep(entry)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    growth = wake(model, entry, 6, optimizer=optimizer, steps=20)
    assert growth.woken and growth.loss_after < growth.loss_before
    assert_optimizer_fits(model, optimizer)
    old = {path: layer.make.weight.clone() for path, layer in find_layers(model).items() if not layer.dormant}
    before = loss_on(model, entry)
    train(model, entry, optimizer, 12)
    assert loss_on(model, entry) < before
    assert all(not torch.equal(find_layers(model)[path].make.weight, weight) for path, weight in old.items())
    options = {"anatomy": None, "widths": growth.woken, "neighborhood": [firefly.Split()], "optimizer": optimizer}
    again = grow_blindly(model, entry, **options).growth
    assert again.neurons and not again.woken and all(set(kinds) == {"split"} for kinds in again.added.values())
    assert find_layers(model)[growth.woken[0]].make.weight.shape[0] == again.widths[growth.woken[0]][1]


def test_splitting_alone_wakes_nothing() -> None:
    entry = ZOO["mlp"]
    growth = grow_blindly(make_deep(entry), entry, anatomy=None, neighborhood=[firefly.Split()]).growth
    assert growth.neurons and not growth.woken
    with pytest.raises(firefly.FireflyError, match=r"firefly\.New"):
        wake(make_deep(entry), entry, neighborhood=[firefly.Split()])


def test_budgets_hold_together() -> None:
    entry = ZOO["mlp"]
    model = make_deep(entry, count=2)
    anatomy = firefly.trace(model, entry.example())
    for layers in (0, 1, 2):
        budget = firefly.Neurons(9) & firefly.Layers(layers)
        growth = wake(copy.deepcopy(model), entry, budget=budget, anatomy=anatomy)
        assert len(growth.woken) == layers and growth.neurons <= 9
        assert growth.spent["layers"] == (layers, layers)
    growth = wake(model, entry, budget=firefly.Parameters(200) & firefly.Layers(3), anatomy=anatomy)
    added = sum(p.numel() for p in model.parameters()) - growth.parameters[0]
    assert growth.woken and growth.spent["parameters"][0] == added <= 200
    with pytest.raises(firefly.FireflyError, match="Layers"):
        firefly.Layers(-1)


@cache
def trace_deep_mlp() -> firefly.Anatomy:
    return firefly.trace(make_deep(ZOO["mlp"]), ZOO["mlp"].example())


def choose(gains: dict[str, list[float]], budget: Budget) -> dict[str, list[int]]:
    """Who of the new candidates is chosen; widths "1.deeper.0" and "3.deeper.0" are dormant, "0" is not."""
    anatomy = trace_deep_mlp()
    whole = {name: torch.tensor([0.0] * anatomy[name].size + values) for name, values in gains.items()}
    chosen = select(make_ballot(anatomy, whole, budget))
    return {name: (numbers - anatomy[name].size).tolist() for name, numbers in chosen.slots.items()}


def test_a_layer_needs_two_neurons() -> None:
    lonely = {"0": [5.0, 4.0, 1.0], "1.deeper.0": [9.0, 0.5], "3.deeper.0": [3.0, 2.0]}
    assert choose(lonely, firefly.Neurons(3)) == {"0": [0, 1, 2]}  # 9 is given back, and then 3
    assert choose(lonely, firefly.Neurons(5)) == {"0": [0, 1, 2], "3.deeper.0": [0, 1]}  # 1 instead of 9
    assert choose(lonely, firefly.Neurons(7)) == {name: list(range(len(gain))) for name, gain in lonely.items()}
    assert choose(lonely, firefly.Neurons(9) & firefly.Layers(1)) == {"0": [0, 1, 2], "1.deeper.0": [0, 1]}
    assert choose(lonely, firefly.Neurons(4) & firefly.Layers(1)) == {"0": [0, 1], "3.deeper.0": [0, 1]}
    weakest_first = {"0": [5.0, 4.0], "1.deeper.0": [9.0, 2.5], "3.deeper.0": [3.0, 2.8]}
    assert choose(weakest_first, firefly.Neurons(4)) == {"0": [0, 1], "1.deeper.0": [0, 1]}
    assert choose({"1.deeper.0": [9.0, -1.0], "0": [1.0]}, firefly.Neurons(9)) == {"0": [0]}


# ---- the optimiser ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["sgd", "adam", "adagrad"])
@pytest.mark.parametrize("when", ["before", "given", "never"])
def test_the_optimizer_follows(kind: str, when: str) -> None:
    entry = ZOO["mlp"]
    model = entry.make()
    make: Any = {
        "sgd": lambda p: torch.optim.SGD(p, lr=0.05, momentum=0.9),
        "adam": lambda p: torch.optim.Adam(p, lr=0.01),
        "adagrad": lambda p: torch.optim.Adagrad(p, lr=0.05),
    }[kind]
    first = list(model.parameters())[:1]
    groups = [{"params": first, "weight_decay": 0.1}, {"params": list(model.parameters())[1:]}]
    if when == "before":
        firefly.deepen(model, entry.example())
        groups[1] = {"params": list(model.parameters())[1:]}
    optimizer = make(groups)
    if when != "before":
        firefly.deepen(model, entry.example(), optimizer=optimizer if when == "given" else None)
    train(model, entry, optimizer, 3)
    average = torch.optim.swa_utils.AveragedModel(model)
    growth = wake(model, entry, 6, optimizer=optimizer, also=[average])
    awake = {n for n, layer in find_layers(model).items() if not layer.dormant}
    members = {id(p) for p in optimizer.param_groups[1]["params"]}
    assert set(growth.woken) == awake and len(optimizer.param_groups[0]["params"]) == 1
    assert all(id(p) in members for path in awake for p in model.get_submodule(path).parameters())
    assert not members & {id(p) for p in average.parameters()}
    before = loss_on(model, entry)
    train(model, entry, optimizer, 12)
    assert loss_on(model, entry) < before
    if growth.woken == list(find_layers(model)):
        assert_optimizer_fits(model, optimizer)


def test_a_state_of_nothing_grows_into_a_fresh_one() -> None:
    """A penalty on all parameters gives the dormant ones gradients, and so Adam a state without elements."""
    entry = ZOO["mlp"]
    model = make_deep(entry)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    for batch in entry.batches():
        optimizer.zero_grad()
        (entry.loss(model, batch) + 1e-3 * sum(p.square().sum() for p in model.parameters())).backward()
        optimizer.step()
    assert optimizer.state[model.get_parameter("1.deeper.0.make.weight")]
    wake(model, entry, optimizer=optimizer)
    train(model, entry, optimizer, 3)
    assert all(p.isfinite().all() for p in model.parameters())


# ---- checkpoints -----------------------------------------------------------------------------------------------------


FRESH = """
import sys, torch, firefly
sys.path.insert(0, {tests!r})
torch.set_num_threads(1)
from zoo import ZOO
model = firefly.load({folder!r}, model=ZOO["vgg"].make()).eval()
torch.save([model(*ZOO["vgg"].example()), dict(model.state_dict())], {folder!r} + "/after.pt")
"""


def test_load_rebuilds_the_layers(tmp_path: Path) -> None:
    entry = ZOO["vgg"]
    model = make_deep(entry, count=2)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    train(model, entry, optimizer, 2)
    growth = grow(model, entry, anatomy=None, budget=firefly.Neurons(25), optimizer=optimizer)
    assert growth.woken and len(growth.woken) < 6
    train(model, entry, optimizer, 2)
    firefly.save(tmp_path, model, optimizer=optimizer)
    code = FRESH.format(tests=str(Path(__file__).parent), folder=str(tmp_path))
    subprocess.run([sys.executable, "-W", "ignore", "-c", code], check=True)
    found = torch.load(tmp_path / "after.pt")
    assert equal_trees(found, [run(model, entry.example())[0], dict(model.state_dict())])
    fresh = entry.make()
    other = torch.optim.Adam(fresh.parameters(), lr=0.01)  # made before the layers are there
    firefly.load(tmp_path, model=fresh, optimizer=other)
    train(model, entry, optimizer, 2)
    train(fresh, entry, other, 2)
    assert equal_trees(dict(fresh.state_dict()), dict(model.state_dict()))
    assert_optimizer_fits(fresh, other)


def test_a_refused_checkpoint_leaves_the_model_as_it_was(tmp_path: Path) -> None:
    entry = ZOO["mlp"]
    model = make_deep(entry)
    wake(model, entry)
    firefly.save(tmp_path, model, optimizer=torch.optim.Adam(model.parameters()))
    fresh = entry.make()
    optimizer = torch.optim.SGD(fresh.parameters(), lr=0.1)
    before = [name for name, _ in fresh.named_modules()], [id(p) for p in optimizer.param_groups[0]["params"]]
    with pytest.raises(firefly.FireflyError, match="Adam"):
        firefly.load(tmp_path, model=fresh, optimizer=optimizer)
    assert before == ([n for n, _ in fresh.named_modules()], [id(p) for p in optimizer.param_groups[0]["params"]])
    assert not any(module._forward_hooks for module in fresh.modules())
    for other in (fresh, make_deep(entry)):  # one that lacks the layers, and one that has them
        firefly.load(tmp_path, model=other)
        assert equal_trees(run(other, entry.example()), run(model, entry.example()))
        assert find_layers(other).keys() == find_layers(model).keys()


# ---- for people ------------------------------------------------------------------------------------------------------


def test_growth_and_report_show_the_depth(tmp_path: Path) -> None:
    entry = ZOO["mlp"]
    growth = wake(make_deep(entry), entry, budget=firefly.Neurons(4) & firefly.Layers(1))
    (woken,) = growth.woken
    assert growth.widths[woken] == (0, growth.neurons) and growth.to_dict()["woken"] == [woken]
    assert "1 new layer;" in str(growth) and str(growth).count("new layer\n") == 1
    text = report.write(tmp_path, [growth.to_dict()]).read_text()
    assert f"{woken}</td><td>new layer</td>" in text and "Dormant layers left: 1." in text
    assert (tmp_path / "network.svg").read_text().startswith("<svg ")
    assert report.widths.deepens([growth.to_dict()]) and not report.widths.deepens([{"widths": {"a": (3, 5)}}])


def test_a_grower_notices_new_places() -> None:
    entry = ZOO["mlp"]
    model = entry.make()
    grower = firefly.Firefly(model, entry.example(), steps=5)
    assert not any(width.dormant for width in grower.anatomy)
    firefly.deepen(model, entry.example())
    assert any(width.dormant for width in grower.anatomy)


def test_a_grower_goes_on_deepening() -> None:
    entry = ZOO["mlp"]
    model = make_deep(entry, count=2)
    options = {"widths": lambda width: "deeper" in width.name, "steps": 5, "neighborhood": [firefly.New(4)]}
    budget = firefly.Neurons(4) & firefly.Layers(1)
    grower = firefly.Firefly(model, entry.example(), budget=budget, **options)
    woken = [name for _ in range(3) for name in grower.grow(entry.loss, entry.batches()).woken]
    assert len(woken) == len(set(woken)) >= 2
    assert set(woken) == {name for name, layer in find_layers(model).items() if not layer.dormant}


def test_the_page_runs(capsys: pytest.CaptureFixture) -> None:
    text = (Path(__file__).parent.parent / "docs" / "deeper.md").read_text()
    blocks = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    scope: dict[str, Any] = {}
    for block in blocks:
        exec(compile(block, "deeper.md", "exec"), scope)
    assert len(scope["names"]) == 6 and 1 <= len(scope["growth"].woken) <= 2
    assert "['0.0.deeper.0', '0.1.deeper.0']" in capsys.readouterr().out


# ---- what fails leaves nothing behind --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"optimizer": "oops"}, "optimizer.*str"),
        ({"optimizer": torch.optim.SGD(nn.Linear(2, 2).parameters(), lr=0.1)}, "none of this model's"),
        ({"activation": nn.Linear}, "activation.*Linear"),
    ],
)
def test_wrong_options_leave_no_layers_in_the_model(options: Any, words: str) -> None:
    model, example = nn.Sequential(nn.Linear(4, 5), nn.ReLU(), nn.Linear(5, 3)), torch.randn(2, 4)
    before = snapshot(model)
    with pytest.raises(firefly.FireflyError, match=words):
        firefly.deepen(model, example, **options)
    assert_untouched(before, snapshot(model))
    assert not any(module._forward_hooks for module in model.modules())
