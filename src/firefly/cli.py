"""The command line, `firefly COMMAND`. Each command imports what it needs as it runs.

Exit codes: 0 done; 2 something in the input is wrong, said in words on stderr; 130 stopped with Ctrl-C.
"""

from __future__ import annotations

import os
import sys
from argparse import REMAINDER, ArgumentParser, Namespace
from collections.abc import Callable, Sequence
from importlib import import_module
from io import TextIOWrapper
from pathlib import Path
from typing import Any

import firefly
from firefly.commands.parsing import Parser
from firefly.errors import FireflyError
from firefly.ranks.launch import find_launched, joined

EXPERIMENTS = {  # modules, or objects in them, with add_arguments(parser), run(args), table(rows), plot(rows, path)
    "toy": "firefly.experiments.toy",
    "wider-vgg19": "firefly.experiments.wider:VGG19",
    "wider-mobilenet": "firefly.experiments.wider:MOBILENET",
    "deeper": "firefly.experiments.deeper:DEEPER",
    "deeper-mnist": "firefly.experiments.deeper:MNIST",
    "deeper-fashion-mnist": "firefly.experiments.deeper:FASHION_MNIST",
    "deeper-svhn": "firefly.experiments.deeper:SVHN",
    "continual": "firefly.experiments.continual:CONTINUAL",
    "continual-10": "firefly.experiments.continual:CONTINUAL_10",
    "continual-20": "firefly.experiments.continual:CONTINUAL_20",
    "nas": "firefly.experiments.nas",
}

ABOUT = """Grow neural networks in PyTorch: find where more neurons lower the loss most, and grow the model there.

  firefly demo                     one to two minutes: grow a small network
  firefly widths mine:make_model --shape 2,3,32,32
                                   what of a model of yours can grow
  firefly grow mine:make_model --data mine:make_loaders
                                   train and grow it
  firefly show runs/mine           what it has grown into
  firefly report runs/mine runs/other --html both.html
                                   one page about runs; of results, their table
  firefly export runs/mine --to onnx
                                   the grown network for other programs
  firefly reproduce toy            an experiment of the paper, measured here
  firefly data get cifar10         the images that some experiments need

Each has its own help: firefly grow --help. Exit codes: 0 done, 2 something in the input is wrong, 130 Ctrl-C.
"""


def main(argv: Sequence[str] | None = None) -> int:
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors="replace")  # a letter that a terminal lacks, such as ±, ends nothing
    args = make_parser().parse_args(argv)
    if find_launched() and not hasattr(args, "joins"):
        return 0  # of the processes of torchrun the first one is enough
    try:
        code = int(args.command(args) or 0)
        sys.stdout.flush()  # while a closed pipe can still be met
        return code
    except FireflyError as error:
        print(f"firefly: {error}", file=sys.stderr)
        return 2
    except BrokenPipeError:  # whoever reads has seen enough, as in `firefly report ... | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141
    except OSError as error:
        print(f"firefly: {error.filename or 'a file'}: {error.strerror or error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130


def make_parser() -> ArgumentParser:
    parser = Parser("firefly", description=ABOUT)
    parser.add_argument("--version", action="version", version=f"firefly {firefly.__version__}")
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)

    def add(name: str, command: Callable[[Namespace], Any], short: str, more: str, **at: Any) -> ArgumentParser:
        about = {"description": f"{short[0].upper()}{short[1:]}.\n\n{more}", "help": short}
        made: ArgumentParser = at.get("to", commands).add_parser(name, **about)
        made.set_defaults(command=command)
        return made

    add_demo(add)
    add_commands(add)
    add_reproduce(add)
    add_report(add)
    add_data(add)
    return parser


# ---- demo ------------------------------------------------------------------------------------------------------------

DEMO = """A network with very few channels learns handwritten digits that come with the package, and grows on the way.
Networks of fixed width learn beside it, in the same way and as long. You see every epoch and what each growth
added where; at the end there is a page with pictures: report.html. Nothing is downloaded.

  firefly demo
  firefly demo --seed 1 --out runs/again
"""


