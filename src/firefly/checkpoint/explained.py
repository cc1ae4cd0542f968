"""Which differences between a model and a checkpoint growth explains; a checkpoint with others is of another model.

Growth makes widths larger: of each, tensors that make its neurons, tensors that read them, and some that follow (Sec.
2.1). Inputs, outputs, kernels and tables stay as they are. There is no example to trace when a model is loaded, so what
is certain must do: no size falls; what torch's own layers read, make and keep fixed is known; a reader grew no more,
for its size, than some maker, or than a part of it can have; a maker has a reader elsewhere. Where a module is the
user's own, any role is possible.
"""

from dataclasses import dataclass
from fractions import Fraction
from functools import cache
from inspect import signature
from math import gcd, inf
from typing import Any

from torch import nn
from torch.nn.modules.batchnorm import _NormBase
from torch.nn.modules.conv import _ConvNd, _ConvTransposeNd

from firefly.checkpoint.model import find_new_sizes, is_extra, refuse
from firefly.checkpoint.packing import Json, Tensors

LAYERS = (nn.Linear, _ConvNd, nn.Embedding, nn.EmbeddingBag)
NORMS = (_NormBase, nn.GroupNorm, nn.LayerNorm, nn.RMSNorm, nn.PReLU)
FIXED = {"kernel_size", "stride", "padding", "output_padding", "dilation", "num_embeddings", "padding_idx"} | {
    *("num_layers", "start_dim", "end_dim", "dim", "upscale_factor", "downscale_factor", "output_size", "ceil_mode")
}  # whole numbers of torch's layers that are no mirrors of a width


@dataclass(frozen=True)
class Grown:
    """One dimension of a tensor that is larger in the checkpoint."""

    name: str
    tensor: int  # its id: tied ones are one
    own: int
    saved: int
    roles: frozenset[str]

    @property
    def factor(self) -> Fraction | float:
        return Fraction(self.saved, self.own) if self.own else inf


def check_growth(model: nn.Module, state: Tensors, attributes: Json, weights: Tensors) -> None:
    """Refuse a checkpoint whose sizes no growth of this model can have reached."""
    shapes = {n: (tuple(own.shape), tuple(weights[n].shape)) for n, own in state.items() if not is_extra(n)}

    def tell(names: Any) -> list[str]:
        return [f"{n} {shapes[n][1]}, not {shapes[n][0]}" for n in sorted(set(names)) if n in shapes]

    smaller = [name for name, (own, saved) in shapes.items() if any(b < a for a, b in zip(own, saved))]
    refuse("tensors smaller than the model's own", tell(smaller))
    grown = list_grown(model, state, shapes)
    refuse("other sizes where growth changes none", tell(one.name for one in grown if "fixed" in one.roles))
    refuse("larger tensors that no growth explains", tell(one.name for one in grown if not is_explained(one, grown)))
    for path, module in model.named_modules(remove_duplicate=False):
        check_attributes(path, module, attributes.get(path, {}), grown)


def list_grown(model: nn.Module, state: Tensors, shapes: dict[str, Any]) -> list[Grown]:
    """Every dimension that is larger in the checkpoint, with the roles it may have."""
    roles: dict[tuple[int, int], set[str]] = {}
    for name in shapes:
        path, _, leaf = name.rpartition(".")
        for dim in range(len(shapes[name][0])):
            roles.setdefault((id(state[name]), dim), set()).update(find_roles(model.get_submodule(path), leaf, dim))
    return [
        Grown(name, id(state[name]), a, b, frozenset(roles[id(state[name]), dim]))
        for name, (own, saved) in shapes.items()
        for dim, (a, b) in enumerate(zip(own, saved))
        if a != b
    ]


def find_roles(module: nn.Module, leaf: str, dim: int) -> set[str]:
    """What growth may do along this dimension: of torch's own layers it is known."""
    if leaf in module._buffers:
        return {"follows"}
    if not type(module).__module__.startswith("torch.nn.modules") or not isinstance(module, (*LAYERS, *NORMS)):
        return {"makes", "reads"}
    if isinstance(module, NORMS):
        return {"follows"}
    if leaf == "bias":
        return {"makes"}
    if isinstance(module, (nn.Embedding, nn.EmbeddingBag)):
        return {"makes"} if dim else {"fixed"}
    made = 1 if isinstance(module, _ConvTransposeNd) else 0
    return {"makes" if dim == made else "reads"} if dim < 2 else {"fixed"}


def is_explained(one: Grown, grown: list[Grown]) -> bool:
    """Whether a width may have grown here: another tensor makes it, or reads what this one makes."""
    others = [other for other in grown if other.tensor != one.tensor]
    makers = [other for other in others if "makes" in other.roles]
    made = any(maker.factor >= one.factor for maker in makers) or is_part(one, makers)
    read = any("reads" in other.roles for other in others)
    return ("reads" in one.roles and made) or ("makes" in one.roles and read) or (made and read)


def is_part(one: Grown, makers: list[Grown]) -> bool:
    """Whether it may read one of the parts that others are cut into, which grows by a larger share than the whole."""
    block = gcd(one.own, one.saved)
    neurons, more = one.own // block, (one.saved - one.own) // block
    return neurons <= sum(m.own for m in makers) and more <= sum(m.saved - m.own for m in makers)


def check_attributes(path: str, module: nn.Module, saved: Json, grown: list[Grown]) -> None:
    """Refuse other whole numbers on torch's layers than those that mirror a width; the user's own may be anything."""
    kind: Any = type(module)
    theirs = list_options(kind)
    inside = [one for one in grown if one.name.rpartition(".")[0] == path]
    for name, value in find_new_sizes(module, saved).items():
        old = getattr(module, name)
        if name in theirs and (name in FIXED or not is_mirrored(old, value, inside, grown)):
            refuse(f"{name}={value} where the model has {old}", [path or "the model"])


@cache
def list_options(kind: Any) -> frozenset[str]:
    """The options of torch's own layer that this class is or derives from."""
    torchs = [one for one in kind.__mro__ if one.__module__.startswith("torch.nn.modules") and one is not nn.Module]
    return frozenset(name for one in torchs for name in signature(one).parameters)


def is_mirrored(old: Any, value: Any, inside: list[Grown], grown: list[Grown]) -> bool:
    """Whether a size went along with a tensor of its module, or in one without tensors with any of the model."""
    if isinstance(old, (tuple, list)):
        return len(old) == len(value) and all(a == b or is_mirrored(a, b, inside, grown) for a, b in zip(old, value))
    if inside:
        return any(one.own * value == one.saved * old for one in inside)
    return value > old and any(one.own * value <= one.saved * old for one in grown)
