"""`fit` learns, repeats itself on a seed, stops and resumes exactly, and grows on the way."""

import json
import math
from dataclasses import asdict, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from firefly.descent import Firefly
from firefly.errors import FireflyError
from firefly.neighborhood.kinds import New, Split
from firefly.schedule import Every
from firefly.stages.budget import Neurons
from firefly.surgery.swap import exchanged
from firefly.training import History, evaluate, fit
from firefly.training.capture import keep, put_back
from firefly.training.engine import Engine
from firefly.training.optimizer import list_state, make_optimizer
from firefly.training.precision import hand_over_gradients, make_stand_ins
from firefly.training.recipe import Recipe, make_loss
from firefly.training.resident import draw, upload

Pair = tuple[Tensor, Tensor]


def make_data(count: int = 192, classes: int = 3) -> Pair:
    """Noise of a brightness that tells the class."""
    generator = torch.Generator().manual_seed(7)
    labels = torch.arange(count) % classes
    images = torch.rand(count, 3, 8, 8, generator=generator) * 90 + labels[:, None, None, None] * 70
    return images.to(torch.uint8), labels


def make_net(seed: int = 1, dropout: float = 0.2) -> nn.Sequential:
    torch.manual_seed(seed)
    layers = [nn.Conv2d(3, 6, 3, padding=1, bias=False), nn.BatchNorm2d(6), nn.ReLU(), nn.AdaptiveAvgPool2d(2)]
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(24, 8), nn.ReLU(), nn.Dropout(dropout), nn.Linear(8, 3))


def train(model: Any = None, **how: Any) -> tuple[Any, History]:
    model = model or make_net()
    options: dict[str, Any] = {"epochs": 3, "batch": 32, "lr": 0.05, "device": "cpu", "progress": False}
    options |= how
    return model, fit(model, options.pop("data", make_data()), **options)


def make_grower(model: nn.Module) -> Firefly:
    kinds = (Split(), New(3))
    return Firefly(model, torch.zeros(2, 3, 8, 8), neighborhood=kinds, budget=Neurons(3), schedule=Every(2), steps=2)


def same(one: nn.Module, other: nn.Module) -> bool:
    first, second = one.state_dict(), other.state_dict()
    return first.keys() == second.keys() and all(first[key].equal(second[key]) for key in first)


def timeless(history: History) -> list[dict[str, Any]]:
    return [asdict(replace(row, seconds=0.0)) for row in history.epochs]


