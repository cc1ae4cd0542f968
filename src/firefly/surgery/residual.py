"""The dormant layer (Sec. 2.3): a residual I + h whose hidden width is 0, put into a model without changing its code.

    h(z) = Σ_i ε_i u_i σ(norm(conv(z; δ_i)))

While it has no neurons it returns its input itself, so that the model computes what it did before, bit for bit. Growing
it is `New` from 0. It lives as a child of the module whose output it takes, in a list under the reserved name `deeper`,
and a forward hook applies it: the model keeps its classes, its names and its forward.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from itertools import chain
from typing import Any

import torch
from torch import Tensor, nn

from firefly.errors import FireflyError
from firefly.ranks.wrap import is_in_wrapper
from firefly.surgery.guard import interruptible
from firefly.surgery.swap import swapped

NAME = "deeper"
CONVOLUTIONS = {1: nn.Conv1d, 2: nn.Conv2d, 3: nn.Conv3d}
NORMS = {1: nn.BatchNorm1d, 2: nn.BatchNorm2d, 3: nn.BatchNorm3d}
PROBE = 3  # hidden neurons of a dormant layer while it is traced


class Residual(nn.Module):
    """I + h with a hidden width that begins at 0; `space` is how many dimensions it slides over (0: a linear layer)."""

    make: Any
    norm: Any
    read: Any

    def __init__(
        self,
        channels: int,
        space: int = 2,
        kernel: int = 3,
        norm: bool = True,
        activation: type[nn.Module] = nn.ReLU,
        device: Any = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        if space:  # on "meta" first, so that no random number is drawn
            self.make = CONVOLUTIONS[space](channels, 1, kernel, padding=kernel // 2, bias=False, device="meta")
            self.read = CONVOLUTIONS[space](1, channels, 1, bias=False, device="meta")
        else:
            self.make = nn.Linear(channels, 1, bias=False, device="meta")
            self.read = nn.Linear(1, channels, bias=False, device="meta")
        self.norm = NORMS[space](1, device="meta") if norm and space else nn.Identity()
        self.activation = activation()
        for path, shape in _shapes(self, 0).items():
            _set(self, path, torch.empty(shape, device=device, dtype=dtype))
        if norm and space:
            self.norm.num_batches_tracked = torch.zeros((), dtype=torch.long, device=device)
        for path, attribute, value in _sizes(self, 0):
            setattr(self.get_submodule(path), attribute, value)

    @property
    def dormant(self) -> bool:
        return bool(self.make.weight.shape[0] == 0)

    def forward(self, x: Tensor) -> Tensor:
        if self.dormant:
            return keep_alive(x, self.parameters()) if is_in_wrapper() else x
        return x + self.read(self.activation(self.norm(self.make(x))))


def keep_alive(x: Tensor, empty: Iterable[Tensor]) -> Tensor:
    """The same, to the last bit; but the empty parameters get gradients, for which DistributedDataParallel waits."""
    return x - torch.stack([one.sum() for one in empty]).sum().to(x.dtype)


def _set(layer: Residual, path: str, tensor: Tensor) -> None:
    module, name = layer.get_submodule(path.rpartition(".")[0]), path.rpartition(".")[2]
    setattr(module, name, nn.Parameter(tensor) if name in module._parameters else tensor)


def _shapes(layer: Residual, hidden: int) -> dict[str, tuple[int, ...]]:
    """The shapes of its tensors with so many neurons."""
    make, read = layer.make.weight, layer.read.weight
    shapes = {"make.weight": (hidden, *make.shape[1:]), "read.weight": (read.shape[0], hidden, *read.shape[2:])}
    norms = () if isinstance(layer.norm, nn.Identity) else ("weight", "bias", "running_mean", "running_var")
    return {**shapes, **{f"norm.{name}": (hidden,) for name in norms}}


def _sizes(layer: Residual, hidden: int) -> list[tuple[str, str, int]]:
    """(module, attribute, value) for what mirrors its number of neurons."""
    of = "features" if isinstance(layer.make, nn.Linear) else "channels"
    norm = [] if isinstance(layer.norm, nn.Identity) else [("norm", "num_features", hidden)]
    return [("make", f"out_{of}", hidden), *norm, ("read", f"in_{of}", hidden)]


def apply_layers(module: nn.Module, args: Any, output: Tensor) -> Tensor:
    """The forward hook: the module's output through its residual layers, one after the other."""
    for layer in module.deeper:  # type: ignore[union-attr]
        output = layer(output)
    return output


def is_free(module: nn.Module) -> bool:
    """Whether the reserved name is not in use, or only by us."""
    there = getattr(module, NAME, ())
    return isinstance(there, (nn.ModuleList, tuple)) and all(isinstance(one, Residual) for one in there)


def put(model: nn.Module, site: str, layer: Residual) -> str:
    """Put a layer behind a module, as the last one there; returns its path."""
    module = model.get_submodule(site)
    if NAME not in module._modules:
        module.add_module(NAME, nn.ModuleList())
        module.register_forward_hook(apply_layers)
    layers: Any = module._modules[NAME]
    layer.train(module.training)
    layers.append(layer)
    return f"{site}.{NAME}.{len(layers) - 1}"