def add_demo(add: Callable[..., ArgumentParser]) -> None:
    parser = add("demo", run_demo, "grow a small network on digits and write a report (one to two minutes)", DEMO)
    parser.add_argument("--out", type=Path, default=Path("runs/demo"), metavar="DIR", help="where to (runs/demo)")
    parser.add_argument("--seed", type=int, default=0, help="another seed, another run (0)")
    parser.add_argument("--epochs", type=int, help="how long every network learns, growths included (24)")
    parser.add_argument("--quick", action="store_true", help="seconds only, on few images: to see that all works")


def run_demo(args: Namespace) -> None:
    from firefly.experiments import demo

    demo.run(args.out, seed=args.seed, epochs=args.epochs, quick=args.quick)


# ---- a model of yours ------------------------------------------------------------------------------------------------

COMMANDS = {  # files of firefly.commands with add_arguments(parser), run(args) and ABOUT
    "grow": "train and grow a model of yours",
    "widths": "show what of a model can grow",
    "show": "show what a network has grown into",
    "export": "write a grown network for other programs",
    "nas": "search cells by growing, and evaluate them",
}


def add_commands(add: Callable[..., ArgumentParser]) -> None:
    for name, short in COMMANDS.items():
        command = import_module(f"firefly.commands.{name}")
        command.add_arguments(add(name, command.run, short, command.ABOUT))


# ---- reproduce -------------------------------------------------------------------------------------------------------

REPRODUCE = f"""Measures an experiment of the paper and says what came out. Known so far: {", ".join(EXPERIMENTS)}.

  firefly reproduce toy            a short version
  firefly reproduce toy --help     what can be set
"""


def add_reproduce(add: Callable[..., ArgumentParser]) -> None:
    parser = add("reproduce", run_experiment, "run an experiment of the paper", REPRODUCE)
    parser.set_defaults(joins=True)
    parser.add_argument("experiment", metavar="EXPERIMENT", help=f"one of: {', '.join(EXPERIMENTS)}")
    parser.add_argument("options", nargs=REMAINDER, metavar="...", help="its options")


def run_experiment(args: Namespace) -> int:
    module = find_experiment(args.experiment)
    parser = Parser(f"firefly reproduce {args.experiment}", description=getattr(module, "about", module.__doc__))
    module.add_arguments(parser)
    asked = parser.parse_args(args.options)
    if not getattr(module, "joins", False):  # it works in one process
        return 0 if find_launched() else int(module.run(asked) or 0)
    with joined():
        return int(module.run(asked) or 0)


def find_experiment(name: str) -> Any:
    if name not in EXPERIMENTS:
        raise FireflyError(f"there is no experiment {name!r}; known so far: {', '.join(EXPERIMENTS)}")
    module, _, part = EXPERIMENTS[name].partition(":")
    return getattr(import_module(module), part) if part else import_module(module)


# ---- report ----------------------------------------------------------------------------------------------------------

REPORT = """A run is a folder, as firefly grow writes it: its page has accuracy against parameters and FLOPs, every
width over time, and what each growth added and why; several runs are compared.

  firefly report runs/mine
  firefly report runs/mine runs/other --html both.html

A file of results holds one network per line; each line names its experiment, and that experiment draws them.

  firefly report results/toy.jsonl
  firefly report runs/toy/toy.jsonl --out figures
  firefly report results/wider-mobilenet.jsonl results/growth-seconds.jsonl

The last line's second file holds seconds, as benchmarks/growth_seconds.py measures them.
"""


def add_report(add: Callable[..., ArgumentParser]) -> None:
    parser = add("report", report_results, "make the page of runs, or the table and figures of results", REPORT)
    parser.add_argument("results", type=Path, nargs="+", metavar="RUN", help="folders of runs, or files of results")
    page = "the page of the runs, also without a name (report.html in the first)"
    parser.add_argument("--html", type=Path, nargs="?", const=False, metavar="FILE", help=page)
    parser.add_argument("--out", type=Path, metavar="DIR", help="where to (into the first run, beside the first file)")


