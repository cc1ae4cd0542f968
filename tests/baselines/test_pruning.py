"""Pruning: what stays computes what it did, the size is met, and the scores are those of Torch-Pruning."""

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import firefly
from firefly.baselines.pruning import (
    find_scales,
    fit_sizes,
    keep_neurons,
    prune,
    score_magnitude,
    score_slimming,
    score_taylor,
)


class Net(nn.Module):
    """A stem, a residual block and a flattened head: makers, readers, blocks of entries and a stream."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.norm = nn.Conv2d(3, 8, 3, padding=1, bias=False), nn.BatchNorm2d(8)
        self.inner, self.inner_norm = nn.Conv2d(8, 12, 3, padding=1, bias=False), nn.BatchNorm2d(12)
        self.back, self.back_norm = nn.Conv2d(12, 8, 3, padding=1, bias=False), nn.BatchNorm2d(8)
        self.head = nn.Linear(8 * 4, 5)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.relu(self.norm(self.stem(x)))
        x = x + self.back_norm(self.back(torch.relu(self.inner_norm(self.inner(x)))))
        out: Tensor = self.head(nn.functional.adaptive_avg_pool2d(x, 2).flatten(1))
        return out


def make() -> tuple[Net, Tensor, firefly.Anatomy]:
    torch.manual_seed(0)
    model, x = Net(), torch.randn(6, 3, 8, 8)
    model(x)
    for norm in (model.norm, model.inner_norm, model.back_norm):
        nn.init.uniform_(norm.weight, 0.5, 1.5)
    model.eval()
    return model, x, firefly.trace(model, x)


def loss(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
    return nn.functional.cross_entropy(model(batch[0]), batch[1])


def test_neurons_that_do_nothing_are_not_missed() -> None:
    model, x, anatomy = make()
    stream, inner = [1, 6], [0, 5, 11]
    with torch.no_grad():
        for norm, numbers in ((model.norm, stream), (model.back_norm, stream), (model.inner_norm, inner)):
            norm.weight[numbers], norm.bias[numbers] = 0.0, 0.0
    before = model(x)
    widths = {width.name: width.size for width in anatomy.growable()}
    names = {size: name for name, size in widths.items()}
    gone = {names[8]: stream, names[12]: inner}
    kept = {name: torch.tensor([k for k in range(widths[name]) if k not in gone[name]]) for name in gone}
    after = keep_neurons(model, anatomy, kept)
    assert torch.allclose(model(x), before, atol=1e-5)
    assert model.inner.out_channels == 9 and model.head.in_features == 6 * 4
    assert after.fits(model) and after.sizes() == firefly.trace(model, x).sizes()


@pytest.mark.parametrize("limit", ["parameters", "flops"])
def test_the_size_is_met_and_no_further_neuron_fits(limit: str) -> None:
    model, _, anatomy = make()
    scores = score_magnitude(model, anatomy)
    target = 0.5 * getattr(anatomy, limit)()
    sizes = fit_sizes(scores, anatomy, **{"parameters": None, "flops": None, limit: target}, least=2)
    after = prune(model, scores, anatomy, **{limit: target}, least=2)
    assert getattr(after, limit)() <= target and {n: after[n].size for n in sizes} == sizes
    assert sum(p.numel() for p in model.parameters()) == after.parameters()
    left = [(scores[n].sort(descending=True).values[sizes[n]], n) for n in sizes if sizes[n] < anatomy[n].size]
    best = max(left)[1]
    assert getattr(anatomy, limit)({**sizes, best: sizes[best] + 1}) > target


def test_the_best_stay_and_widths_of_the_best_stay_wide() -> None:
    model, _, anatomy = make()
    own = model.inner.weight.detach().clone()
    stream, inner = (next(w.name for w in anatomy.growable() if w.size == size) for size in (8, 12))
    scores = {stream: torch.arange(8.0), inner: 10 + torch.arange(12.0).flip(0)}  # all of inner is better
    after = prune(model, scores, anatomy, parameters=anatomy.parameters({stream: 3, inner: 12}), least=2)
    assert (after[stream].size, after[inner].size) == (3, 12)
    assert torch.equal(model.inner.weight, own[:, 5:])  # the last three of the stream
    model, _, anatomy = make()
    prune(model, scores, anatomy, parameters=anatomy.parameters({stream: 2, inner: 4}), least=2)
    assert torch.equal(model.inner.weight, own[:4, 6:])


def test_slimming_goes_by_the_scales_and_leaves_none_out() -> None:
    model, _, anatomy = make()
    scales = find_scales(model, anatomy)
    assert {name.removesuffix(".weight") for name in scales} == {"norm", "inner_norm", "back_norm"}
    scores = score_slimming(model, anatomy)
    stream = torch.maximum(model.norm.weight, model.back_norm.weight).detach()
    assert any(torch.equal(score, stream) for score in scores.values())
    plain = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2))
    with pytest.raises(firefly.FireflyError, match="batch norm"):
        score_slimming(plain, firefly.trace(plain, torch.zeros(2, 3)))


def test_what_cannot_be_met_is_said() -> None:
    model, _, anatomy = make()
    with pytest.raises(firefly.FireflyError, match="which size"):
        prune(model, score_magnitude(model, anatomy), anatomy)
    with pytest.raises(firefly.FireflyError, match="still has"):
        prune(model, score_magnitude(model, anatomy), anatomy, parameters=10)
    scores = score_magnitude(model, anatomy)
    scores["inner"][0] = float("nan")
    with pytest.raises(firefly.FireflyError, match="a score of inner is not finite"):
        prune(model, scores, anatomy, parameters=1000)


@pytest.mark.parametrize("kind", ["magnitude", "taylor"])
def test_the_scores_are_those_of_torch_pruning(kind: str) -> None:
    pruning: Any = pytest.importorskip("torch_pruning")
    model, x, anatomy = make()
    batch = (x, torch.arange(6) % 5)
    theirs = copy.deepcopy(model)
    graph = pruning.DependencyGraph().build_dependency(theirs, example_inputs=x)
    theirs.zero_grad()
    loss(theirs, batch).backward()
    importance = getattr(pruning.importance, f"Group{kind.capitalize()}Importance")
    ours = score_magnitude(model, anatomy) if kind == "magnitude" else score_taylor(model, anatomy, loss, [batch])
    layers = [(theirs.inner, 12)]
    if kind == "magnitude":  # its Taylor score sorts the numbers of a residual stream apart from their scores
        layers.append((theirs.stem, 8))
    for layer, size in layers:
        group = graph.get_pruning_group(layer, pruning.prune_conv_out_channels, list(range(size)))
        found = importance()(group)
        mine = next(score for score in ours.values() if len(score) == size)
        assert torch.allclose(mine, found / found.mean(), rtol=1e-4)
