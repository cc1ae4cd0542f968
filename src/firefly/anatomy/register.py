"""`register`: teach Firefly a layer of your own, where the operators inside it would pin its widths."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from torch import nn

from firefly.anatomy import axes
from firefly.anatomy.axes import Axis
from firefly.errors import FireflyError

if TYPE_CHECKING:
    from firefly.anatomy.graph import Flow, Value


@dataclass(frozen=True)
class Layer:
    """What the user said of a layer of their own (`firefly.register`)."""

    makes: Mapping[str, int]
    reads: Mapping[str, int]
    follows: Mapping[str, int]
    sizes: Mapping[str, str]
    channel: int

    def flow(self, flow: Flow, path: str, x: Value) -> list[Axis]:
        """The axes of what the layer at this path makes of x."""

        def tensor(leaf: str) -> Value:
            name = f"{path}.{leaf}".lstrip(".")
            if name not in flow.tensors:
                raise FireflyError(f"register: the layer {path!r} has no parameter {leaf!r} that its forward uses")
            return flow.tensors[name]

        given = x.dims[self.channel]
        for leaf, dim in self.reads.items():
            flow.reads(given, tensor(leaf), dim)
            places = [axis for d, axis in enumerate(x.dims) if d != self.channel % len(x.dims)]
            flow.cost(*places, *tensor(leaf).dims)
        made = given if not self.makes else tensor(next(iter(self.makes))).dims[next(iter(self.makes.values()))]
        for leaf, dim in self.makes.items():
            value = tensor(leaf)
            flow.same(made, value.dims[dim])
            flow.makes(value, dim)
            if len(value.dims) == 1:
                flow.starts.setdefault(f"{path}.{leaf}".lstrip("."), "zero")
        for leaf, dim in self.follows.items():
            flow.follows(tensor(leaf), made, "as registered", dim)
        for attribute, side in self.sizes.items():
            flow.mirror(attribute, made if side == "makes" else given, path)
        shape = flow.outputs()
        dims = [axes.fixed(n, f"it is a fixed dimension of {path}") for n in shape]
        dims[self.channel] = made
        return dims


LAYERS: dict[type[nn.Module], Layer] = {}


def register(
    layer: type[nn.Module],
    *,
    makes: Mapping[str, int] | None = None,
    reads: Mapping[str, int] | None = None,
    follows: Mapping[str, int] | None = None,
    sizes: Mapping[str, str] | None = None,
    channel: int = -1,
) -> None:
    """Teach Firefly a layer of your own, where the operators inside it would pin its widths.

    Args:
        layer: the class; it takes one tensor and returns one tensor.
        makes: parameter -> the dimension along which it makes the layer's output neurons.
        reads: parameter -> the dimension along which it reads the input neurons, linearly.
        follows: parameter or buffer -> the dimension with one entry per output neuron.
        sizes: attribute -> "makes" or "reads", for whole-number attributes that mirror the two sizes.
        channel: the dimension of the input and output tensors that holds the neurons.
    """
    if not (isinstance(layer, type) and issubclass(layer, nn.Module)):
        raise FireflyError(f"register: {layer!r} is not a class of nn.Module")
    if not makes and not reads and not follows:
        raise FireflyError(
            f"register({layer.__name__}): say at least which parameters make, read or follow the neurons"
        )
    wrong = [side for side in (sizes or {}).values() if side not in ("makes", "reads")]
    if wrong:
        raise FireflyError(f"register({layer.__name__}): sizes must map to 'makes' or 'reads', not {wrong[0]!r}")
    LAYERS[layer] = Layer(makes or {}, reads or {}, follows or {}, sizes or {}, channel)
