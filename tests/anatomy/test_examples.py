"""Several examples, one for each path through a model, and what happens to layers that no example reaches."""

from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import firefly
from firefly.anatomy.examples import run_examples, tensors_in

X = torch.randn(6, 8, generator=torch.Generator().manual_seed(0))


class Heads(nn.Module):
    """A trunk with a head for each task; the forward takes the name of the task."""

    def __init__(self, **heads: nn.Module) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.second = nn.Linear(8, 12), nn.Linear(12, 16)
        heads = heads or {"a": nn.Linear(16, 3), "b": nn.Linear(16, 5)}
        self.heads = nn.ModuleDict(heads)

    def forward(self, x: Tensor, task: str = "a") -> Tensor:
        out: Tensor = self.heads[task](torch.relu(self.second(torch.relu(self.first(x)))))
        return out


class Actor(nn.Module):
    """A policy, and a critic in a method of its own that reads the same trunk."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.trunk, self.policy, self.value = nn.Linear(8, 16), nn.Linear(16, 3), nn.Linear(16, 1)

    def forward(self, x: Tensor) -> torch.distributions.Distribution:
        return torch.distributions.Categorical(logits=self.policy(torch.relu(self.trunk(x))))

    def critic(self, x: Tensor, scale: float = 1.0) -> Tensor:
        out: Tensor = scale * self.value(torch.relu(self.trunk(x)))
        return out


def grow(model: nn.Module, example: Any, **options: Any) -> firefly.Growth:
    def loss(model: nn.Module, batch: Tensor) -> Tensor:
        return sum(t.square().mean() for t in run_examples(model, example))  # type: ignore[return-value]

    some: list[Any] = [firefly.Split(), firefly.New(4)]
    return firefly.grow(model, loss, [X], example=example, neighborhood=some, steps=4, **options)


def test_a_head_that_no_example_reaches_pins_what_feeds_it() -> None:
    anatomy = firefly.trace(Heads(), X)
    assert "heads.b.weight" in (anatomy["second"].pinned or "") and "Examples" in (anatomy["second"].pinned or "")
    assert anatomy["first"].pinned is None  # nothing of size 12 stands in the other head


def test_growth_by_one_task_leaves_the_other_task_as_it_was() -> None:
    model = Heads()
    before = model(X, "b")
    growth = grow(model, X, budget=firefly.Neurons(4))
    assert growth.neurons == 4
    assert (model(X, "b") - before).abs().max() < 1.0  # it still runs; the shared trunk has changed a little


def test_both_heads_grow_with_an_example_of_each() -> None:
    model = Heads()
    both = firefly.Examples(X, {"x": X, "task": "b"})
    anatomy = firefly.trace(model, both)
    assert (anatomy["second"].size, anatomy["second"].pinned) == (16, None)
    assert set(anatomy["second"].readers) == {"heads.a.weight", "heads.b.weight"}
    before = [model(X, task) for task in "ab"]
    growth = grow(model, both, widths=["second"], budget=firefly.Neurons(3))
    assert growth.widths["second"] == (16, 19)
    assert [model.heads[task].in_features for task in "ab"] == [19, 19]
    change = max((model(X, task) - old).abs().max().item() for task, old in zip("ab", before))
    assert growth.output_change == pytest.approx(change, rel=1e-4)  # of all examples


def test_a_critic_in_a_method_of_its_own() -> None:
    model = Actor()
    assert "value.weight" in (firefly.trace(model, X)["trunk"].pinned or "")
    example = firefly.Examples(X, firefly.Call("critic", X, scale=2.0))
    anatomy = firefly.trace(model, example)
    assert (anatomy["trunk"].pinned, anatomy["value"].pinned) == (None, "it is an output of the model")
    growth = grow(model, example, budget=firefly.Neurons(3))
    assert growth.widths["trunk"] == (16, 19) and model.critic(X).shape == (6, 1)


def test_a_method_alone_will_do() -> None:
    anatomy = firefly.trace(Actor(), firefly.Call("critic", X))
    assert "policy.weight" in (anatomy["trunk"].pinned or "")


def test_a_layer_that_no_width_fits_pins_nothing() -> None:
    anatomy = firefly.trace(Heads(a=nn.Linear(16, 3), spare=nn.Conv2d(9, 11, 16), word=nn.Embedding(12, 7)), X)
    assert [width.name for width in anatomy.growable()] == ["first", "second"]


class Bare(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.gain = nn.Parameter(torch.ones(12, 1))


@pytest.mark.parametrize(
    ("spare", "pinned"),
    [
        (nn.Linear(12, 7), "first"),  # reads it
        (nn.Embedding(7, 12), "first"),  # what it returns may be added to it
        (nn.BatchNorm1d(16, affine=False), "second"),  # has buffers only
        (nn.LayerNorm(12, elementwise_affine=False), "first"),  # has nothing but a size
        (nn.Sequential(nn.ReLU(), nn.Conv1d(16, 7, 1)), "second"),
        (Bare(), "first"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_the_sizes_of_an_unreached_layer_decide(spare: nn.Module, pinned: str) -> None:
    anatomy = firefly.trace(Heads(a=nn.Linear(16, 3), spare=spare), X)
    assert "no example reaches heads.spare" in (anatomy[pinned].pinned or "")
    assert len(anatomy.growable()) == 1


def test_a_head_may_read_a_flattened_map() -> None:
    class Image(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv, self.pooled, self.flat = nn.Conv2d(3, 5, 3), nn.Linear(5, 3), nn.Linear(5 * 16, 3)

        def forward(self, x: Tensor, flat: bool = False) -> Tensor:
            x = torch.relu(self.conv(x))
            out: Tensor = self.flat(x.flatten(1)) if flat else self.pooled(x.mean((2, 3)))
            return out

    x = torch.randn(2, 3, 6, 6)
    assert "flat.weight" in (firefly.trace(Image(), x)["conv"].pinned or "")
    anatomy = firefly.trace(Image(), firefly.Examples(x, (x, True)))
    assert anatomy["conv"].pinned is None
    assert anatomy.flops() == firefly.trace(Image(), x).flops()  # those of the first example


def test_deepen_and_the_grower_take_several_examples() -> None:
    model = Heads()
    both = firefly.Examples(X, (X, "b"))
    before = model(X, "b")
    assert firefly.deepen(model, both, sites=["second"])
    assert torch.equal(model(X, "b"), before)
    grower = firefly.Firefly(model, both, budget=firefly.Neurons(4), steps=4)
    grower.grow(lambda net, batch: net(batch, "b").square().mean(), [X])
    assert model(X, "b").shape == (6, 5) and model(X, "a").shape == (6, 3)


def test_wrong_examples_are_named() -> None:
    with pytest.raises(firefly.FireflyError, match="one example or more"):
        firefly.Examples()
    with pytest.raises(firefly.FireflyError, match="name of a method"):
        firefly.Call(X)  # type: ignore[arg-type]
    with pytest.raises(firefly.FireflyError, match="Actor has no method 'judge'"):
        firefly.trace(Actor(), firefly.Examples(X, firefly.Call("judge", X)))


def test_tensors_are_found_wherever_they_are() -> None:
    class Own:
        def __init__(self) -> None:
            self.inner, self.name, self.me = {"x": [X, (X, 3)]}, "own", self

    assert len(tensors_in([Own(), torch.distributions.Normal(X, 1.0)])) == 4


@dataclass(slots=True)
class Slotted:
    features: Tensor


class Compact(nn.Module):
    """Returns its features in an object that has slots instead of a dict."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(8, 6), nn.Linear(6, 3)

    def forward(self, x: Tensor) -> tuple[Tensor, Slotted]:
        features = torch.relu(self.first(x))
        return self.last(features), Slotted(features)


def test_tensors_in_slots_are_outputs_too() -> None:
    assert len(tensors_in(Compact()(X))) == 2
    assert "output of the model" in (firefly.trace(Compact(), X)["first"].pinned or "")
