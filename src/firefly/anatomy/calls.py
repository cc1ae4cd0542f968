"""What each module of a model is given and returns in one forward, and where that divides the model in two."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import ExitStack
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn

from firefly.anatomy.examples import as_calls, tensors_in
from firefly.errors import FireflyError, first_line
from firefly.surgery.guard import interruptible, unbroken
from firefly.surgery.quiet import chance_kept
from firefly.surgery.residual import NAME, is_free
from firefly.surgery.swap import clone_buffers, swapped, switched


@dataclass
class Call:
    """What a module was given and returned, when, and how often it was called."""

    name: str
    module: nn.Module
    order: int
    given: Any
    output: Any
    node: Any  # of autograd, for its output
    source: Call | None  # the call that returned what it was given
    ends: list[Any]  # the nodes of the model's outputs
    times: int = 1

    @cached_property
    def divides(self) -> bool:
        """Whether the rest of the model sees nothing else of what came before."""
        return self.node is not None and _divides(self.node, self.ends)

    @property
    def misfit(self) -> str | None:
        """Why no layer can stand behind this module."""
        if self.times > 1:
            return f"it is called {self.times} times in one forward"
        out = self.output
        if not isinstance(out, Tensor) or not out.is_floating_point() or not 2 <= out.ndim <= 5:
            return "its output is not one tensor of floating-point numbers with channels"
        if not is_free(self.module):
            return f"it has an attribute {NAME!r} of its own"
        if isinstance(self.module, nn.Sequential):
            return "it is a Sequential with a forward of its own"
        return None


def watch(model: nn.Module, example: Any) -> dict[str, Call]:
    """Every module's call in one forward on the example, or on the first of several that reaches it."""
    found: dict[str, Call] = {}
    for one in as_calls(example):
        for name, call in _watch_one(model, one).items():
            known = found.setdefault(name, call)
            known.times = max(known.times, call.times)
    return found


def _watch_one(model: nn.Module, example: Any) -> dict[str, Call]:
    """In the order in which they ended."""
    calls: dict[str, Call] = {}
    makers: dict[int, Call] = {}
    ends: list[Any] = []

    def record(name: str) -> Any:
        def hook(module: nn.Module, given: Any, output: Any) -> None:
            if name in calls:
                calls[name].times += 1
            else:
                first = next((x for x in given if isinstance(x, Tensor)), None)
                node, source = getattr(output, "grad_fn", None), makers.get(id(first))
                calls[name] = Call(name, module, len(calls), first, output, node, source, ends)
                makers.setdefault(id(output), calls[name])

        return hook

    try:
        with (
            interruptible(),
            chance_kept(model),
            torch.enable_grad(),
            switched(model.modules(), False),
            swapped(model, clone_buffers(model)),
            ExitStack() as hooks,
        ):
            with unbroken():
                for name, module in model.named_modules():
                    hooks.callback(module.register_forward_hook(record(name)).remove)
            outputs = tensors_in(example(model))
    except Exception as error:
        raise FireflyError(f"the model does not run on the example: {first_line(error)}") from error
    ends += [tensor.grad_fn for tensor in outputs if tensor.grad_fn is not None]
    return calls


def _divides(node: Any, ends: list[Any]) -> bool:
    """Whether every path from the model's outputs back to what lies before the node leads through it."""
    around = _reach(ends, without=node)
    before = _reach([parent for parent, _ in node.next_functions])
    shared = (one for one in around & before if type(one).__name__ != "AccumulateGrad")  # tied weights may be shared
    return node not in around and not any(shared)


def _reach(ends: Iterable[Any], without: Any = None) -> set[Any]:
    found: set[Any] = set()
    stack = [node for node in ends if node is not None and node is not without]
    while stack:
        node = stack.pop()
        if node not in found:
            found.add(node)
            stack += [parent for parent, _ in node.next_functions if parent is not None and parent is not without]
    return found