def take_out(model: nn.Module, paths: Iterable[str]) -> None:
    """Undo `put` for layers that were put last; where none is left the hook goes too."""
    for path in reversed(list(paths)):
        site = model.get_submodule(path.rpartition(f".{NAME}.")[0])
        layers: Any = site._modules[NAME]
        del layers[len(layers) - 1]
        if not len(layers):
            del site._modules[NAME]
            for key, hook in list(site._forward_hooks.items()):
                if hook is apply_layers:
                    del site._forward_hooks[key]


def find_layers(model: nn.Module) -> dict[str, Residual]:
    """Every layer of ours in the model, by path, dormant or not."""
    return {path: module for path, module in model.named_modules() if isinstance(module, Residual)}


def find_dormant(model: nn.Module) -> dict[str, Residual]:
    """The layers that growth may wake: dormant, and not frozen."""
    layers = find_layers(model).items()
    return {path: one for path, one in layers if one.dormant and all(p.requires_grad for p in one.parameters())}


def awake(model: nn.Module, layers: Mapping[str, Residual]) -> interruptible:
    """Inside the block these dormant layers have a few random neurons, so that their widths can be traced."""
    generator = torch.Generator().manual_seed(0)
    tensors: dict[str, Tensor] = {}
    sizes: list[tuple[str, str, int]] = []
    for path, layer in layers.items():
        for name, shape in _shapes(layer, PROBE).items():
            tensors[f"{path}.{name}"] = draw(layer, name, shape, generator)
        sizes += [(f"{path}.{module}", attribute, value) for module, attribute, value in _sizes(layer, PROBE)]
    return swapped(model, tensors, sizes)


def draw(layer: Residual, name: str, shape: Sequence[int], generator: torch.Generator) -> Tensor:
    """Random weights of this shape for one of its tensors; a norm begins as torch's does."""
    module, leaf = layer.get_submodule(name.rpartition(".")[0]), name.rpartition(".")[2]
    old: Tensor = getattr(module, leaf)
    if len(shape) > 1:
        value = torch.randn(shape, generator=generator) / math.prod(shape[1:]) ** 0.5
    else:
        value = torch.ones(shape) if leaf in ("weight", "running_var") else torch.zeros(shape)
    value = value.to(old.device, old.dtype)
    return nn.Parameter(value) if leaf in module._parameters else value


# ---- in a checkpoint -------------------------------------------------------------------------------------------------


def describe(model: nn.Module) -> list[dict[str, Any]]:
    """Each layer that was put into the model, as plain JSON, enough to put it there again; others are its own."""
    return [
        {
            "path": path,
            "channels": layer.read.weight.shape[0],
            "space": layer.make.weight.ndim - 2,
            "kernel": layer.make.weight.shape[-1] if layer.make.weight.ndim > 2 else 1,
            "norm": not isinstance(layer.norm, nn.Identity),
            "activation": type(layer.activation).__name__,
            "dtype": str(layer.make.weight.dtype).removeprefix("torch."),
        }
        for path, layer in find_layers(model).items()
        if f".{NAME}." in path
    ]


def put_again(model: nn.Module, described: Iterable[Mapping[str, Any]]) -> list[str]:
    """Put the described layers that the model lacks, dormant; returns their paths. On a failure none is put."""
    there = find_layers(model)
    modules = dict(model.named_modules())
    done: list[str] = []
    try:
        for one in described:
            site = one["path"].rpartition(f".{NAME}.")[0]
            if one["path"] not in there and site in modules:
                if not is_free(modules[site]):
                    raise FireflyError(f"{site} has an attribute {NAME!r} of its own, where {one['path']} should stand")
                done.append(put(model, site, _revive(modules[site], model, one)))
                if done[-1] != one["path"]:
                    raise FireflyError(f"the checkpoint holds the layer {one['path']} but none before it there")
    except BaseException:
        take_out(model, done)
        raise
    return done


def _revive(site: nn.Module, model: nn.Module, one: Mapping[str, Any]) -> Residual:
    activation: Any = getattr(nn, one["activation"], None)
    dtype: Any = getattr(torch, one["dtype"], None)
    if not is_activation(activation):
        raise FireflyError(
            f"the layer {one['path']} has the activation {one['activation']!r}, which torch.nn does not have: "
            "call firefly.deepen with it before firefly.load"
        )
    if not isinstance(dtype, torch.dtype) or not dtype.is_floating_point:
        raise FireflyError(f"the layer {one['path']} has the dtype {one['dtype']!r}: load another checkpoint")
    like = next(chain(site.parameters(), model.parameters()))
    how = {key: one[key] for key in ("channels", "space", "kernel", "norm")}
    return Residual(**how, activation=activation, device=like.device, dtype=dtype)


def is_activation(kind: Any) -> bool:
    """Whether this is a module class that needs no arguments."""
    if not isinstance(kind, type) or not issubclass(kind, nn.Module):
        return False
    try:
        kind()
    except Exception:
        return False
    return True
