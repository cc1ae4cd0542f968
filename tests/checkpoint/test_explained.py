"""`load` takes what growth has made of the model it gets, and nothing else."""

from itertools import pairwise
from pathlib import Path

import old_run
import pytest
import torch
from runs import refuses
from torch import Tensor, nn

import firefly


def mlp(*sizes: int) -> nn.Sequential:
    layers = [nn.Linear(a, b) for a, b in pairwise(sizes)]
    return nn.Sequential(*(part for layer in layers for part in (layer, nn.ReLU())))[:-1]


def conv(channels: int = 4, **options: int) -> nn.Sequential:
    options = {"kernel_size": 3, "padding": 1} | options
    return nn.Sequential(nn.Conv2d(2, channels, **options), nn.BatchNorm2d(channels), nn.Conv2d(channels, 3, 1))  # type: ignore[arg-type]


class Bare(nn.Module):
    """Weights without layers, whose roles nobody can tell from outside."""

    def __init__(self, given: int, hidden: int, out: int) -> None:
        super().__init__()
        self.calls = 0
        self.inward, self.outward = nn.Parameter(torch.randn(hidden, given)), nn.Parameter(torch.randn(out, hidden))

    def forward(self, x: Tensor) -> Tensor:
        return x @ self.inward.T @ self.outward.T


class Cut(nn.Module):
    """Each head reads its own part of what the trunk makes."""

    def __init__(self, *parts: int) -> None:
        super().__init__()
        self.trunk, self.heads = nn.Linear(8, sum(parts)), nn.ModuleList(nn.Linear(part, 3) for part in parts)

    def forward(self, x: Tensor) -> list[Tensor]:
        parts = self.trunk(x).relu().split([head.in_features for head in self.heads], -1)
        return [head(part) for head, part in zip(self.heads, parts)]


GROWN = {
    "hidden": (mlp(8, 4, 3), mlp(8, 9, 3)),
    "both hidden": (mlp(8, 4, 4, 3), mlp(8, 9, 5, 3)),
    "channels": (conv(4), conv(9)),
    "flattened": (
        nn.Sequential(nn.Conv2d(1, 2, 3), nn.Flatten(), nn.Linear(8, 3)),
        nn.Sequential(nn.Conv2d(1, 5, 3), nn.Flatten(), nn.Linear(20, 3)),
    ),
    "depthwise": (
        nn.Sequential(nn.Conv2d(1, 2, 1), nn.Conv2d(2, 2, 3, groups=2), nn.Conv2d(2, 1, 1)),
        nn.Sequential(nn.Conv2d(1, 7, 1), nn.Conv2d(7, 7, 3, groups=7), nn.Conv2d(7, 1, 1)),
    ),
    "transposed": (
        nn.Sequential(nn.ConvTranspose2d(1, 2, 1), nn.ConvTranspose2d(2, 3, 1)),
        nn.Sequential(nn.ConvTranspose2d(1, 5, 1), nn.ConvTranspose2d(5, 3, 1)),
    ),
    "embedded": (
        nn.Sequential(nn.Embedding(7, 2), nn.Linear(2, 3)),
        nn.Sequential(nn.Embedding(7, 5), nn.Linear(5, 3)),
    ),
    "bare weights": (Bare(8, 4, 3), Bare(8, 9, 3)),
    "one of two parts": (Cut(2, 6), Cut(5, 6)),
    "both parts": (Cut(2, 5), Cut(5, 9)),
}
OTHER = {
    "a smaller hidden width": (mlp(8, 9, 3), mlp(8, 4, 3), r"smaller.*0\.weight \(4, 8\), not \(9, 8\)"),
    "a hidden width smaller by one": (mlp(8, 5, 3), mlp(8, 4, 3), r"smaller.*0\.weight \(4, 8\), not \(5, 8\)"),
    "more inputs": (mlp(5, 4, 3), mlp(8, 4, 3), r"no growth explains: 0\.weight \(4, 8\), not \(4, 5\)"),
    "fewer outputs": (mlp(8, 4, 10), mlp(8, 4, 3), r"smaller.*2\.bias \(3,\), not \(10,\)"),
    "more outputs": (mlp(8, 4, 2), mlp(8, 4, 3), r"no growth explains: 2\.bias"),
    "inputs and outputs": (mlp(5, 4, 2), mlp(8, 4, 3), r"no growth explains: 0\.weight"),
    "more inputs of bare weights": (Bare(5, 4, 3), Bare(8, 4, 3), "no growth explains: inward"),
    "another kernel": (conv(kernel_size=3), conv(kernel_size=5), r"where growth changes none: 0\.weight"),
    "another stride": (conv(), conv(9, stride=2), r"stride=\(2, 2\) where the model has \(1, 1\): 0"),
    "another dilation": (conv(), conv(dilation=2), r"dilation=\(2, 2\)"),
    "another padding": (conv(), conv(padding=2), r"padding=\(2, 2\)"),
    "another table": (
        nn.Sequential(nn.Embedding(7, 2), nn.Linear(2, 3)),
        nn.Sequential(nn.Embedding(9, 5), nn.Linear(5, 3)),
        r"where growth changes none: 0\.weight",
    ),
    "groups without channels": (
        nn.Conv2d(4, 4, 3, groups=2),
        nn.Conv2d(8, 4, 3, groups=4),
        "groups=4 where the model has 2|in_channels=8 where the model has 4",
    ),
}