def report_results(args: Namespace) -> None:
    if args.html is not None or any(path.is_dir() for path in args.results):
        from firefly.commands.report import report_runs

        print(f"the page: {report_runs(args.results, args.html or (args.out and args.out / 'report.html')).resolve()}")
        return

    from firefly.experiments.rows import read_rows

    for path in args.results:
        if path.name == "history.jsonl" and (path.parent / "fit.json").exists():
            raise FireflyError(f"{path} is the journal of a run: give its folder, firefly report {path.parent}")
    rows = [row for path in args.results for row in read_rows(path)]
    groups = group_rows(rows)
    known = {key: mine for key, mine in groups.items() if key[0] in EXPERIMENTS} or groups
    if not groups:
        only = ", only benchmarks" if rows else ""
        raise FireflyError(f"{args.results[0]} has no networks{only}: name the file of the networks first")
    for name, held in known:
        title = f"{name}{'-held-out' if held and (name, False) in known else ''}"
        print(f"{title}:\n" * (len(known) > 1), end="")
        print(draw_rows(name, known[name, held], (args.out or args.results[0].parent) / f"{title}.png"), flush=True)
    if left := {name for name, _ in groups.keys() - known.keys()}:
        print(f"firefly: no experiment draws the networks of {', '.join(sorted(left))}: left out", file=sys.stderr)


def group_rows(rows: list[dict[str, Any]]) -> dict[tuple[str, bool], list[dict[str, Any]]]:
    """By experiment, and apart what was measured on held-out images; the seconds of benchmarks belong to either."""
    networks = [row for row in rows if "benchmark" not in row]
    keys = dict.fromkeys((row["experiment"], "held_accuracy" in row) for row in networks)
    return {
        (name, held): [
            row
            for row in rows
            if row.get("experiment") == name and ("benchmark" in row or ("held_accuracy" in row) == held)
        ]
        for name, held in keys
    }


def draw_rows(name: str, rows: list[dict[str, Any]], path: Path) -> str:
    """The table of an experiment's rows, and where their figure is."""
    experiment = find_experiment(name)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        return f"{experiment.table(rows)}\n\nfigure: {experiment.plot(rows, path)}"
    except OSError as error:
        raise FireflyError(f"cannot write {path}: {error.strerror}; give another folder with --out") from error
    except (LookupError, TypeError, ValueError, AttributeError, ArithmeticError) as error:
        found = f"{type(error).__name__}: {error}"
        for number, row in enumerate(rows, start=1):
            if isinstance(error, KeyError) and isinstance(error.args[0], str) and error.args[0] not in row:
                found = f"number {number} has no {error}"
                break
        way = f"each needs what `firefly reproduce {name}` writes"
        raise FireflyError(f"the networks of {name} cannot be shown ({found}): {way}") from error


# ---- data ------------------------------------------------------------------------------------------------------------

DATA = """Fetches what is missing, goes on where it stopped, and compares with the published checksums. Without a
connection, put the file there yourself (for CIFAR-10 cifar-10-binary.tar.gz): the same command compares and unpacks it.

  firefly data get cifar10 --data data
"""


def add_data(add: Callable[..., ArgumentParser]) -> None:
    parent = add("data", get_data, "fetch the data sets of the experiments", DATA)
    inner = parent.add_subparsers(metavar="COMMAND", required=True)
    parser = add("get", get_data, "fetch a data set from its official address", DATA, to=inner)
    parser.add_argument("name", metavar="NAME", help="cifar10, cifar100, mnist, fashion-mnist or svhn")
    folder = "the folder of all data sets (the environment's FIREFLY_DATA, else data)"
    parser.add_argument("--data", type=Path, metavar="DIR", help=folder)


def get_data(args: Namespace) -> None:
    from firefly.vision import download

    print(f"{args.name} is in {download.fetch(args.name, args.data, progress=True)}")
