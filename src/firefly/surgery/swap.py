"""Put other tensors and sizes into a model for a while, and take them out again whatever happens."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from torch import Tensor, nn

from firefly.surgery.guard import interruptible
from firefly.surgery.multihead import fit_class

Place = tuple[dict[str, Any], str, Any, Tensor]  # where a tensor stands, under which name, itself, its successor


def find_owner(model: nn.Module, name: str) -> nn.Module:
    """The module that a tensor of this name belongs to."""
    return model.get_submodule(name.rpartition(".")[0])


def find_tensor(model: nn.Module, name: str) -> Tensor:
    module, leaf = find_owner(model, name), name.rpartition(".")[2]
    return module._parameters[leaf] if leaf in module._parameters else module._buffers[leaf]  # type: ignore[return-value]


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


def get_size(module: nn.Module, name: str) -> Any:
    """The module's attribute `name`, or an item of it: `sizes[1]`."""
    name, _, item = name.partition("[")
    value = getattr(module, name)
    return value[int(item[:-1])] if item else value


def set_size(module: nn.Module, name: str, value: Any) -> None:
    name, _, item = name.partition("[")
    if item:
        old, at = getattr(module, name), int(item[:-1])
        value = type(old)([*old[:at], value, *old[at + 1 :]])
    setattr(module, name, value)
    if name == "num_heads":
        fit_class(module)


def list_sizes(module: nn.Module) -> Iterator[tuple[str, int]]:
    """The module's attributes that are whole numbers, and the items of those that are several."""
    for name, value in vars(module).items():
        items = value if type(value) in (tuple, list) and not name.startswith("_") else ()
        if type(value) is int:
            yield name, value
        yield from ((f"{name}[{k}]", item) for k, item in enumerate(items) if type(item) is int)


class exchanged(interruptible):
    """Inside the block other values stand at these places, (a dict or module, a key or attribute, the other value)."""

    def __init__(self, changes: Iterable[tuple[Any, str, Any]]) -> None:
        self.others = list(changes)
        self.own = [(where, key, read(where, key)) for where, key, _ in self.others]

    def __enter__(self) -> None:
        super().__enter__()
        try:
            for where, key, value in self.others:
                put(where, key, value)
        except BaseException:
            self.__exit__()
            raise

    def __exit__(self, *error: object) -> None:
        self.put_back()
        super().__exit__()

    def put_back(self) -> None:
        for where, key, value in reversed(self.own):
            put(where, key, value)


def read(where: Any, key: str) -> Any:
    return get_size(where, key) if isinstance(where, nn.Module) else where[key]


def put(where: Any, key: str, value: Any) -> None:
    if isinstance(where, nn.Module):
        set_size(where, key, value)
    else:
        where[key] = value


def stand_ins(model: nn.Module, tensors: Mapping[str, Tensor]) -> list[tuple[dict[str, Any], str, Tensor]]:
    """What `exchanged` takes to put these tensors into the model."""
    return [(store, key, other) for store, key, _, other in places(model, tensors)]


class swapped(exchanged):
    """Inside the block the model holds these tensors and attribute values instead of its own.

    What a forward notes on its modules meanwhile, such as a counter or its features, is gone afterwards.
    """

    def __init__(
        self, model: nn.Module, tensors: Mapping[str, Tensor], sizes: Iterable[tuple[str, str, int]] = ()
    ) -> None:
        super().__init__(
            [*stand_ins(model, tensors), *((model.get_submodule(path), name, value) for path, name, value in sizes)]
        )
        self.noted = [(vars(module), dict(vars(module))) for module in model.modules()]
        self.lists = [(one, list(one)) for _, own in self.noted for one in own.values() if type(one) is list]

    def put_back(self) -> None:
        super().put_back()
        for there, own in self.noted:
            for key in there.keys() - own.keys():
                del there[key]
            there.update((key, value) for key, value in own.items() if there.get(key) is not value)
        for one, items in self.lists:
            one[:] = items


def switched(modules: Iterable[nn.Module], training: bool) -> interruptible:
    """Inside the block these modules are in train (or eval) mode; afterwards each is as it was."""
    return exchanged((module, "training", training) for module in modules)


def clone_buffers(model: nn.Module) -> dict[str, Tensor]:
    """Copies of the model's buffers, for a forward in train mode to write to."""
    return {name: buffer.detach().clone() for name, buffer in model.named_buffers()}


def renew(old: Tensor, tensor: Tensor) -> Tensor:
    """The tensor as one of the old one's kind, on its device, with the marks and hooks that the user put on it."""
    new = tensor.to(old.device)
    if isinstance(old, nn.Parameter):
        new = nn.Parameter(new)
        for hook in (old._backward_hooks or {}).values():
            new.register_hook(hook)
        for hook in (getattr(old, "_post_accumulate_grad_hooks", None) or {}).values():
            new.register_post_accumulate_grad_hook(hook)
        new.requires_grad_(old.requires_grad)
    vars(new).update(vars(old))
    return new
