"""What is the same for every task: the user's small network, and to whom each of its tensors can belong.

`trace` says which slices of a tensor are which neurons. From that and from what changes with the number of classes,
every tensor is of one of four sorts:

    shared      weights and biases: each entry belongs to a task (`ownership.py`)
    followers   one number a neuron beside them, norms and their statistics: every task has its own
    head        whatever changes its shape with the number of classes: every task has its own
    others      small tensors and buffers without a width: every task has its own
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor, nn

from firefly.anatomy.examples import bring, run_examples
from firefly.anatomy.tracing import check_model, trace
from firefly.anatomy.widths import Anatomy, length
from firefly.continual.ownership import Tensors
from firefly.errors import FireflyError, first_line
from firefly.surgery.swap import find_tensor, places, renew, set_size, switched
from firefly.tensors import Layout, Run

Make = Callable[[int], nn.Module]
Layouts = Mapping[str, Layout]


@dataclass(frozen=True, eq=False)
class Blueprint:
    """The network that `make` builds, traced once."""

    make: Make
    example: Any
    anatomy: Anatomy
    shared: Layouts
    followers: Layouts
    head: Layouts
    others: tuple[str, ...]
    parameters: frozenset[str]  # the rest are buffers
    shapes: Mapping[str, tuple[int, ...]]  # for two classes
    dtypes: Mapping[str, str]
    traced: dict[int, Anatomy] = field(default_factory=dict)  # by the number of classes

    @property
    def sizes(self) -> dict[str, int]:
        """The neurons of the small network, per width that can grow."""
        return {width.name: width.size for width in self.anatomy.growable()}

    @property
    def private(self) -> tuple[str, ...]:
        return (*self.followers, *self.head, *self.others)

    def build(self, classes: int, seed: int = 0) -> nn.Module:
        """The small network for so many classes, its weights drawn from the seed."""
        model = call_make(self.make, classes, seed)
        shapes = list_shapes(model)
        differ = [name for name, shape in self.shapes.items() if shapes.get(name) != shape and name not in self.head]
        if differ or shapes.keys() != self.shapes.keys():
            raise FireflyError(
                f"make({classes}) builds other layers than make(2): only the head may depend on the number of classes"
            )
        check_answers(model, self.example, classes)
        return model

    def resize(self, model: nn.Module, tensors: Mapping[str, Tensor], sizes: Mapping[str, int]) -> nn.Module:
        """Put tensors of other sizes into the model, in place."""
        fresh = {name: renew(find_tensor(model, name), tensor) for name, tensor in tensors.items()}
        for store, name, _, new in places(model, fresh):
            store[name] = new
        for path, attribute, size in self.anatomy.mirrored(sizes):
            set_size(model.get_submodule(path), attribute, size)
        return model

    def find_anatomy(self, classes: int, sizes: Mapping[str, int]) -> Anatomy:
        """What a trace of the network for so many classes, with widths of these sizes, would find."""
        if classes not in self.traced:
            self.traced[classes] = trace(self.build(classes), self.example)
        return self.traced[classes].resized(sizes)

    def describe(self) -> dict[str, Any]:
        """The widths and tensors as plain JSON, by which a folder knows its network again."""
        sorts: dict[str, Layouts] = {"shared": self.shared, "followers": self.followers}
        tensors: dict[str, Any] = {name: {"sort": "head", "shape": [*self.shapes[name]]} for name in self.head}
        tensors |= {name: {"sort": "others", "shape": [*self.shapes[name]]} for name in self.others}
        for sort, layouts in sorts.items():
            for name, layout in layouts.items():
                dims = [[[run.width, run.size, run.block] for run in runs] for runs in layout.dims]
                tensors[name] = {"sort": sort, "dims": dims}
        for name, told in tensors.items():
            told |= {"parameter": name in self.parameters, "dtype": self.dtypes[name]}
        return {"widths": self.sizes, "tensors": tensors}


def read_blueprint(make: Make, example: Any) -> Blueprint:
    """Trace the small network, and find the head: what differs between two and three classes."""
    if not callable(make) or isinstance(make, nn.Module):
        raise FireflyError(f"make is a {type(make).__name__}: give a function from a number of classes to a network")
    model, other = call_make(make, 2), list_tensors(call_make(make, 3))
    example = bring(example, model)
    tensors = list_tensors(model)
    heads = [name for name, tensor in tensors.items() if name in other and other[name].shape != tensor.shape]
    if tensors.keys() != other.keys() or not heads:
        raise FireflyError("make(2) and make(3) must be one network with two and three answers: only heads may differ")
    anatomy = trace(model, example)
    if not anatomy.growable():
        reasons = "; ".join(f"{width.name}: {width.pinned}" for width in list(anatomy)[:3])
        way = "put a layer between two norms, or use batch norms" if "norm" in reasons else "make a deeper one"
        raise FireflyError(f"no layer of make(2) can grow, so tasks could share nothing ({reasons}): {way}")
    layouts = {name: anatomy.layouts.get(name) or lay_plain(name, tensor) for name, tensor in tensors.items()}
    weights = [name for name, lay in layouts.items() if is_shared(lay) and name not in heads]
    beside = [name for name in tensors if name in anatomy.layouts and name not in (*weights, *heads)]
    others = tuple(name for name in tensors if name not in (*weights, *beside, *heads))
    shared, follow, head = ({name: layouts[name] for name in names} for names in (weights, beside, heads))
    parameters = frozenset(name for name, _ in model.named_parameters())
    for name, layout in head.items():
        for runs, here, there in zip(layout.dims, tensors[name].shape, other[name].shape):
            grows = [run.width for run in runs if run.width]
            if grows and here != there:
                raise FireflyError(
                    f"layer {grows[0]} of make(classes) has another width for another number of classes, and would "
                    "grow: make it as wide for all"
                )
    dtypes = {name: str(tensor.dtype) for name, tensor in tensors.items()}
    return Blueprint(make, example, anatomy, shared, follow, head, others, parameters, list_shapes(model), dtypes)


def is_shared(layout: Layout) -> bool:
    """Weights, and the biases of the neurons they make."""
    return layout.parameter and (len(layout.dims) > 1 or "makes" in layout.roles)


def lay_plain(name: str, tensor: Tensor) -> Layout:
    dims = tuple((Run(None, size),) for size in tensor.shape)
    return Layout(name, dims, (None,) * tensor.ndim, parameter=isinstance(tensor, nn.Parameter))


def list_tensors(model: nn.Module) -> Tensors:
    """The parameters and buffers by name."""
    return {**dict(model.named_parameters()), **dict(model.named_buffers())}


def list_shapes(model: nn.Module) -> dict[str, tuple[int, ...]]:
    return {name: tuple(tensor.shape) for name, tensor in list_tensors(model).items()}


def call_make(make: Make, classes: int, seed: int = 0) -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        try:
            model = make(classes)
        except TypeError as error:
            raise FireflyError(f"make({classes}) failed: {first_line(error)}; it takes a number of classes") from error
    check_model(model)
    return model


@torch.no_grad()
def check_answers(model: nn.Module, example: Any, classes: int) -> None:
    """Refuse a network that does not answer with a number per class."""
    with switched(model.modules(), False):
        answers = run_examples(model, example)
    first = answers[0] if isinstance(answers, (list, tuple)) else answers
    if not isinstance(first, Tensor) or first.ndim != 2 or first.shape[1] != classes:
        what = f"shape {tuple(first.shape)}" if isinstance(first, Tensor) else f"a {type(first).__name__}"
        raise FireflyError(f"make({classes}) answers with {what}: a task of {classes} classes needs (batch, {classes})")


def draw_head(layout: Layout, small: Tensor, sizes: Mapping[str, int], generator: torch.Generator) -> Tensor:
    """A fresh head for widths of these sizes: as large as the small one's, relative to what it reads."""
    shape = [length(runs, sizes) for runs in fit_plain(layout, small).dims]
    if shape == list(small.shape) or not small.is_floating_point():
        return small.detach().clone()
    read = layout.role("reads") or 0
    rms = small.detach().double().square().mean().sqrt() * (small.shape[read] / max(shape[read], 1)) ** 0.5
    return (torch.randn(shape, generator=generator, dtype=torch.float64) * rms).to(small.dtype)


def fit_plain(layout: Layout, tensor: Tensor) -> Layout:
    """The layout with axes without neurons as long as the tensor's: those of a head are as long as it has classes."""
    plain = (runs if any(run.width for run in runs) else (Run(None, n),) for runs, n in zip(layout.dims, tensor.shape))
    return replace(layout, dims=tuple(plain))
