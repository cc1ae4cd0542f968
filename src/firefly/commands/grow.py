"""`firefly grow`: train and grow a model of yours, from its own data, and keep the run in a folder."""

from __future__ import annotations

import json
import math
import sys
from argparse import ArgumentParser, Namespace
from pathlib import Path
from typing import Any

import torch
from torch import nn

from firefly.anatomy.widths import pick_widths
from firefly.commands import arguments, journal
from firefly.commands.addresses import make_model, present_folder
from firefly.commands.arguments import LOSSES, choose_kinds, make_optimizer, read_budget, read_loss
from firefly.commands.loaders import begin_epoch, blamed_on, count_steps, describe_example, list_ranges, make_loaders
from firefly.commands.loop import Work, answer, train
from firefly.depth import deepen
from firefly.descent import Firefly
from firefly.errors import FireflyError, first_line
from firefly.method import METHODS, find_method
from firefly.ranks.launch import joined
from firefly.schedule import Every
from firefly.stages.budget import Budget
from firefly.surgery.swap import switched
from firefly.training.engine import check_loss
from firefly.training.history import History, Progress
from firefly.training.joining import begin
from firefly.training.lock import hold
from firefly.training.recipe import SCHEDULES, find_device
from firefly.training.resume import load_run, save_run

ABOUT = """Two functions of yours, without arguments: one makes the model, small, and one its batches.

  # mine.py
  def make_model():
      return nn.Sequential(nn.Linear(64, 8), nn.ReLU(), nn.Linear(8, 10))
  def make_loaders():
      return DataLoader(train, 128, shuffle=True), DataLoader(test, 500)

  firefly grow mine:make_model --data mine:make_loaders --loss cross_entropy \\
      --budget parameters=200k --every 10 --epochs 60 --out runs/mine
  firefly grow mine:make_model --data mine:make_loaders --preview

The second line trains nothing: it says where the model would grow now, and how much.

Batches are (inputs, targets), or (input, input, ..., targets), or dicts with --loss own or a loss of yours. The data
may also be one loader without a test, or a dict {"train": ..., "test": ..., "example": what forward takes}.

After every --every epochs, but not after the last, the model grows by at most --budget: 200k more parameters each time.
Stopped in any way, also by kill -9, the same line goes on and ends with the same weights, bit for bit on a CPU. The
folder holds the run (firefly show, report and export read it) and history.jsonl, a line for each epoch and growth.
"""
FOLDER = Path("runs/mine")
WEIGHED = ("model", "data", "loss", "optimizer", "deepen")  # what a preview of a run must have in common with it
FIXED: tuple[str, ...] = ("model", "data", "loss", "budget", "every", "times", "epochs", "optimizer", "lr")
FIXED += ("weight_decay", "schedule", "method", "new", "deepen", "steps", "seed", "batches", "example")


def add_arguments(parser: ArgumentParser) -> None:
    add = parser.add_argument
    parser.set_defaults(joins=True)  # several ranks work on it together
    add("model", metavar="MODULE:FUNCTION", help="makes the model, e.g. mypackage.models:make")
    add("--data", required=True, metavar="MODULE:FUNCTION", help="makes the batches: a loader, or (train, test)")
    losses = f"{', '.join(LOSSES)}; own ({arguments.OWN}); or MODULE:FUNCTION, a loss(model, batch)".replace("%", "%%")
    add("--loss", default="cross_entropy", help=f"{losses} (cross_entropy)")
    budgets = arguments.BUDGETS.replace("%", "%%")
    add("--budget", default="parameters=30%", metavar="KIND=AMOUNT", help=f"of one growth: {budgets} (parameters=30%%)")
    add("--every", type=int, default=10, metavar="EPOCHS", help="between growths (10)")
    add("--times", type=int, metavar="N", help="at most so many growths (as often as there is time)")
    add("--epochs", type=int, default=60, help="in all (60)")
    add("--out", type=Path, metavar="DIR", help=f"the folder of the run ({FOLDER})")
    preview = "say where it would grow now, and how much; train and write nothing; with --out, from where that run is"
    add("--preview", action="store_true", help=preview)
    add("--seed", type=int, default=0, help="of the first weights, batches and growths (0)")
    add(
        "--optimizer",
        default="sgd",
        help="sgd, adam, adamw, or MODULE:FUNCTION of the parameters (sgd)",
    )
    add("--lr", type=float, help="the highest learning rate (the optimizer's: 0.1 for sgd, 0.001 for adam)")
    add("--weight-decay", type=float, help="of the optimizer (0.0005 for sgd, 0.01 for adamw)")
    add("--schedule", default="cosine", help=f"of the learning rate: {', '.join(SCHEDULES)} (cosine, to 0)")
    add("--method", default="firefly", help=f"how to grow: {', '.join(sorted(METHODS))} (firefly)")
    add(
        "--new",
        type=int,
        metavar="N",
        help="brand-new neurons on offer in every width (half its size, 4 to 50); 0 for none",
    )
    add("--deepen", action="store_true", help="new layers are on offer, too, wherever one fits")
    add("--steps", type=int, default=60, help="of step one, which finds directions for candidates (60)")
    add("--device", help="cpu, cuda, cuda:1 (the GPU if there is one)")
    add("--tensorboard", action="store_true", help="write for TensorBoard, too: tensorboard --logdir DIR")
    add("--quiet", action="store_true", help="no progress line")


