"""Cell search by growing (Sec. 3 "Cell-Based Neural Architecture Search", Table 1; App. B.3).

    firefly nas search --quick                    the whole way on a CPU in a minute or two, on digits of the package
    firefly nas search --seeds 0 1 2              the paper's search on CIFAR-10, three times; a GPU
    firefly nas evaluate                          train what was found, beside random, permuted, plain and DARTS' cells
    firefly nas evaluate runs/nas/search-0.json darts-v2 random-0 permuted:runs/nas/search-0.json
    firefly nas evaluate --full FILE              the paper's network: 20 cells, 40 channels, 600 epochs
    firefly nas agreement                         do searches of other seeds find the same, or is the winner noise?
    firefly nas draw darts-v2 --out cells.svg     a genotype as a picture

Everything is written as it is done (--runs, --out), and the same command goes on where it was stopped: --minutes 9
stops in time. Choices are made with --held-out, which sets 5,000 training images apart and never sees the test set.
"""

from __future__ import annotations

import time
from argparse import REMAINDER, ArgumentParser, Namespace, RawDescriptionHelpFormatter
from collections.abc import Sequence
from dataclasses import fields, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any, cast

import torch

from firefly.errors import FireflyError
from firefly.experiments.nas import table as nas_table
from firefly.experiments.nas.evaluate import SETTINGS, Judge, Trial, find_channels, read_entry
from firefly.experiments.nas.search import PLANS, find_searches, merge_searches, run_search, tell_agreement
from firefly.experiments.options import change, check_seeds, read_rows
from firefly.experiments.setting import Place
from firefly.nas.drawing import draw_genotype
from firefly.nas.plan import Plan
from firefly.nas.searching import find_augment
from firefly.training.recipe import find_device
from firefly.vision import data, digits

about = __doc__
table, plot = nas_table.table, nas_table.plot  # what `firefly report results/nas.jsonl` shows


def main(words: Sequence[str]) -> int:
    """`firefly nas ...`."""
    args = make_parser().parse_args(words)
    return int(args.chosen(args) or 0)


def add_arguments(parser: ArgumentParser) -> None:
    """`firefly reproduce nas ...` is `firefly nas ...`."""
    parser.add_argument("options", nargs=REMAINDER, metavar="...", help="search, evaluate, agreement or draw")


def run(args: Namespace) -> int:
    return main(args.options)


