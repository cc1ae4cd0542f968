"""`firefly export RUN`: the grown network for other programs, as ONNX or `torch.export`, compared with the model."""

from __future__ import annotations

import logging
import os
import warnings
from argparse import ArgumentParser, Namespace
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map

from firefly.anatomy.examples import tensors_in
from firefly.commands.addresses import present_folder
from firefly.commands.arguments import read_shape
from firefly.commands.loaders import as_tuple, make_example
from firefly.commands.runs import load_model, open_run
from firefly.errors import FireflyError, first_line

ABOUT = """Writes the network of a run so that other programs can run it, reads it back, and compares its answers with
the model's, on two sizes of batch. The model's code must be found, as it was by firefly grow.

  firefly export runs/mine --to onnx
  firefly export runs/mine --to torch --out mine.pt2
  firefly export checkpoint --to onnx --model mymodels:make --shape 1,3,32,32

The first writes runs/mine/model.onnx and asks it in onnxruntime; the second is read by
torch.export.load("mine.pt2").module().
"""
SUFFIX = {"onnx": ".onnx", "torch": ".pt2"}
CLOSE = 1e-3  # the largest difference of answers, relative to the largest answer, that rounding explains
Call = tuple[tuple[Any, ...], dict[str, Any]]
Ask = Callable[[Call], list[Tensor]]


def add_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("run", type=Path, metavar="RUN", help="the folder of a run, or a checkpoint")
    parser.add_argument("--to", choices=tuple(SUFFIX), required=True, help="onnx, or torch: a file of torch.export")
    parser.add_argument("--out", type=Path, metavar="FILE", help="where to (RUN/model.onnx or RUN/model.pt2)")
    parser.add_argument("--model", metavar="MODULE:FUNCTION", help="makes the model, if the run does not say")
    shape = "of an input, the batch first; once per input, if the run does not say"
    parser.add_argument("--shape", type=read_shape, action="append", metavar="N,C,H,W", help=shape)
    parser.add_argument("--dtype", choices=("float32", "int64"), default="float32", help="of those inputs (float32)")


def run(args: Namespace) -> None:
    found = open_run(args.run)
    path = args.out or args.run / f"model{SUFFIX[args.to]}"
    described = [[k, list(one), args.dtype] for k, one in enumerate(args.shape or ())] or found.recipe.get("example")
    if not described:
        raise FireflyError(f"{args.run} does not say what its model takes: give --shape, e.g. --shape 1,3,32,32")
    if not path.parent.is_dir() or path.is_dir():
        why = f"there is no folder {path.parent}" if not path.is_dir() else "that is a folder: name a file in it"
        raise FireflyError(f"--out {path}: {why}")
    example = make_example(described, None if args.shape else found.recipe.get("ranges"))
    with present_folder():
        model = load_model(found, args.model)
        worst, batches = export(model, leave_training(model, example), args.to, path)
    where = "onnxruntime" if args.to == "onnx" else "torch.export"
    print(f"{path}: {path.stat().st_size:,} bytes, {found.parameters:,} parameters, for batches of {batches}")
    print(f"its answers in {where} differ from the model's by at most {worst:.2g} of the largest")


def leave_training(model: nn.Module, example: Any) -> Any:
    """What the model takes when it only answers: no labels, no cache of keys and values, as Hugging Face has them."""
    config: Any = getattr(model, "config", None)
    if hasattr(config, "use_cache"):
        config.use_cache = False
    if isinstance(example, dict) and len(example) > 1:
        example.pop("labels", None)
    return example


def export(model: nn.Module, example: Any, to: str, path: Path) -> tuple[float, str]:
    """Write the file and compare it; the largest relative difference of answers, and for which batches it is.

    It is written beside, in a folder of its own, and takes its place when it is whole and right.
    """
    try:
        with TemporaryDirectory(prefix=".firefly-", dir=path.parent, ignore_cleanup_errors=True) as beside:
            told = draft(model, example, to, Path(beside) / path.name)
            for file in sorted(Path(beside).iterdir(), key=lambda one: one.name == path.name):  # what it names, first
                os.replace(file, path.parent / file.name)
    except OSError as error:
        raise FireflyError(f"{path} cannot be written: {first_line(error)}") from error
    return told