def run(args: Namespace) -> None:
    if not args.preview:
        args.out = args.out or FOLDER
    check(args)
    with joined():
        work_on(args)


def work_on(args: Namespace) -> None:
    """Of several ranks each takes its part of the batches; the first keeps the folder."""
    told = {key: tell(getattr(args, key)) for key in FIXED if hasattr(args, key)}
    with present_folder():
        work = prepare(args)
        told |= {"batches": count_steps(work.loaders.train), "example": describe_example(work.loaders.example)}
        told["ranges"] = list_ranges(work.loaders.example)
        group = work.optimizer.param_groups[0]
        told |= {"lr": float(group["lr"]), "weight_decay": group.get("weight_decay")}
        told |= {"command": "grow", "device": str(find_device(args.device)), "flops": work.grower.anatomy.flops()}
        if args.preview:
            preview(work, args.out, told)
        else:
            follow(work, args, json.loads(json.dumps(told)))


def check(args: Namespace) -> None:
    """Refuse what is wrong with the numbers and words, before any code of the user runs."""
    for name, least in (("epochs", 1), ("every", 1), ("times", 1), ("new", 0), ("steps", 1)):
        value = getattr(args, name)
        if value is not None and value < least:
            raise FireflyError(f"--{name} {value}: give a whole number from {least} up")
    if not 0 <= args.seed < 2**32:
        raise FireflyError(f"--seed {args.seed}: give a whole number from 0 to {2**32 - 1}")
    for name in ("lr", "weight_decay"):
        value = getattr(args, name)
        if value is not None and not 0 <= value < float("inf"):
            raise FireflyError(f"--{name.replace('_', '-')} {value}: give a number from 0 up")
    if args.schedule not in SCHEDULES:
        raise FireflyError(f"--schedule {args.schedule}: give one of {', '.join(SCHEDULES)}")
    if args.every >= args.epochs and not args.preview:
        raise FireflyError(
            f"--every {args.every} with --epochs {args.epochs}: it would never grow, since it does not after the last "
            f"epoch; give --every {max(1, args.epochs // 4)}, say, or more epochs"
        )
    read_budget(args.budget)
    find_method(args.method)
    choose_kinds(args.method, args.new)
    find_device(args.device)
    if not args.preview:
        check_folder(args.out)


def check_folder(folder: Path) -> None:
    """Refuse a folder that holds anything but a run of this command."""
    if not folder.exists():
        return
    if not folder.is_dir():
        raise FireflyError(f"--out {folder} is a file: give a folder, new or with the run to go on with")
    strange = sorted(path.name for path in folder.iterdir() if not journal.is_ours(path.name))
    if strange and not (folder / "fit.json").exists():
        listed = ", ".join(strange[:3]) + (" …" if len(strange) > 3 else "")
        raise FireflyError(f"--out {folder} holds no run, but {listed}: give a new folder")


def prepare(args: Namespace) -> Work:
    """Model, data, loss, optimiser and grower; each is tried, so that what is wrong is said before a long run."""
    device = find_device(args.device)
    begin_epoch(None, args.seed, 0)
    model = take_to(device, make_model(args.model))
    loaders = make_loaders(args.data)
    loss = read_loss(args.loss, device)
    if args.deepen:
        deepen(model, loaders.example)
    optimizer = make_optimizer(args.optimizer, model, lr=args.lr, weight_decay=args.weight_decay)
    kinds = choose_kinds(args.method, args.new)
    how: dict[str, Any] = {"seed": args.seed, "steps": args.steps, "method": args.method, "progress": not args.quiet}
    when = Every(args.every, args.times)
    budget = read_budget(args.budget)
    grower = Firefly(model, loaders.example, neighborhood=kinds, budget=budget, schedule=when, **how)
    work = Work(model, optimizer, grower, loaders, loss, args.epochs, args.seed, args.schedule, LOSSES.get(args.loss))
    try_loss(work, args.loss)
    pick_widths(grower.anatomy, None)
    check_budget(work, budget, args.budget)
    return work


