"""`firefly nas ...`: what it is for; its commands are `firefly.experiments.nas`."""

from __future__ import annotations

from argparse import REMAINDER, ArgumentParser, Namespace

ABOUT = """Cells of an image network are searched by growing all operations on all edges; those that grow most win.

  firefly nas search --quick       the whole way on a CPU in a minute or two
  firefly nas evaluate --quick     what was found, beside other cells
  firefly nas agreement            whether searches agree, against chance
  firefly nas draw darts-v2        a genotype as a picture

Without --quick the images are those of CIFAR-10; the other cells are random, permuted, plain and DARTS'.
"""


def add_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("options", nargs=REMAINDER, metavar="...", help="one of these commands, and its options")


def run(args: Namespace) -> int:
    from firefly.experiments import nas

    return nas.main(args.options)