def draft(model: nn.Module, example: Any, to: str, path: Path) -> tuple[float, str]:
    """The same, in the place given."""
    call = as_call(example)
    try:
        answer(model, call)
    except Exception as error:
        raise FireflyError(f"the model does not run on its example: {first_line(error)}") from error
    try:
        worst, batches = write(model, call, to, path, dynamic=True), "any size"
    except FireflyError:
        raise
    except Exception:  # not every model can leave the size of its batches open
        worst = write(model, call, to, path, dynamic=False)
        batches = str(len(next(iter((*call[0], *call[1].values())))))
    if not worst <= CLOSE:
        raise FireflyError(f"the exported network answers otherwise than the model (by {worst:.2g}): it is not written")
    return worst, batches


def as_call(example: Any) -> Call:
    return ((), dict(example)) if isinstance(example, Mapping) else (as_tuple(example), {})


def resize(call: Call) -> Call:
    """The same inputs, in a batch of one more."""
    return tree_map(lambda one: torch.cat([one, one[:1]]) if isinstance(one, Tensor) else one, call)


@torch.no_grad()
def answer(model: Callable[..., Any], call: Call) -> list[Tensor]:
    return tensors_in(model(*call[0], **call[1]))


def write(model: nn.Module, call: Call, to: str, path: Path, dynamic: bool) -> float:
    """Write the file, and ask it; the largest difference. Of an open size, torch makes a note on the inputs: copies."""
    copies = tree_map(lambda one: one.clone() if isinstance(one, Tensor) else one, call)
    try:
        ask = (write_onnx if to == "onnx" else write_torch)(model, copies, path, dynamic)
        return differ(model, ask, call, *([resize(call)] if dynamic else []))
    except FireflyError:
        raise
    except Exception as error:
        if dynamic:
            raise
        cause = error.__cause__ or error
        raise FireflyError(f"this model cannot be exported to {to}: {first_line(cause)}") from error


def differ(model: nn.Module, ask: Ask, *calls: Call) -> float:
    """The largest difference of the answers, relative to the largest of the model's; not a number if one is none."""
    parts = [torch.zeros((), dtype=torch.float64)]
    for call in calls:
        expected, found = answer(model, call), ask(call)
        if [one.shape for one in expected] != [one.shape for one in found]:
            raise ValueError("the shapes of the answers differ")
        pairs = ((a.double(), b.double()) for a, b in zip(expected, found) if a.numel())
        parts += [(a - b).abs().max() / a.abs().max().clamp_min(1e-12) for a, b in pairs]
    return float(torch.stack(parts).max())


def leave_open(call: Call) -> tuple[Any, ...] | dict[str, Any]:
    """Which dimensions may change: the first of every input."""
    auto = torch.export.Dim.DYNAMIC
    args, kwargs = tree_map(lambda one: {0: auto} if isinstance(one, Tensor) else None, call)
    return kwargs if kwargs else args


def write_torch(model: nn.Module, call: Call, path: Path, dynamic: bool) -> Ask:
    """A file of torch.export, and a function that asks it."""
    with quiet():
        program = torch.export.export(model, *call, dynamic_shapes=leave_open(call) if dynamic else None)
        torch.export.save(program, path)
        module = torch.export.load(path).module()
    return lambda given: answer(module, given)


def write_onnx(model: nn.Module, call: Call, path: Path, dynamic: bool) -> Ask:
    """An ONNX file, and a function that asks onnxruntime."""
    try:
        import onnx
        import onnxruntime
        import onnxscript  # noqa: F401 - torch.onnx needs it
    except ImportError as error:
        raise FireflyError(f"{error.name} is not installed: pip install 'firefly-descent[onnx]'") from error
    large = sum(tensor.nbytes for tensor in model.state_dict().values()) > 1.9e9  # one file holds 2 GB
    how: dict[str, Any] = {"dynamo": True, "verbose": False, "external_data": large, "optimize": True}
    with quiet():
        shapes = leave_open(call) if dynamic else None
        torch.onnx.export(model, call[0], str(path), kwargs=call[1] or None, dynamic_shapes=shapes, **how)
        onnx.checker.check_model(str(path))
        session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])

    def ask(given: Call) -> list[Tensor]:
        tensors = [one for one in (*given[0], *given[1].values()) if isinstance(one, Tensor)]
        fed = {slot.name: one.numpy() for slot, one in zip(session.get_inputs(), tensors)}
        return [torch.as_tensor(one) for one in session.run(None, fed)]

    return ask


@contextmanager
def quiet() -> Iterator[None]:
    """Without the words of the exporters, which are for their makers."""
    before = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(before)