def make_parser() -> ArgumentParser:
    parser = ArgumentParser("firefly nas", description=about, formatter_class=RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(metavar="COMMAND", required=True)
    search = commands.add_parser("search", help="search cells by growing")
    add_common(search, Plan)
    search.add_argument("--asleep", action="store_true", help="operations begin asleep: edges are identity until grown")
    evaluate = commands.add_parser("evaluate", help="train the networks of genotypes, all alike")
    add_common(evaluate, Trial)
    evaluate.add_argument(
        "genotypes", nargs="*", metavar="GENOTYPE", help="files or names (what was found, and others)"
    )
    evaluate.add_argument("--full", action="store_const", dest="size", const="paper", help="600 epochs, 20 cells")
    evaluate.add_argument("--part", default="1/1", metavar="K/N", help="only every Nth network, from the Kth on")
    agreement = commands.add_parser("agreement", help="the agreement of searches against chance")
    agreement.add_argument("searches", nargs="*", type=Path, metavar="FILE", help="of searches (those in --runs)")
    agreement.add_argument("--runs", type=Path, default=Path("runs/nas"), help="where searches are (runs/nas)")
    together = "write the cells of these searches taken together, widths added up, for `evaluate`"
    agreement.add_argument("--merge", type=Path, metavar="FILE.json", help=together)
    draw = commands.add_parser("draw", help="draw the cells of a genotype as SVG")
    draw.add_argument("genotype", metavar="GENOTYPE", help="a file or a name")
    draw.add_argument("--out", type=Path, default=Path("cells.svg"), help="where to (cells.svg)")
    for command, chosen in (
        (search, run_searches),
        (evaluate, run_evaluations),
        (agreement, agree),
        (draw, draw_cells),
    ):
        command.set_defaults(chosen=chosen)
    return parser


def add_common(parser: ArgumentParser, kind: type) -> None:
    quick = "a minute or two on a CPU, on digits that come with the package"
    parser.add_argument("--quick", action="store_const", dest="size", const="quick", help=quick)
    parser.set_defaults(size="middle")
    parser.add_argument("--seeds", nargs="+", type=int, default=[0])
    parser.add_argument("--dataset", default="cifar10", help="cifar10 and the like (cifar10)")
    parser.add_argument("--held-out", action="store_true", help="never see the test set: 5,000 training images instead")
    parser.add_argument("--minutes", type=float, help="stop after so many; the same command goes on later")
    parser.add_argument("--data", type=Path, help="the folder of the data sets (FIREFLY_DATA, else data)")
    parser.add_argument("--runs", type=Path, default=Path("runs/nas"), help="searches, trainings, pictures (runs/nas)")
    parser.add_argument("--out", type=Path, help="the results (results.jsonl in --runs)")
    parser.add_argument("--device", help="cuda or cpu (what there is)")
    fast = "how the training loop works: dense=false, precision=float32, channels_last=false, compile=true, tune=true"
    parser.add_argument("--fit", nargs="+", default=[], metavar="KEY=VALUE", help=fast)
    parser.add_argument("--shared", action="store_true", help="other runs use the machine: do not count the seconds")
    keys = ", ".join(field.name for field in fields(kind))
    parser.add_argument("--set", nargs="+", default=[], metavar="KEY=VALUE", help=f"other settings: {keys}")


def make_place(args: Namespace) -> Place:
    deadline = time.monotonic() + 60 * args.minutes if args.minutes is not None else float("inf")
    results = args.out or args.runs / "results.jsonl"
    return Place(
        find_device(args.device), args.runs, results, deadline, lambda text: print(text, flush=True), args.shared
    )


def load_train(args: Namespace, setting: Any) -> tuple[data.Images, data.Images | None]:
    """Images for searching or training, and those that were set apart, if any."""
    train, held = load_split(args, "train"), None
    if setting.held_out:
        train, held = data.hold_out(train, setting.held_out)
    most = len(train) if setting.images is None else setting.images
    if most < 1:
        raise FireflyError(f"images={most}: give a whole number from 1 up")
    return train.take(torch.arange(min(most, len(train)))), held


def load_split(args: Namespace, split: str) -> data.Images:
    if args.size != "quick":
        return data.load(args.dataset, args.data, split)
    train, labels, test, answers = digits.load()
    images, labels = (train, labels) if split == "train" else (test[:500], answers[:500])
    return data.Images((images * 255).round().to(torch.uint8), labels, 10, "mnist")


def choose(settings: dict[str, Any], args: Namespace) -> Any:
    check_seeds(args.seeds)
    found = change(cast(Any, settings[args.size]), args.set)
    held = 500 if args.size == "quick" else 5000
    return replace(found, held_out=held) if args.held_out and not found.held_out else found


LOOP: dict[str, dict[str, Any]] = {
    **{key: {"true": True, "false": False} for key in ("compile", "tune", "channels_last", "graph", "dense")},
    "precision": {"bf16": "bf16", "float32": "float32"},
}


def read_loop(words: list[str]) -> dict[str, Any]:
    """How the training loop works, of the form KEY=VALUE."""
    found: dict[str, Any] = {}
    for word in words:
        key, _, value = word.partition("=")
        if value not in LOOP.get(key, {}):
            known = "; ".join(f"{name}={'|'.join(values)}" for name, values in LOOP.items())
            raise FireflyError(f"--fit {word}: give {known}")
        found[key] = LOOP[key][value]
    return found


def name_data(args: Namespace) -> str:
    return "digits" if args.size == "quick" else data.find_name(args.dataset)


# ---- commands --------------------------------------------------------------------------------------------------------


def run_searches(args: Namespace) -> int:
    plan = choose(PLANS, args)
    plan = replace(plan, asleep=True) if args.asleep else plan
    place, (train, _) = make_place(args), load_train(args, plan)
    more = read_loop(args.fit)
    finished = all(run_search(plan, train, name_data(args), seed, place, more) for seed in args.seeds)
    if finished and len(set(args.seeds)) > 1:
        print(tell_agreement(find_searches(args.runs, plan)))
    if not finished:
        print("time is up: the same command goes on from here")
    return 0


def run_evaluations(args: Namespace) -> int:
    trial = choose(SETTINGS, args)
    place, (train, held) = make_place(args), load_train(args, trial)
    test = load_split(args, "test") if held is None else held
    words = args.genotypes or list_default(args)
    judge = Judge(trial, train, test, name_data(args), find_augment(train), place, read_loop(args.fit))
    jobs = [(read_entry(word), seed) for seed in args.seeds for word in words]
    first, _, step = args.part.partition("/")
    if not (first.isdecimal() and step.isdecimal() and 1 <= int(first) <= int(step)):
        raise FireflyError(f"--part {args.part}: write 1/3, 2/3 or 3/3 for the thirds of the work")
    mine = jobs[int(first) - 1 :: int(step)]
    for entry, _ in mine:  # whatever has no size that fits is told before the first training
        find_channels(entry.genotype, trial, train.classes, train.images.shape[1])
    finished = all(judge.judge(entry, seed) for entry, seed in mine)
    rows = [row for row in read_rows(place.results) if row.get("experiment") == "nas"]
    print(f"\n{table(rows)}\n\n{sum(row['final'] for row in rows)} networks in {place.results}")
    if find_spec("matplotlib") is not None and any(row["final"] for row in rows):
        print(f"figure: {plot(rows, args.runs / 'nas.png')}")
    if not finished:
        print("time is up: the same command goes on from here")
    return 0


def list_default(args: Namespace) -> list[str]:
    """The cells of all searches there are, the same permuted, five random ones, plain ones, and DARTS'."""
    found = [str(path) for path, _ in find_searches(args.runs)]
    if not found:
        raise FireflyError(f"no searches in {args.runs}: run `firefly nas search` first, or name genotypes")
    others = [f"random-{number}" for number in range(2 if args.size == "quick" else 5)]
    return [*found, *(f"permuted:{path}" for path in found), *others, "darts-v2", "plain"]


def agree(args: Namespace) -> int:
    found = find_searches(args.searches or args.runs)
    print(tell_agreement(found))
    if args.merge:
        print(merge_searches(found, args.merge))
    return 0


def draw_cells(args: Namespace) -> int:
    genotype = read_entry(args.genotype).genotype
    if args.out.suffix != ".svg":
        raise FireflyError(f"--out {args.out}: the drawing is SVG, so call it {args.out.with_suffix('.svg')}")
    args.out.parent.mkdir(parents=True, exist_ok=True)
    args.out.write_text(draw_genotype(genotype), encoding="utf-8")
    print(f"{args.out}\n{genotype.text}")
    return 0
