"""Follow the channel dimensions of a model through its exported graph (the design's "finding the widths").

`Flow` walks the operators of one exported forward and asks the rule of each (`rules/`) how the axes of its inputs
relate to those of its outputs. It only reads the graph; the model itself always runs as its author wrote it.
"""

from __future__ import annotations

import itertools
import math
import operator
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import torch
from torch import fx, nn
from torch.export.graph_signature import InputKind, OutputKind

from firefly.anatomy import axes
from firefly.anatomy.axes import Axis
from firefly.anatomy.exporting import inside
from firefly.anatomy.reasons import TORCH, is_users, tell
from firefly.anatomy.register import LAYERS
from firefly.errors import FireflyError
from firefly.surgery.swap import find_tensor

Source = frozenset[tuple[str, int]]  # (name of a parameter or buffer, one of its dimensions)
NOWHERE: Source = frozenset()


@dataclass(frozen=True)
class Value:
    """A tensor in the graph: one axis per dimension, and the parameters it is made of if it is made of nothing else."""

    dims: tuple[Axis, ...]
    sources: tuple[Source, ...]
    direct: bool = False  # the very entries of one parameter, at most rearranged

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(axes.length(axis) for axis in self.dims)


def activation(dims: Iterable[Axis]) -> Value:
    dims = tuple(dims)
    return Value(dims, (NOWHERE,) * len(dims))


Choice = tuple[str, str]  # an operator and the line where it stands


@dataclass(frozen=True)
class Mirror:
    """An attribute of a module that equals the length of an axis."""

    module: str
    attribute: str
    axis: Axis


def name_of(target: Any) -> str:
    """The name of an operator, such as `aten::mul`, or of the function that stands in the graph."""
    return str(target._schema.name) if hasattr(target, "_schema") else str(getattr(target, "__name__", target))


def _module(path: str) -> str:
    """The module's name in the model; a second call of it is marked in the graph."""
    return inside(re.sub(r"@\d+$", "", path))


