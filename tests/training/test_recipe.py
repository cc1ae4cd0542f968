"""A recipe says how to train, whole or in words; every wrong value is named before anything happens."""

import json
from dataclasses import FrozenInstanceError, replace
from typing import Any

import pytest
import torch
from test_fit import make_data, make_net, same, timeless, train
from torch import nn

from firefly.errors import FireflyError
from firefly.training import Recipe, evaluate, fit
from firefly.training.recipe import list_factors, make_loss


def test_a_recipe_is_the_same_as_its_words() -> None:
    words: dict[str, Any] = {"batch": 32, "lr": 0.05, "device": "cpu", "schedule": "step", "seed": 3}
    one, first = train(epochs=2, **words)
    for how in (
        {"recipe": Recipe(2, **words)},
        {"recipe": Recipe(2, **words | {"seed": 0}), "seed": 3},
        {"recipe": Recipe(9, **words), "epochs": 2},
    ):
        other = make_net()
        history = fit(other, make_data(), progress=False, **how)
        assert same(one, other) and timeless(history) == timeless(first)


def test_a_recipe_is_frozen_plain_and_can_be_changed() -> None:
    recipe = Recipe(3, loss=lambda model, batch: model(batch[0]).mean(), compile={"max_autotune": True}, device="cpu")
    with pytest.raises(FrozenInstanceError):
        recipe.lr = 1.0  # type: ignore[misc]
    told = json.loads(json.dumps(recipe.to_dict()))
    assert told["loss"] == "a function" and told["epochs"] == 3 and told["compile"] == {"max_autotune": True}
    assert replace(recipe, lr=0.5).lr == 0.5
    with pytest.raises(FireflyError, match="lr=nan"):
        replace(recipe, lr=float("nan"))


WRONG: list[tuple[dict[str, Any], str]] = [
    ({"epochs": 0}, "epochs=0"),
    ({"epochs": 2.0}, r"epochs=2\.0: give a whole number"),
    ({"epochs": True}, "epochs=True"),
    ({"batch": "32"}, "batch='32'"),
    ({"lr": -1.0}, r"lr=-1\.0"),
    ({"lr": "fast"}, "lr='fast'"),
    ({"lr": None}, "lr=None"),
    ({"lr": float("inf")}, "lr=inf"),
    ({"momentum": -0.1}, "momentum="),
    ({"weight_decay": "no"}, "weight_decay='no'"),
    ({"nesterov": 1}, "nesterov=1: give True or False"),
    ({"schedule": "linear"}, "schedule='linear': give 'cosine'"),
    ({"schedule": ["cosine"]}, "schedule="),
    ({"schedule": lambda time: None}, r"schedule\(0\) returned None"),
    ({"epochs": 3, "hold": 3}, "hold=3: less than epochs=3"),
    ({"hold": -1}, "hold=-1"),
    ({"epochs": 3, "warmup": 3}, "warmup=3: less than epochs=3"),
    ({"hold": 1, "schedule": lambda time: 1.0}, "hold=1: a function says it all"),
    ({"loss": "mse"}, "loss='mse': give a function"),
    ({"loss": nn.CrossEntropyLoss()}, r"loss=CrossEntropyLoss\(\)"),
    ({"loss": lambda model, batch: 3.0}, "loss returned float"),
    ({"loss": lambda model, batch: torch.zeros(())}, "without a gradient"),
    ({"label_smoothing": 1.0}, "label_smoothing"),
    ({"augment": "flip"}, "augment='flip'"),
    ({"cutout": -2}, "cutout=-2"),
    ({"mixup": 0.6}, r"mixup=0\.6: give a share from 0 to 0\.5"),
    ({"mixup": True}, "mixup=True"),
    ({"cutout": 9}, r"cutout=9 with data of shape \(192, 3, 8, 8\)"),
    ({"ema": 1.0}, "ema=1.0"),
    ({"ema": 0}, "ema=0"),
    ({"seed": 0.5}, "seed=0.5"),
    ({"seed": None}, "seed=None"),
    ({"stop": -1}, "stop=-1"),
    ({"stop": True}, "stop=True"),
    ({"precision": "fp8"}, "precision='fp8'"),
    ({"device": "gpu"}, "device='gpu'"),
    ({"device": 1.5}, "device=1.5"),
    ({"graph": "yes"}, "graph='yes'"),
    ({"compile": "fast"}, "compile='fast'"),
    ({"optimizer": "adam"}, "optimizer is str"),
    ({"optimizer": torch.optim.SGD}, "optimizer is SGD"),
    ({"optimizer": torch.optim.SGD(nn.Linear(1, 1).parameters(), 0.1)}, "none of this model's parameters"),
    ({"optimizer": torch.optim.LBFGS(nn.Linear(1, 1).parameters())}, "LBFGS"),
    ({"grower": 3}, "grower=int lacks due, grow"),
    ({"each_epoch": 3}, "each_epoch=3"),
    ({"recipe": {"lr": 0.1}}, "recipe is a dict"),
    ({"learning_rate": 0.1}, "no option 'learning_rate'"),
    ({"weight_deacy": 0.1}, "did you mean weight_decay"),
    ({"test": 3}, "test is a int"),
    ({"grow_on": 3}, "grow_on is a int"),
    ({"data": make_data(20)}, "batch=32 is more than the 20 images of data"),
    ({"grow_on": make_data(20)}, "batch=32 is more than the 20 images of grow_on"),
    ({"checkpoint": 3}, "'3' is no folder to write to"),
]