def test_learns_and_counts() -> None:
    model, history = train(epochs=6, test=make_data(60), evaluate_every=4, augment=False)
    assert history.accuracy is not None and history.accuracy > 0.9
    assert [row.test_accuracy is not None for row in history.epochs] == [False, False, False, True, False, True]
    assert [row.epoch for row in history.epochs] == [1, 2, 3, 4, 5, 6] and history[-1].loss < history[0].loss
    assert history[0].parameters == sum(parameter.numel() for parameter in model.parameters())
    assert model[1].num_batches_tracked == 6 * (192 // 32)
    assert all(parameter.grad is None for parameter in model.parameters())


def test_a_seed_decides_everything_and_the_global_state_stays() -> None:
    torch.manual_seed(5)
    before = torch.get_rng_state()
    model = make_net()
    torch.set_rng_state(before)
    first, _ = train(model)
    assert torch.get_rng_state().equal(before)
    assert same(first, train()[0]) and not same(first, train(seed=1)[0])
    assert not same(first, train(augment=False)[0])


NEVER = 10**9


def interrupt_after(calls: int) -> Any:
    """A loss that is interrupted as by Ctrl-C."""
    plain, done = make_loss(0.0), [0]

    def loss(model: nn.Module, batch: Pair) -> Tensor:
        done[0] += 1
        if done[0] > calls:
            raise KeyboardInterrupt
        return plain(model, batch)

    return loss


@pytest.mark.parametrize("precision", ["float32", "bf16"])
@pytest.mark.parametrize("calls", [3, 15])
def test_interrupted_training_resumes_exactly(tmp_path: Path, calls: int, precision: str) -> None:
    how: dict[str, Any] = {"epochs": 4, "test": make_data(30), "precision": precision}
    straight, expected = train(**how)
    with pytest.raises(KeyboardInterrupt):
        train(loss=interrupt_after(calls), checkpoint=tmp_path, **how)
    resumed, history = train(make_net(seed=99), checkpoint=tmp_path, loss=interrupt_after(NEVER), **how)
    assert same(straight, resumed) and timeless(history) == timeless(expected)
    again, repeated = train(
        make_net(seed=98), checkpoint=tmp_path, loss=interrupt_after(NEVER), **how
    )  # finished: nothing is left to do
    assert same(again, straight) and repeated == history
    assert sorted(path.name for path in tmp_path.iterdir()) == ["epoch-4", "fit.json"]


def test_another_recipe_is_not_mixed_in(tmp_path: Path) -> None:
    train(epochs=1, checkpoint=tmp_path)
    with pytest.raises(FireflyError, match="batch=32, this call has 16"):
        train(epochs=1, checkpoint=tmp_path, batch=16)
    with pytest.raises(FireflyError, match="optimizer"):
        train(epochs=1, checkpoint=tmp_path, weight_decay=0.1)
    (tmp_path / "fit.json").write_text("{")
    with pytest.raises(FireflyError, match="damaged"):
        train(epochs=1, checkpoint=tmp_path)


@pytest.mark.parametrize("calls", [22, 50, 70])  # in the first growth, in the epoch after it, in the second growth
def test_grows_trains_on_and_resumes_exactly(tmp_path: Path, calls: int) -> None:
    straight = make_net(dropout=0.0)
    _, expected = train(straight, epochs=5, grower=make_grower(straight))
    assert [row.grown for row in expected.epochs] == [False, True, False, True, False]
    sizes = [row.parameters for row in expected.epochs]
    assert sizes[0] == sizes[1] < sizes[2] == sizes[3] < sizes[4]
    broken = make_net(dropout=0.0)
    with pytest.raises(KeyboardInterrupt):
        train(broken, epochs=5, grower=make_grower(broken), loss=interrupt_after(calls), checkpoint=tmp_path)
    resumed = make_net(seed=99, dropout=0.0)
    grower = make_grower(resumed)
    _, history = train(resumed, epochs=5, grower=grower, checkpoint=tmp_path, loss=interrupt_after(NEVER))
    assert same(straight, resumed) and timeless(history) == timeless(expected) and len(grower.history) == 2


def test_whoever_is_killed_in_a_growth_loses_the_growth_alone(tmp_path: Path) -> None:
    straight, broken, resumed = make_net(dropout=0.0), make_net(dropout=0.0), make_net(seed=99, dropout=0.0)
    _, expected = train(straight, epochs=5, grower=make_grower(straight))
    grower = make_grower(broken)
    grower.grow = lambda *args, **kwargs: (_ for _ in ()).throw(MemoryError)  # type: ignore[method-assign]
    with pytest.raises(MemoryError):
        train(broken, epochs=5, grower=grower, checkpoint=tmp_path)
    kept = json.loads((tmp_path / "fit.json").read_text())
    assert len(kept["history"]["epochs"]) == 2 and kept["due"]
    _, history = train(resumed, epochs=5, grower=make_grower(resumed), checkpoint=tmp_path)
    assert same(straight, resumed) and timeless(history) == timeless(expected)


def test_momentum_follows_growth() -> None:
    model = make_net(dropout=0.0)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    train(model, epochs=4, optimizer=optimizer, grower=make_grower(model))
    assert {id(p) for p in optimizer.param_groups[0]["params"]} == {id(p) for p in model.parameters()}
    assert all(optimizer.state[p]["momentum_buffer"].shape == p.shape for p in model.parameters())


def test_bf16_stays_close_to_float32_and_stand_ins_equal_autocast() -> None:
    full, half = train()[1], train(precision="bf16")[1]
    assert full[-1].loss != half[-1].loss and math.isclose(full[-1].loss, half[-1].loss, rel_tol=0.05)
    images, labels = make_data(32)
    gradients = []
    for stands in (False, True):
        model = make_net(dropout=0.0)
        stand_ins = make_stand_ins(model, "bf16" if stands else "float32")
        with exchanged(stand_ins.slots), torch.autocast("cpu", torch.bfloat16, cache_enabled=False):
            make_loss(0.1)(model, (images.float() / 255, labels)).backward()
        hand_over_gradients(stand_ins)
        assert len(stand_ins.copies) == 5 * stands and model[1].num_batches_tracked == 0
        gradients.append([parameter.grad for parameter in model.parameters()])
    assert all(one is not None and one.equal(other) for one, other in zip(*gradients))


def test_tied_and_frozen_weights_stay_so() -> None:
    layers = [nn.Flatten(), nn.Linear(192, 16), nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 16), nn.Linear(16, 3)]
    model: Any = nn.Sequential(*layers)
    model[4].weight = model[2].weight
    model[1].weight.requires_grad_(False)
    frozen = model[1].weight.detach().clone()
    for precision in ("float32", "bf16"):
        train(model, precision=precision, lr=0.01)
        assert model[4].weight is model[2].weight and model[1].weight.equal(frozen)


def test_plain_features_own_loss_and_own_optimizer() -> None:
    inputs = torch.randn(90, 4, generator=torch.Generator().manual_seed(0))
    data = (inputs, inputs[:, :2].sum(1, keepdim=True))
    model = nn.Linear(4, 1)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.05)

    def squared(net: nn.Module, batch: Pair) -> Tensor:
        return (net(batch[0]) - batch[1]).square().mean()

    _, history = train(model, data=data, epochs=30, batch=15, optimizer=optimizer, loss=squared)
    assert history[-1].loss < 0.05 and optimizer.param_groups[0]["lr"] == 0.05
    assert history[15].lr == pytest.approx(0.05 * 0.5)