@pytest.mark.parametrize("name", GROWN)
def test_what_growth_makes_of_a_model_is_loaded(tmp_path: Path, name: str) -> None:
    fresh, grown = GROWN[name]
    firefly.save(tmp_path, grown)
    firefly.load(tmp_path, fresh)
    for (path, one), (_, other) in zip(fresh.named_parameters(), grown.named_parameters(), strict=True):
        assert torch.equal(one, other), path


@pytest.mark.parametrize("name", OTHER)
def test_what_no_growth_explains_is_refused(tmp_path: Path, name: str) -> None:
    fresh, other, words = OTHER[name]
    firefly.save(tmp_path, other)
    refuses(tmp_path, words, fresh)


def test_whole_numbers_of_the_user_come_back_whatever_they_count(tmp_path: Path) -> None:
    model = Bare(8, 4, 3)
    model.calls = 57
    firefly.save(tmp_path, model)
    fresh = Bare(8, 4, 3)
    firefly.load(tmp_path, fresh)
    assert fresh.calls == 57


def test_a_checkpoint_of_the_first_version_is_loaded() -> None:
    model = old_run.make()
    firefly.deepen(model, old_run.example(), sites=["0"])
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    grower = firefly.Firefly(model, old_run.example(), schedule=firefly.Plateau(2))
    firefly.load(Path(__file__).parent / "version-0.1.0", model, optimizer, grower, rng=True)
    with torch.no_grad():
        outputs = model.eval()(old_run.example()).sum(0)
    assert torch.allclose(outputs, torch.tensor(old_run.OUTPUTS), atol=1e-5)
    assert len(grower.history) == 1 and grower.history[0]["woken"] == ["0.2.deeper.0"]
    assert grower.schedule.state_dict() == {"best": 1.0, "waited": 0}
    assert optimizer.state[model[0][0].weight]["step"] == 8


def test_a_checkpoint_of_the_first_version_is_loaded_without_its_new_layers_in_place() -> None:
    model = firefly.load(Path(__file__).parent / "version-0.1.0", old_run.make())
    with torch.no_grad():
        outputs = model.eval()(old_run.example()).sum(0)
    assert torch.allclose(outputs, torch.tensor(old_run.OUTPUTS), atol=1e-5)


def test_hooks_and_marks_on_a_tensor_stay_as_after_a_growth(tmp_path: Path) -> None:
    firefly.save(tmp_path, mlp(8, 9, 3))
    fresh, seen = mlp(8, 4, 3), []
    fresh[0].weight.register_hook(lambda grad: seen.append(("hook", grad.shape)))
    fresh[0].weight.register_post_accumulate_grad_hook(lambda p: seen.append(("after", p.shape)))
    fresh[2].weight.register_hook(lambda grad: None)
    fresh[2].weight.requires_grad_(False)
    fresh[2].weight.mark = "mine"
    firefly.load(tmp_path, fresh)
    fresh(torch.randn(2, 8)).sum().backward()
    assert seen == [("hook", (9, 8)), ("after", (9, 8))]
    assert fresh[2].weight.mark == "mine" and not fresh[2].weight.requires_grad and fresh[2].weight._backward_hooks
