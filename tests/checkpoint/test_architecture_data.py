"""The architecture as data: a fresh small model becomes the grown one, in another process too."""

import copy
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from runs import Mlp, Tied, fingerprint, run_in_fresh_process, same
from torch import nn

import firefly
from laws import every_growing, grow_blindly, run, train
from zoo import ZOO, Entry


def rebuild_from(text: str, model: nn.Module, state: dict[str, torch.Tensor]) -> nn.Module:
    assert firefly.rebuild(model, json.loads(text)) is model
    model.load_state_dict(state)
    return model


@every_growing
def test_a_fresh_model_becomes_the_grown_one(entry: Entry) -> None:
    model = entry.make()
    blind = grow_blindly(model, entry)
    architecture = firefly.architecture(model)
    fresh = rebuild_from(json.dumps(architecture), entry.make(), model.state_dict())
    assert same(run(fresh, entry.example()), run(model, entry.example()))
    assert firefly.architecture(fresh) == architecture
    assert architecture["widths"] == {name: after for name, (_, after) in blind.growth.widths.items()}
    assert architecture["parameters"] == sum(p.numel() for p in fresh.parameters()) == blind.growth.parameters[1]


@pytest.mark.parametrize("name", ["resnet", "vgg"])
def test_woken_and_dormant_layers_come_back(name: str) -> None:
    entry = ZOO[name]
    model = entry.make()
    layers = firefly.deepen(model, entry.example())
    blind = grow_blindly(model, entry, anatomy=None, widths=layers, budget=firefly.Layers(1) & firefly.Neurons(4))
    assert len(blind.growth.woken) == 1 < len(layers)
    architecture = firefly.architecture(model)
    assert architecture["woken"] == blind.growth.woken
    fresh = rebuild_from(json.dumps(architecture), entry.make(), model.state_dict())
    assert same(run(fresh, entry.example()), run(model, entry.example()))
    assert firefly.architecture(fresh) == architecture


def rebuild_all(folder: Path) -> None:
    """In a fresh process: rebuild, fill, compare."""
    for name in ("resnet", "gpt"):
        state, out = torch.load(folder / f"{name}.pt")
        model = rebuild_from((folder / f"{name}.json").read_text(), ZOO[name].make(), state)
        assert same(run(model, ZOO[name].example()), out), name


def test_a_fresh_process_rebuilds(tmp_path: Path) -> None:
    for name in ("resnet", "gpt"):
        model = ZOO[name].make()
        grow_blindly(model, ZOO[name])
        (tmp_path / f"{name}.json").write_text(json.dumps(firefly.architecture(model)))
        torch.save((model.state_dict(), run(model, ZOO[name].example())), tmp_path / f"{name}.pt")
    run_in_fresh_process(f"test_architecture_data.rebuild_all(Path({str(tmp_path)!r}))")


def test_history_is_kept_by_the_model_through_growths_checkpoints_and_copies(tmp_path: Path) -> None:
    entry = ZOO["mlp"]
    model, average = entry.make(), entry.make()
    assert firefly.architecture(model)["history"] == []
    firefly.grow(model, entry.loss, entry.batches(), example=entry.example(), steps=2, also=[average])
    firefly.grow(model, entry.loss, entry.batches(), example=entry.example(), steps=2, preview=True)
    one = firefly.grow(model, entry.loss, entry.batches(), example=entry.example(), steps=2, also=[average])
    history = firefly.architecture(model)["history"]
    assert len(history) == 2 and history[1]["loss_after"] == one.loss_after
    firefly.save(tmp_path, model)
    loaded = firefly.load(tmp_path, entry.make())
    again = firefly.rebuild(entry.make(), firefly.architecture(model))
    for other in (average, loaded, again, copy.deepcopy(model)):
        assert firefly.architecture(other) == firefly.architecture(model)