@dataclass
class Flow:
    """What the graph says about the model's tensors: axes, roles, attributes that mirror sizes, and costs."""

    model: nn.Module
    tensors: dict[str, Value] = field(default_factory=dict)
    roles: dict[tuple[str, int], set[str]] = field(default_factory=dict)
    starts: dict[str, str] = field(default_factory=dict)
    mirrors: list[Mirror] = field(default_factory=list)
    shaped: list[tuple[str, Axis, int | None]] = field(default_factory=list)  # axes that a module's forward spells out
    costs: list[tuple[Axis, ...]] = field(default_factory=list)  # multiply-adds as products of axes
    passed: list[Value] = field(default_factory=list)  # what the operators return
    called: set[str] = field(default_factory=set)  # the modules in whose forward they stand
    choices: dict[Choice, int] = field(default_factory=dict)  # how to read what can be read in several ways
    asked: dict[Choice, tuple[int, list[Axis]]] = field(default_factory=dict)  # what could, in how many ways
    node: fx.Node | None = None
    rows: int = 2  # what a size counts as that depends on values, such as how many rows a mask picks

    @cached_property
    def names(self) -> dict[int, str]:
        """By identity; a tied tensor goes by the first of its names."""
        named = itertools.chain(self.model.named_parameters(), self.model.named_buffers())
        return {id(tensor): name for name, tensor in named}

    # ---- what a rule may say -------------------------------------------------------------------------------------

    def same(self, a: Axis, b: Axis) -> None:
        axes.unify(a, b, self.reason("joins what cannot grow together"))

    def pin(self, dims: Iterable[Axis], what: str) -> None:
        axes.pin(dims, self.reason(what))

    def makes(self, value: Value | None, dim: int) -> None:
        self._mark(value, dim, "makes")

    def reads(self, x: Axis, weight: Value, dim: int) -> None:
        """The operator sums over this axis: each entry of the weight belongs to one neuron that it reads."""
        self.same(x, weight.dims[dim])
        if weight.direct and weight.sources[dim]:
            self._mark(weight, dim, "reads")
        else:
            own = any(weight.sources)
            self.pin((x,), "reads it with a computed weight" if own else "sums over it with no weight of its own")

    def follows(self, value: Value | None, axis: Axis, start: str, dim: int = 0) -> None:
        """A tensor with one entry per neuron; new neurons get `start` there."""
        if value is None:
            return
        self.same(value.dims[dim], axis)
        for name, _ in value.sources[dim]:
            self.starts.setdefault(name, start)

    def role(self, name: str, dim: int) -> str:
        return min(self.roles.get((name, dim), {"follows"}))  # "makes" comes before "reads"

    def is_parameter(self, name: str) -> bool:
        return isinstance(find_tensor(self.model, name), nn.Parameter)

    def mirror(self, attribute: str, axis: Axis, path: str | None = None) -> None:
        path = self.path() if path is None else path
        value = getattr(self.model.get_submodule(path), attribute, None)
        if type(value) is int and value == axes.length(axis):
            self.mirrors.append(Mirror(path, attribute, axis))

    def spells(self, dims: Iterable[Axis], listed: bool = False) -> None:
        """The forward names these sizes itself, perhaps by an attribute of its module, or by the items of one."""
        numbered = ((k if listed else None, axis) for k, axis in enumerate(dims))
        self.shaped += [(self.path(), axis, k) for k, axis in numbered if axes.growable(axis)]

    def choose(self, ways: int, axis: Axis) -> int:
        """Which of so many ways to read this operator on the axis: the first, or one that frees more widths."""
        place = self.operator(), self.where(lambda file: not file.startswith(TORCH)) or self.path()
        most, known = self.asked.get(place, (0, []))
        self.asked[place] = max(ways, most), [*known, axis]
        return min(self.choices.get(place, 0), ways - 1)

    def cost(self, *dims: Axis) -> None:
        self.costs.append(dims)

    def reason(self, what: str) -> str:
        path = self.path()
        return tell(self.operator(), path, type(self.model.get_submodule(path)).__name__, what) + self.where()

    def operator(self) -> str:
        return name_of(self.node.target).replace("::", ".") if self.node is not None else "it"

    def where(self, shown: Callable[[str], bool] = is_users) -> str:
        """The line of the user's code, as ' (model.py:12)'."""
        trace = (self.node.meta.get("stack_trace") or "") if self.node is not None else ""
        lines = re.findall(r'File "([^"]+)", line (\d+)', trace)
        own = [line for line in lines if shown(line[0])]
        return f" ({own[-1][0].rsplit('/', 1)[-1]}:{own[-1][1]})" if own else ""

    def path(self) -> str:
        """The module in whose forward the operator stands."""
        stack = (self.node.meta.get("nn_module_stack") or {}) if self.node is not None else {}
        path = list(stack.values())[-1][0] if stack else ""
        return _module(path)

    def outputs(self) -> Any:
        """Shapes of what the operator returns: one tuple, or a list of them."""
        value = self.node.meta.get("val") if self.node is not None else None
        if isinstance(value, (tuple, list)):
            return [self._shape(v) if isinstance(v, torch.Tensor) else None for v in value]
        return self._shape(value) if isinstance(value, torch.Tensor) else None

    def _shape(self, tensor: torch.Tensor) -> tuple[int, ...]:
        return tuple(n if isinstance(n, int) else self._stand_in(n.node.expr) for n in tensor.shape)

    def _stand_in(self, size: Any) -> int:
        return int(size.subs(dict.fromkeys(size.free_symbols, self.rows)))

    # ---- walking the graph -----------------------------------------------------------------------------------------

    def walk(self, program: torch.export.ExportedProgram, rules: Callable[[str], Callable[..., Any]]) -> None:
        program.graph.eliminate_dead_code()  # what nobody reads pins nothing
        signature = program.graph_signature
        kinds = {spec.arg.name: spec for spec in signature.input_specs}
        values: dict[fx.Node, Any] = {}
        for node in program.graph.find_nodes(op="placeholder"):
            values[node] = self._placeholder(node, kinds[node.name])
        results = self._run(program.graph_module, values, rules)
        for spec, result in zip(signature.output_specs, results):
            if spec.kind == OutputKind.USER_OUTPUT and isinstance(result, Value):
                axes.pin(result.dims, "it is an output of the model")

    def _placeholder(self, node: fx.Node, spec: Any) -> Any:
        val = node.meta.get("val")
        if not isinstance(val, torch.Tensor):
            return val
        if spec.kind in (InputKind.PARAMETER, InputKind.BUFFER):
            name = self.names[id(find_tensor(self.model, inside(spec.target)))]
            if name not in self.tensors:
                dims = tuple(axes.free(n) for n in val.shape)
                sources = tuple(frozenset([(name, d)]) for d in range(len(dims)))
                self.tensors[name] = Value(dims, sources, direct=True)
            return self.tensors[name]
        what = "an input of the model" if spec.kind == InputKind.USER_INPUT else "a constant of the model"
        return activation(axes.fixed(n, f"it is {what}") for n in val.shape)

    def _run(self, graph: fx.GraphModule, values: dict[fx.Node, Any], rules: Callable[..., Any]) -> list[Any]:
        for node in graph.graph.nodes:
            if node in values:
                continue
            if node.op == "get_attr":
                found = getattr(graph, str(node.target))
                values[node] = found if isinstance(found, fx.GraphModule) else self._constant(found)
            elif node.op == "call_function":
                self.node = node
                self.called.add(self.path())
                inside = self._registered(node)
                if inside is not None:
                    values.update(self._call_layer(node, inside, values))
                    self.passed.append(values[node])
                    continue
                args, kwargs = fx.map_arg((node.args, node.kwargs), lambda n: values[n])
                values[node] = self._call(node, args, kwargs, rules)
                found = values[node] if isinstance(values[node], (tuple, list)) else (values[node],)
                self.passed += [value for value in found if isinstance(value, Value)]
            elif node.op == "output":
                returned = node.args[0] if isinstance(node.args[0], (tuple, list)) else (node.args[0],)
                return [values[item] if isinstance(item, fx.Node) else item for item in returned]
        return []

    def _call(self, node: fx.Node, args: Any, kwargs: Any, rules: Callable[..., Any]) -> Any:
        if node.target is operator.getitem:
            return args[0][args[1]]
        inner = [a for a in args if isinstance(a, fx.GraphModule)]
        if len(inner) == 1:  # a region such as `with torch.no_grad()`: a graph of its own with its inputs behind it
            given = args[args.index(inner[0]) + 1 :]
            names = inner[0].graph.find_nodes(op="placeholder")
            return self._run(inner[0], dict(zip(names, given)), rules)
        try:
            found = rules(name_of(node.target))(self, *args, **kwargs)
        except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError):  # arguments the rule knows not
            return rules("")(self, *args, **kwargs)
        several = isinstance(self.outputs(), list)  # where(mask) returns as many tensors as the mask has dimensions
        return found if several == isinstance(found, (tuple, list)) else rules("")(self, *args, **kwargs)

    def _registered(self, node: fx.Node) -> str | None:
        """The path of the registered layer in whose forward the node stands, if any."""
        if not LAYERS:
            return None
        for path, _ in (node.meta.get("nn_module_stack") or {}).values():
            if path and type(self.model.get_submodule(_module(path))) in LAYERS:
                return str(path)
        return None

    def _call_layer(self, node: fx.Node, path: str, values: dict[fx.Node, Any]) -> dict[fx.Node, Any]:
        """Everything inside a registered layer at once: its input's and output's channels as the user declared them."""
        group = [node]
        while self._registered(group[-1].next) == path and group[-1].next.op == "call_function":
            group.append(group[-1].next)
        name = _module(path)
        layer = LAYERS[type(self.model.get_submodule(name))]
        own = {id(t) for t in self.model.get_submodule(name).parameters()}
        given = [values[n] for inner in group for n in inner.all_input_nodes if n in values]
        xs = [v for v in given if isinstance(v, Value) and not any(v.sources)]
        if not xs or not own:
            raise FireflyError(f"the registered layer {name!r} has no tensor input or no parameters")
        outside = [inner for inner in group if any(user not in group for user in inner.users)]
        self.node = outside[-1] if outside else group[-1]
        out = activation(layer.flow(self, name, xs[0]))
        return dict.fromkeys(group, out)

    def _constant(self, tensor: Any) -> Value:
        return activation(axes.fixed(n, "it is a constant of the model") for n in getattr(tensor, "shape", ()))

    def _mark(self, value: Value | None, dim: int, role: str) -> None:
        found = value.sources[dim] if value is not None else NOWHERE
        for key in sorted(found, key=lambda key: (-math.prod(self.tensors[key[0]].shape), key)):  # weights come first
            self.roles.setdefault(key, set()).add(role)