@pytest.mark.parametrize(
    ("how", "words"),
    [
        ({"epochs": 0}, "epochs=0"),
        ({"batch": 193}, "batch=193 is more than the 192 images"),
        ({"schedule": "linear"}, "schedule='linear'"),
        ({"precision": "fp8"}, "precision='fp8'"),
        ({"augment": "flip"}, "augment='flip'"),
        ({"stop": -1}, "stop=-1"),
        ({"lr": -1.0}, "lr=-1.0"),
        ({"graph": True}, "graph=True"),
        ({"label_smoothing": 1.0}, "label_smoothing"),
        ({"lr": 1e30, "epochs": 2}, "loss became .* in epoch 1"),
        ({"loss": lambda model, batch: model(batch[0])}, r"shape \(32, 3\)"),
        ({"data": (torch.zeros(0, 3, 8, 8), torch.zeros(0))}, "0 images"),
    ],
)
def test_bad_input_is_named(how: dict[str, Any], words: str) -> None:
    with pytest.raises(FireflyError, match=words):
        train(**how)


def test_a_warm_up_leaves_no_trace() -> None:
    models, results = [make_net(dropout=0.0), make_net(dropout=0.0)], []
    for model, warm in zip(models, (False, True)):
        data = upload(make_data(), torch.device("cpu"), augment=True)
        recipe = Recipe(1, batch=32, lr=0.05, schedule="constant", precision="bf16")
        optimizer = make_optimizer(model, recipe)
        engine = Engine(model, data, optimizer, recipe)
        engine.prepare()
        kept = keep(engine.list_tensors())
        for _ in range(3 * warm):
            engine.advance()
        put_back(kept, engine.list_tensors())
        results.append(float(engine.train(0, draw(data, 32, 0, 0))))
        assert all(not state.is_cuda for state in list_state(optimizer))
    assert results[0] == results[1] and same(*models)


def test_history_is_plain_json() -> None:
    _, history = train(epochs=2, test=make_data(30))
    assert History.from_dict(json.loads(json.dumps(history.to_dict()))) == history


def test_evaluate_and_modes() -> None:
    model, (images, labels) = make_net(), make_data(50)
    model[1].eval()
    score = evaluate(model, (images, labels), batch=7)
    assert model.training and not model[1].training and model[7].training
    with torch.no_grad():
        answers = model.eval()(images / 127.5 - 1)
    assert score.accuracy == (answers.argmax(1) == labels).double().mean()
    assert score.loss == pytest.approx(nn.functional.cross_entropy(answers, labels).item(), rel=1e-5)
    with pytest.raises(FireflyError, match="class numbers"):
        evaluate(model, (images, labels.float()))


def test_stops_when_told() -> None:
    assert len(train(epochs=9, stop=lambda history: len(history) == 2)[1]) == 2


def test_a_test_set_is_normalised_like_the_training_set_by_evaluate_too() -> None:
    images, labels = make_data(90)
    data, test = (
        SimpleNamespace(images=images[:60], labels=labels[:60], mean=[0.1] * 3, std=[0.05] * 3),
        (images[60:], labels[60:]),
    )
    model = make_net()
    history = fit(model, data, 2, batch=30, device="cpu", test=test, progress=False)
    assert evaluate(model, test, like=data).loss == pytest.approx(history[-1].test_loss)
    assert evaluate(model, test).loss != pytest.approx(history[-1].test_loss)
    with pytest.raises(FireflyError, match="batch=-1: give a whole number"):
        evaluate(model, test, batch=-1)


def test_what_has_no_accuracy_is_refused_before_anything_is_trained() -> None:
    x, steps = torch.randn(64, 8), []

    def square(model: nn.Module, batch: Any) -> Tensor:
        steps.append(1)
        return nn.functional.mse_loss(model(batch[0]), batch[1])

    with pytest.raises(FireflyError, match="accuracy needs class numbers; of other models measure the loss"):
        fit(nn.Linear(8, 1), (x, x[:, :1]), 2, batch=32, loss=square, test=(x, x[:, :1]), evaluate_every=2)
    assert not steps


def test_another_loss_or_kind_of_adam_is_not_taken_up(tmp_path: Path) -> None:
    def halve(model: nn.Module, batch: Any) -> Tensor:
        return nn.functional.cross_entropy(model(batch[0]), batch[1]) / 2

    train(epochs=2, checkpoint=tmp_path / "loss")
    with pytest.raises(FireflyError, match="made with loss=None, this call has 'a function'"):
        train(epochs=2, checkpoint=tmp_path / "loss", loss=halve)
    for amsgrad in (False, True):
        model = make_net()
        how = {"optimizer": torch.optim.Adam(model.parameters(), amsgrad=amsgrad), "checkpoint": tmp_path / "adam"}
        if amsgrad:
            with pytest.raises(FireflyError, match="optimizer"):
                fit(model, make_data(), 2, batch=32, device="cpu", progress=False, **how)
        else:
            fit(model, make_data(), 2, batch=32, device="cpu", progress=False, **how)