@pytest.mark.parametrize("name", ["mlp", "mobilenet_v2", "gpt", "bare_parameters"])
def test_a_rebuilt_model_can_be_trained_as_it_is(name: str) -> None:
    entry = ZOO[name]
    model = entry.make()
    grow_blindly(model, entry)
    fresh = firefly.rebuild(entry.make(), firefly.architecture(model))
    losses = [sum(entry.loss(fresh, batch).item() for batch in entry.batches())]
    train(fresh, entry, torch.optim.Adam(fresh.parameters(), 0.01), 20)
    losses.append(sum(entry.loss(fresh, batch).item() for batch in entry.batches()))
    assert losses[1] < 0.95 * losses[0]


def test_ties_and_marks_stay_and_private_sizes_follow() -> None:
    grown = firefly.architecture(Tied(width=6))
    fresh = Tied()
    fresh.first.weight.mark = "mine"  # type: ignore[attr-defined]
    fresh.embed.weight.requires_grad_(False)
    firefly.rebuild(fresh, grown)
    assert fresh.embed.weight is fresh.head.weight and fresh.scale is fresh.first.scale
    assert fresh.first.weight.mark == "mine" and not fresh.embed.weight.requires_grad  # type: ignore[attr-defined]
    larger, small = Mlp(hidden=9), Mlp()
    larger._hidden, small._hidden = 9, 5  # type: ignore[attr-defined, assignment]
    firefly.rebuild(small, json.loads(json.dumps(firefly.architecture(larger))))
    assert (small.hidden, small.sizes, small.shape, small._hidden) == (9, [4, 9, 3], (9, 3), 9)


def test_the_layout_of_the_weights_stays() -> None:
    model, fresh = (ZOO["resnet"].make().to(memory_format=torch.channels_last) for _ in range(2))
    grow_blindly(model, ZOO["resnet"])
    firefly.rebuild(fresh, firefly.architecture(model)).load_state_dict(model.state_dict())
    assert [p.stride() for p in fresh.parameters()] == [p.stride() for p in model.parameters()]


def test_another_head_is_left_as_it_is_unless_strict() -> None:
    def make(hidden: int, classes: int, **more: nn.Module) -> Any:
        return nn.ModuleDict({"body": Mlp(hidden), "head": nn.Linear(3, classes), **more})

    saved = firefly.architecture(make(9, 7, spare=nn.Linear(2, 2)))
    fresh = make(5, 7)
    with pytest.raises(firefly.FireflyError, match=r"lacks: spare"):
        firefly.rebuild(fresh, saved)
    firefly.rebuild(fresh, saved, strict=False)
    assert (fresh.body.fc1.out_features, fresh.head.out_features) == (9, 7)


@pytest.mark.parametrize(
    ("change", "match"),
    [
        (lambda a: a["shapes"].pop("fc1.weight"), "none of the model's tensors: fc1.weight"),
        (lambda a: a["shapes"].update({"fc1.weight": [4, 4]}), "smaller"),
        (lambda a: a["shapes"].update({"fc1.weight": [9, 4, 1]}), "fc1.weight"),
        (lambda a: a["shapes"].update({"fc1.weight": [9, 2**31 - 1], "fc1.bias": [2**31 - 1]}), "no growth explains"),
        (lambda a: a["shapes"].update({"fc1.weight": [9, -4]}), "fc1.weight"),
        (lambda a: a["attributes"]["fc1"].update(in_features=8), "in_features=8"),
        (lambda a: a["ties"].update({"fc2.bias": "fc1.bias"}), "ties"),
        (lambda a: a.pop("deeper"), "'deeper'"),
        (lambda a: a.update(history=3), "history"),
    ],
)
def test_a_wrong_architecture_is_refused_and_changes_nothing(change: Any, match: str) -> None:
    architecture = firefly.architecture(Mlp(hidden=9))
    change(architecture)
    model = Mlp()
    before = fingerprint(model)
    with pytest.raises(firefly.FireflyError, match=match):
        firefly.rebuild(model, architecture)
    assert same(fingerprint(model), before)


def test_what_is_no_model_or_architecture_is_refused() -> None:
    for wrong in (lambda: firefly.architecture(3), lambda: firefly.rebuild(3, {}), lambda: firefly.rebuild(Mlp(), 3)):  # type: ignore
        with pytest.raises(firefly.FireflyError):
            wrong()
    with pytest.raises(firefly.FireflyError, match="weight has no shape yet"):
        firefly.architecture(nn.LazyLinear(3))
