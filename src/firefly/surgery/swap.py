"""Put other tensors and sizes into a model for a while, and take them out again whatever happens."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from torch import Tensor, nn


def find_tensor(model: nn.Module, name: str) -> Tensor:
    path, _, leaf = name.rpartition(".")
    module = model.get_submodule(path)
    return module._parameters[leaf] if leaf in module._parameters else module._buffers[leaf]  # type: ignore[return-value]


Place = tuple[dict[str, Any], str, Any, Tensor]  # where a tensor stands, under which name, itself, its successor


def places(model: nn.Module, tensors: Mapping[str, Tensor]) -> list[Place]:
    """Every place where the named tensors stand, tied ones included, with what shall stand there."""
    by_id = {id(find_tensor(model, name)): tensor for name, tensor in tensors.items()}
    stores = [store for module in model.modules() for store in (module._parameters, module._buffers)]
    return [
        (store, key, tensor, by_id[id(tensor)])
        for store in stores
        for key, tensor in store.items()
        if id(tensor) in by_id
    ]


@contextmanager
def swapped(
    model: nn.Module, tensors: Mapping[str, Tensor], sizes: Iterable[tuple[str, str, int]] = ()
) -> Iterator[None]:
    """Inside the block the model holds these tensors and attribute values instead of its own."""
    found = places(model, tensors)
    attributes = [(model.get_submodule(path), name, value) for path, name, value in sizes]
    own = [(module, name, getattr(module, name)) for module, name, _ in attributes]
    try:
        for store, key, _, tensor in found:
            store[key] = tensor
        for module, name, value in attributes:
            setattr(module, name, value)
        yield
    finally:
        for store, key, tensor, _ in found:
            store[key] = tensor
        for module, name, value in own:
            setattr(module, name, value)


@contextmanager
def switched(modules: Iterable[nn.Module], training: bool) -> Iterator[None]:
    """Inside the block these modules are in train (or eval) mode; afterwards each is as it was."""
    before = [(module, module.training) for module in modules]
    try:
        for module, _ in before:
            module.training = training
        yield
    finally:
        for module, flag in before:
            module.training = flag