def check_budget(work: Work, budget: Budget, text: str) -> None:
    """Refuse a budget that is smaller than any one neuron: it would stay so; and layers where none can wake."""
    anatomy = work.grower.anatomy
    names, sizes = [width.name for width in anatomy.growable()], anatomy.sizes()
    for limit in budget.limits(anatomy, names):
        if limit.what == "layers" and not limit.terms:
            way = "add --deepen, or leave layers out"
            raise FireflyError(f"--budget {text}: no layer is dormant, so that limits nothing: {way}")
        costs = {name: limit.cost(sizes | {name: sizes[name] + 1}) - limit.cost(sizes) for name in names}
        cheapest = min(names, key=lambda name: costs[name])
        if costs[cheapest] > limit.allowed:
            said = f"--budget {text}: that is {limit.allowed:,.0f} {limit.what}, and one more neuron costs"
            least = math.ceil(costs[cheapest])
            raise FireflyError(f"{said} {least:,} or more ({cheapest}): give {limit.what}={least} at least")


def take_to(device: torch.device, model: nn.Module) -> nn.Module:
    try:
        return model.to(device)
    except (RuntimeError, AssertionError) as error:  # no such device, no memory, or tensors without values
        raise FireflyError(f"the model cannot be taken to {device}: {first_line(error)}") from error


def try_loss(work: Work, name: str) -> None:
    """One loss before all: what the model or the loss cannot do with a batch is said with the batch's shapes."""
    with torch.random.fork_rng(devices=[]), switched(work.model.modules(), False):
        try_batch(work, name, work.loaders.first, "the first batch")
        if work.loaders.test is not None:
            try_batch(work, name, work.loaders.first_test, "the first batch of the test")


def try_batch(work: Work, name: str, batch: Any, where: str) -> None:
    with blamed_on(batch, f"--loss {name} on {where}"):
        value = check_loss(work.loss(work.model, batch)).item()
        scores = answer(work, batch)[0] if name == "nll" else None
        if scores is not None and scores.max() > 0:
            raise FireflyError("--loss nll is for log-probabilities, which are below 0; cross_entropy takes scores")
    if not math.isfinite(value):
        raise FireflyError(f"--loss {name} on {where} is {value}: scale the inputs, or check them")


def preview(work: Work, out: Path | None, told: dict[str, Any]) -> None:
    """Where it would grow now; of a run that is in the folder named, with its weights."""
    kept = out is not None and (out / "fit.json").exists()
    where = journal.load_latest(out, work, WEIGHED, told) if out is not None and kept else "as it is made"
    begin_epoch(work.loaders.train, work.seed, 0)
    work.model.train()
    print(work.grower.anatomy)
    print(f"\nThe model {where} would now grow so (nothing is trained, changed or written):")
    print(work.grower.preview(work.loss, work.loaders.train))


def follow(work: Work, args: Namespace, told: dict[str, Any]) -> None:
    """Train and grow, from where the folder ends."""
    with hold(args.out) as lock:
        history, _ = load_run(lock, told, work.trained(), FIXED)
        line = Progress(args.epochs, count_steps(work.loaders.train) or 0, not args.quiet)
        begin([work.model], told | {"device": None})
        book = journal.Journal(args.out, work, history, args.tensorboard) if lock.writes else None
        introduce(args, work, history)
        note = (lambda now: None) if book is None else book.tell
        try:
            history = train(work, history, lambda now: save_run(lock, work.trained(), now, told, "nothing"), note, line)
        except KeyboardInterrupt:
            if lock.writes:
                print(f"\nstopped; the same line goes on from the last epoch kept in {args.out}", file=sys.stderr)
            raise
        finally:
            line.close()
            if book is not None:
                book.close()
    print(journal.conclude(args.out, work, history))


def introduce(args: Namespace, work: Work, history: History) -> None:
    """What is about to happen, in two lines."""
    anatomy = work.grower.anatomy
    if len(history) >= args.epochs:
        print(f"the run in {args.out} is finished; give another --out to start anew")
        return
    times = (args.epochs - 1) // args.every
    times = times if args.times is None else min(times, args.times)
    left, more = times - len(work.grower.history), " more" if len(work.grower.history) else ""
    grows = f"it grows {left}{more} time{'s' * (left != 1)}, by at most {args.budget} each"
    widths = len(anatomy.growable())
    size = f"{anatomy.parameters():,} parameters, {widths} width{'s' * (widths > 1)} that can grow"
    print(f"{args.model}: {size}; {grows}", flush=True)
    if len(history):
        print(f"goes on after epoch {len(history)} of {args.epochs}, as kept in {args.out}", flush=True)


def tell(value: Any) -> Any:
    return str(value) if isinstance(value, Path) else value
