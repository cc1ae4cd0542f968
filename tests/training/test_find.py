"""`firefly.find`: it ends at the size asked for, counts its epochs, draws weights anew where asked, and goes on."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import firefly
from firefly.training import Recipe
from firefly.training.find import Found, draw_weights, fall

IMAGES = torch.randn(64, 1, 6, 6, generator=torch.Generator().manual_seed(0))
DATA = IMAGES, (IMAGES.mean((1, 2, 3)) > 0).long()
RECIPE = Recipe(2, batch=16, lr=0.05, augment=False, device="cpu")
HOW: dict[str, Any] = {"steps": 4, "evaluate_on": 2, "progress": False}


def make() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Conv2d(4, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(16, 2)
    )


def find(recipe: Recipe = RECIPE, **how: Any) -> tuple[nn.Module, Found]:
    model = make()
    return model, firefly.find(model, DATA, recipe, **{"growths": 2, **HOW, **how})


def count(model: nn.Module) -> int:
    return sum(parameter.numel() for parameter in model.parameters())


def test_it_ends_at_the_size_asked_for_and_says_how_it_got_there() -> None:
    start = count(make())
    model, found = find(parameters=700, rounds=2)
    assert found.parameters == (start, count(model)) and 600 < count(model) <= 700
    assert [growth["parameters"][0] for growth in found.growths] == [start, found.growths[0]["parameters"][1]]
    assert found.growths[0]["parameters"][1] <= (start * 700) ** 0.5
    assert len(found.finding) == 4 and [row.grown for row in found.finding.epochs] == [False, True, False, True]
    assert found.training is not None and len(found.training) == 2
    assert {name: after for name, (_, after) in found.widths.items()} == {
        "0": model[0].out_channels,
        "3": model[3].out_channels,
    }
    assert f"{count(model):,}" in str(found)


def test_a_warm_up_comes_before_the_rounds_and_before_the_training() -> None:
    _, found = find(Recipe(2, batch=16, lr=0.05, warmup=0.5, augment=False, device="cpu"), parameters=700)
    assert found.training is not None
    (first, second), (then, _) = ([row.lr for row in part.epochs] for part in (found.finding, found.training))
    assert first == then == pytest.approx(0.05 / 2)
    assert second == pytest.approx(0.05)  # every round begins at the full rate


def test_both_limits_hold() -> None:
    free, _ = find(parameters=700, then=None)
    flops = firefly.trace(free, IMAGES[:2]).flops()
    model, found = find(parameters=700, flops=int(0.8 * flops), then=None)
    assert count(model) <= 700 and found.flops[1] == firefly.trace(model, IMAGES[:2]).flops() <= 0.8 * flops
    assert found.training is None


def test_anew_forgets_all_weights_and_on_keeps_them() -> None:
    still = Recipe(1, batch=16, lr=0.0, augment=False, device="cpu", seed=3)  # at rate 0 nothing is learnt
    model, found = find(still, parameters=700, then="anew")
    kept, _ = find(still, parameters=700, then="on")
    own = kept.state_dict()
    assert all(torch.equal(own[name][:4], value) for name, value in make().state_dict().items() if name == "0.bias")
    torch.manual_seed(3)
    draw_weights(kept)
    assert all(torch.equal(value, dict(kept.named_parameters())[name]) for name, value in model.named_parameters())
    assert found.optimizer.param_groups[0]["params"][0] is model[0].weight


def test_the_rate_falls_in_every_round() -> None:
    assert fall(0) == fall(1) == 1.0 and fall(0.5) == pytest.approx(0.5) and fall(1.99) < 0.01


def test_the_same_call_goes_on_where_it_was(tmp_path: Path) -> None:
    whole, _ = find(parameters=700)
    find(parameters=700, then=None, checkpoint=tmp_path)
    again, found = find(parameters=700, checkpoint=tmp_path)
    assert len(found.finding) == 2 and len(found.growths) == 2
    assert all(torch.equal(a, b) for a, b in zip(whole.parameters(), again.parameters(), strict=True))


def test_an_optimiser_of_your_own() -> None:
    _, found = find(parameters=500, optimizer=lambda parameters: torch.optim.Adam(parameters, 1e-3))
    assert isinstance(found.optimizer, torch.optim.Adam)


class Own(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(3))

    def forward(self, x: Tensor) -> Tensor:
        return x * self.weight


def test_weights_that_nobody_can_draw_are_named() -> None:
    with pytest.raises(firefly.FireflyError, match=r"1 \(Own\)"):
        draw_weights(nn.Sequential(nn.Linear(3, 3), Own()))


@pytest.mark.parametrize(
    ("how", "words"),
    [
        ({}, "which size"),
        ({"parameters": 10}, "begin smaller"),
        ({"parameters": 700.5}, "whole number"),
        ({"parameters": 700, "then": "again"}, "then='again'"),
        ({"parameters": 700, "budget": firefly.Neurons(3)}, "its own budget"),
        ({"parameters": 700, "growths": 0}, "growths=0"),
    ],
)
def test_what_cannot_be_found_is_said(how: dict[str, Any], words: str) -> None:
    with pytest.raises(firefly.FireflyError, match=words):
        find(**how)


def test_another_size_or_way_is_not_taken_up(tmp_path: Path) -> None:
    _, first = find(parameters=700, checkpoint=tmp_path)
    for other in ({"parameters": 1400}, {"parameters": 700, "multiple": 2}, {"parameters": 700, "method": "random"}):
        with pytest.raises(firefly.FireflyError, match="was made with grower"):
            find(checkpoint=tmp_path, **other)
    _, anew = find(parameters=700, checkpoint=tmp_path, then="anew")
    _, again = find(parameters=700, checkpoint=tmp_path)
    assert first.training is not None and again.training is not None and anew.training is not None
    assert again.training == first.training and anew.training[0].loss != first.training[0].loss


def test_layers_that_stay_dormant_are_not_drawn() -> None:
    """Torch warns where there is nothing to draw."""
    model = make()
    names = firefly.deepen(model, IMAGES[:2])
    before, weight = model(IMAGES), model[0].weight.detach().clone()
    draw_weights(model)
    assert names and not model[0].weight.equal(weight) and model(IMAGES).shape == before.shape


def test_a_warm_up_longer_than_the_rounds_is_cut_there() -> None:
    _, found = find(Recipe(6, batch=16, lr=0.05, warmup=5, augment=False, device="cpu"), parameters=700)
    assert len(found.finding) == 2 and found.training is not None and len(found.training) == 6


def test_a_wrong_word_is_named() -> None:
    with pytest.raises(firefly.FireflyError, match="find has no option 'stepz': did you mean steps"):
        find(parameters=700, stepz=4)
