"""The graphs of a model: one exported program for each example, in the model's own mode and where needed the other.

The model is exported behind a `Path`, which calls it as the example says and returns the tensors that come out, so that
any method, any argument and any kind of output will do. The graph is only read; the model itself is never replaced.
"""

from __future__ import annotations

import io
import logging
import traceback
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr, suppress
from functools import partial

import torch
from torch import Tensor, nn
from torch.distributions import Distribution
from torch.export import ExportedProgram
from torch.export.graph_signature import InputKind
from torch.nn.modules import transformer
from torch.nn.utils.rnn import PackedSequence
from torch.utils._pytree import tree_flatten, tree_unflatten

from firefly.anatomy.examples import Call, run_examples, tensors_in
from firefly.anatomy.reasons import is_users
from firefly.errors import FireflyError, first_line
from firefly.surgery.guard import unbroken
from firefly.surgery.multihead import MultiheadAttention, list_openable
from firefly.surgery.swap import clone_buffers, exchanged, find_tensor, stand_ins, swapped, switched

PREFIX = "model"  # the name that a Path has for the model


class Path(nn.Module):
    """One way through the model, as a module of tensors to tensors."""

    def __init__(self, model: nn.Module, call: Call) -> None:
        super().__init__()
        self.model, self.method = model, call.method
        leaves, self.form = tree_flatten((call.args, call.kwargs))
        self.places = [k for k, leaf in enumerate(leaves) if isinstance(leaf, Tensor)]
        self.tensors = tuple(leaves[k] for k in self.places)
        self.others = [None if isinstance(leaf, Tensor) else leaf for leaf in leaves]

    def forward(self, *tensors: Tensor) -> tuple[Tensor, ...]:
        leaves = list(self.others)
        for place, tensor in zip(self.places, tensors):
            leaves[place] = tensor
        args, kwargs = tree_unflatten(leaves, self.form)
        return tuple(tensors_in(Call(self.method, *args, **kwargs)(self.model)))


def export(model: nn.Module, calls: tuple[Call, ...]) -> list[ExportedProgram]:
    """A graph for each example in the model's own mode; where parameters are left out, in the other mode too."""
    other_mode = partial(switched, list(model.modules()), not model.training)
    programs: list[ExportedProgram] = []
    for call in calls:
        try:
            programs.append(_export_once(model, call))
        except FireflyError as error:  # a batch norm in train mode refuses a single example, for one
            with other_mode(), suppress(FireflyError):
                programs.append(_export_once(model, call))
                continue
            raise error
    known = reached(model, programs)
    if any(id(parameter) not in known for parameter in model.parameters()):
        for call in calls:
            with other_mode(), suppress(FireflyError):  # what no mode reaches stays as it is
                programs.append(_export_once(model, call))
    return programs


def reached(model: nn.Module, programs: list[ExportedProgram]) -> set[int]:
    """The parameters and buffers, by identity, that the programs use under any of their names."""
    found = set()
    for program in programs:
        own = (InputKind.PARAMETER, InputKind.BUFFER)
        specs = {spec.arg.name: spec for spec in program.graph_signature.input_specs if spec.kind in own}
        nodes = program.graph.find_nodes(op="placeholder")
        found |= {id(find_tensor(model, inside(specs[n.name].target))) for n in nodes if n.users and n.name in specs}
    return found


def inside(name: str | None) -> str:
    """The name of a tensor or module in the model, of its name in a Path."""
    return (name or "").removeprefix(PREFIX).removeprefix(".")


def _export_once(model: nn.Module, call: Call) -> ExportedProgram:
    _try(model, call)
    path = Path(model, call)
    try:
        # an interrupt inside it can abort the process
        opened = exchanged((module, "__class__", MultiheadAttention) for module in list_openable(model))
        with unbroken(), _quiet(), _unchecked(), torch.enable_grad(), opened, swapped(model, {}):
            return torch.export.export(path, path.tensors, strict=False)
    except Exception as error:
        raise FireflyError(_explain(model, call, error)) from error


def _explain(model: nn.Module, call: Call, error: Exception) -> str:
    method = f"{type(model).__name__}.{call.method}"
    frames = [frame for frame, _ in traceback.walk_tb(error.__traceback__)]
    scripted = [name for name, module in model.named_modules() if isinstance(module, torch.jit.ScriptModule)]
    if scripted:
        why = f"cannot follow {scripted[0]}, a TorchScript module, in {method}: put in the one that it was made from"
    elif any(isinstance(value, PackedSequence) for frame in frames for value in frame.f_locals.values()):
        why = f"cannot follow packed sequences, whose lengths are values of a tensor, in {method}{_where(error)}"
    elif "data-dependent" in str(error) or "DataDependent" in type(error).__name__:
        why = f"cannot follow a branch on the values of a tensor in {method}{_where(error)}"
    else:
        why = f"cannot follow {method}{_where(error)}: {first_line(error)}"
    return f"torch.export {why}. Growing the part of the model without it works: firefly.grow(model.part, ...)"


def _try(model: nn.Module, call: Call) -> None:
    """Run the model once, so that what it says of a wrong example is said first, and what it caches is there."""
    try:
        copies = {name: parameter.detach().clone() for name, parameter in model.named_parameters()}
        with torch.no_grad(), exchanged(stand_ins(model, clone_buffers(model) | copies)), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            found = run_examples(model, call)
    except FireflyError:
        raise
    except Exception as own:
        raise FireflyError(f"the model does not run on the example: {first_line(own)}") from own
    if not found:
        raise FireflyError(
            f"{type(model).__name__}.{call.method} returns no tensor on the example, so that no growth could be proven "
            "on it: return one, or give firefly.Call of a method that does"
        )


@contextmanager
def _quiet() -> Iterator[None]:
    """Torch explains to those who export; a user of `trace` gets one error in words instead."""
    level = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        with warnings.catch_warnings(), redirect_stderr(io.StringIO()):
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(level)


@contextmanager
def _unchecked() -> Iterator[None]:
    """Without two places of torch that look at values, on which no width depends: a mask's, and a distribution's."""
    detect, validate = transformer._detect_is_causal_mask, Distribution._validate_args
    transformer._detect_is_causal_mask = lambda mask, is_causal=None, size=None: bool(is_causal)
    Distribution.set_default_validate_args(False)
    try:
        yield
    finally:
        transformer._detect_is_causal_mask = detect
        Distribution.set_default_validate_args(validate)


def _where(error: BaseException) -> str:
    """The line of the user's code, as ' (model.py:12)'."""
    frames = traceback.extract_tb(error.__traceback__)
    own = [f for f in frames if is_users(f.filename)]
    return f" ({own[-1].filename.rsplit('/', 1)[-1]}:{own[-1].lineno})" if own else ""
