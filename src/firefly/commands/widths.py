"""`firefly widths`: what of a model of yours can grow, before anything is trained."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace

import torch

from firefly.anatomy.tracing import trace
from firefly.commands.addresses import make_model
from firefly.commands.arguments import read_shape
from firefly.errors import FireflyError

ABOUT = """MODULE:FUNCTION is a function without arguments that returns the model; modules of the present folder are
found. Prints a line per width: how many neurons, which layers make and read them, or why it is pinned.

  firefly widths firefly.vision.models:vgg19 --shape 2,3,32,32
  firefly widths mymodels:make_gpt --shape 2,16 --dtype int64
"""


def add_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("model", metavar="MODULE:FUNCTION", help="makes the model, e.g. mypackage.models:make")
    shape = "of an input, the batch first; once per input"
    parser.add_argument("--shape", type=read_shape, action="append", required=True, metavar="N,C,H,W", help=shape)
    parser.add_argument("--dtype", choices=("float32", "int64"), default="float32", help="of the inputs (float32)")


def run(args: Namespace) -> None:
    model = make_model(args.model).eval()
    try:
        example = tuple(torch.zeros(shape, dtype=getattr(torch, args.dtype)) for shape in args.shape)
    except (RuntimeError, TypeError, MemoryError) as error:
        shapes = " --shape ".join(",".join(map(str, shape)) for shape in args.shape)
        raise FireflyError(f"--shape {shapes}: so large an input cannot be made; a small batch is enough") from error
    print(trace(model, example))
