"""Examples: what the model is run on to see how its layers depend on each other, one for each path through it.

    firefly.trace(model, x)                                       a tensor, or a tuple of forward's arguments
    firefly.trace(model, {"input_ids": tokens})                   or a dict of its keyword arguments
    firefly.trace(model, firefly.Examples(x, {"x": x, "task": "b"}, firefly.Call("critic", x)))

Layers that no example reaches keep their size, and so does what may feed them (`reach.py`). FLOPs are counted on the
first example.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence
from torch.utils._pytree import tree_map

from firefly.errors import FireflyError

MOVES: tuple[Any, ...] = (Tensor, PackedSequence)


class Call:
    """An example for a method other than forward: `Call("critic", x)` runs `model.critic(x)`."""

    def __init__(self, method: str, /, *args: Any, **kwargs: Any) -> None:
        if not isinstance(method, str):
            raise FireflyError(f'Call takes the name of a method first, Call("critic", x), not {type(method).__name__}')
        self.method, self.args, self.kwargs = method, args, kwargs

    def __call__(self, model: nn.Module) -> Any:
        if self.method == "forward":
            return model(*self.args, **self.kwargs)
        method = getattr(model, self.method, None)
        if not callable(method):
            raise FireflyError(f"{type(model).__name__} has no method {self.method!r} for Call({self.method!r}, ...)")
        return method(*self.args, **self.kwargs)


class Examples:
    """Several examples, one for each path through the model: tensors, tuples, dicts and `Call`s."""

    def __init__(self, *examples: Any) -> None:
        if not examples or any(isinstance(example, Examples) for example in examples):
            raise FireflyError("Examples takes one example or more: tensors, tuples, dicts or firefly.Call")
        self.calls = tuple(as_call(example) for example in examples)


def as_call(example: Any) -> Call:
    if isinstance(example, Call):
        return example
    if isinstance(example, Mapping):
        if not all(isinstance(key, str) for key in example):
            raise FireflyError(
                f"the example is a dict whose keys are {', '.join(map(repr, example))}: give the names of forward's "
                "arguments, or (batch,) for a dict that forward takes as it is"
            )
        return Call("forward", **example)
    several = isinstance(example, (tuple, list)) and not hasattr(example, "_fields")  # a packed sequence is one
    return Call("forward", *(example if several else (example,)))


def as_calls(example: Any) -> tuple[Call, ...]:
    return example.calls if isinstance(example, Examples) else (as_call(example),)


def bring(example: Any, model: nn.Module) -> Any:
    """The example where the model is; as it stands if the model is in several places, or nowhere."""
    places = {tensor.device for tensor in (*model.parameters(), *model.buffers())}
    if len(places) != 1:
        return example
    (device,) = places

    def move(part: Any) -> Any:
        if isinstance(part, Tensor) and part.is_meta:
            raise FireflyError("the example is on the meta device, without values: give one with values")
        return part.to(device) if isinstance(part, MOVES) else part

    return map_examples(move, example)


def map_examples(change: Callable[[Any], Any], example: Any) -> Examples:
    """The examples with every tensor in them changed."""
    calls = as_calls(example)
    return Examples(*(Call(c.method, *tree_map(change, c.args), **tree_map(change, c.kwargs)) for c in calls))


def run_examples(model: nn.Module, example: Any) -> list[Tensor]:
    """The tensors that the model returns on every example; on copies of it, as a forward may write to its input."""

    def copy(part: Any) -> Any:
        return part.clone() if isinstance(part, Tensor) else part

    return [tensor for call in map_examples(copy, example).calls for tensor in tensors_in(call(model))]


def tensors_in(output: Any) -> list[Tensor]:
    """All tensors in what a model returns, whatever holds them: a dict, a distribution, an object of one's own.

    Not those of a cache of keys and values, which only the model itself reads again.
    """
    found: list[Tensor] = []
    seen: set[int] = set()

    def look(value: Any) -> None:
        if isinstance(value, Tensor):
            found.append(value)
            return
        kinds = {kind.__name__ for kind in type(value).__mro__}
        if id(value) in seen or isinstance(value, (str, bytes, type, nn.Module)) or "Cache" in kinds:
            return
        seen.add(id(value))
        if isinstance(value, Mapping):
            inner: Any = value.values()
        elif isinstance(value, (tuple, list, set, frozenset)):
            inner = value
        else:
            slots = [name for kind in type(value).__mro__ for name in vars(kind).get("__slots__", ())]
            inner = [getattr(value, name) for name in ("__dict__", *slots) if hasattr(value, name)]
        for item in list(inner):
            look(item)

    look(output)
    return found