def test_the_rate_is_held_as_long_as_the_recipe_says() -> None:
    _, history = train(epochs=4, lr=0.1, hold=2, batch=32, device="cpu")
    assert [row.lr for row in history.epochs] == pytest.approx([0.1, 0.1, 0.1, 0.05])


def test_the_rate_is_warmed_up_as_long_as_the_recipe_says() -> None:
    _, history = train(epochs=4, lr=0.1, schedule="constant", warmup=2, batch=32, device="cpu")
    first, second, *rest = (row.lr for row in history.epochs)
    assert 0 < first < 0.05 < second < 0.1 and rest == pytest.approx([0.1, 0.1])


@pytest.mark.parametrize(("how", "words"), WRONG)
def test_wrong_values_are_named_and_nothing_happens(how: dict[str, Any], words: str) -> None:
    model, untouched = make_net(), make_net()
    with pytest.raises(FireflyError, match=words):
        train(model, **how)
    assert same(model, untouched) and model.training


def test_what_is_no_model_and_what_has_no_epochs() -> None:
    with pytest.raises(FireflyError, match=r"an nn\.Module, not str"):
        fit("model", make_data(), 1)  # type: ignore[arg-type]
    with pytest.raises(FireflyError, match="how many epochs"):
        fit(make_net(), make_data())


def test_a_grower_of_another_model_is_refused() -> None:
    class Other:
        model = make_net()

        def due(self, epoch: int, metric: float | None) -> bool:
            return False

        def grow(self, *given: Any) -> None: ...

    with pytest.raises(FireflyError, match="made for another model"):
        train(grower=Other())
    Other.model = model = make_net()
    train(model, grower=Other(), epochs=1)
    with pytest.raises(FireflyError, match="lacks state_dict, load_state_dict"):
        train(model, grower=Other(), epochs=1, checkpoint="runs")


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_a_gpu_that_is_not_there() -> None:
    with pytest.raises(FireflyError, match="torch finds no GPU"):
        train(device="cuda")


def test_the_learning_rate_follows_the_schedule_step_by_step() -> None:
    seen: list[float] = []
    model = make_net()
    optimizer = torch.optim.SGD(model.parameters(), 0.05)
    optimizer.register_step_pre_hook(lambda one, *_: seen.append(one.param_groups[0]["lr"]))
    train(model, epochs=2, optimizer=optimizer)
    factors = [factor for epoch in (0, 1) for factor in list_factors("cosine", epoch, 2, 6)]
    assert seen == pytest.approx([0.05 * factor for factor in factors]) and len(set(seen)) == 12
    assert evaluate(model, make_data(30)).accuracy >= 0


def test_mixup_mixes_images_and_labels_in_pairs() -> None:
    images, labels = torch.rand(6, 3, 4, 4, dtype=torch.float64), torch.tensor([0, 1, 2, 3, 4, 0])
    seen = []

    def model(inputs: torch.Tensor) -> torch.Tensor:
        seen.append(inputs)
        return torch.arange(30.0).view(6, 5).sin()

    torch.manual_seed(0)
    found = make_loss(0.1, 0.3)(model, (images, labels))  # type: ignore[arg-type]
    torch.manual_seed(0)
    share = 0.3 * torch.rand(6)
    assert torch.allclose(seen[0], torch.stack([(1 - s) * a + s * b for s, a, b in zip(share, images, images.flip(0))]))
    own, other = (
        nn.functional.cross_entropy(model(images), one, label_smoothing=0.1, reduction="none")
        for one in (labels, labels.flip(0))
    )
    assert torch.allclose(found, ((1 - share) * own + share * other).mean())


def test_mixup_trains_otherwise_repeats_and_leaves_what_it_cannot_mix() -> None:
    (plain, _), (one, first), (other, second) = (train(epochs=2, mixup=mixup) for mixup in (0.0, 0.4, 0.4))
    assert same(one, other) and not same(one, plain) and timeless(first) == timeless(second)
    with pytest.raises(FireflyError, match=r"mixup=0\.4 takes images and a class for each, not inputs of torch.int64"):
        fit(nn.Embedding(5, 3), (torch.arange(5), torch.arange(5) % 3), 1, batch=5, mixup=0.4, device="cpu")
    with pytest.raises(FireflyError, match="with a loss of your own"):
        Recipe(1, mixup=0.2, loss=lambda model, batch: model(batch[0]).mean())
