"""Seconds of one growth by every method (Fig. 3b of the paper), kernels compiled before.

    python benchmarks/growth_seconds.py wider-mobilenet --widths 32 80 --out results/growth-seconds.jsonl    (one GPU)
    python benchmarks/growth_seconds.py wider-vgg19 --quick --device cpu                             (a smoke test)

A network with so many channels everywhere and random weights gets 45 % more parameters, with the settings of
`firefly reproduce --middle`, on 50,000 random images. Every growth is done twice, and the second one counts: cuDNN
compiles kernels for every new shape, which can take several times as long as the growth of a MobileNet itself. The
widths are traced before, as they are known in all growths of an experiment but the first. This measures time, not
accuracy.
"""

import argparse
import time
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch

import firefly
from firefly.experiments.growers import METHODS
from firefly.experiments.lineage import Line
from firefly.experiments.rows import append, count, hardware, list_channels
from firefly.experiments.setting import Place, Setting, World
from firefly.experiments.wider import MOBILENET, VGG19
from firefly.vision import models
from firefly.vision.data import Images

EXPERIMENTS = {experiment.name: experiment for experiment in (VGG19, MOBILENET)}


def measure(line: Line, width: int, more: float) -> dict[str, Any]:
    """One line of the results."""
    budget = firefly.Parameters(fraction=more) & firefly.Multiples(line.setting.multiple)
    seconds = []
    assert line.grow is not None
    for _ in range(2):
        model, optimizer = prepare(line, width)
        before = count(model)
        start = time.perf_counter()
        line.grow(line, model, optimizer, budget, 2)
        wait(line.world.place.device)
        seconds.append(time.perf_counter() - start)
    return {
        "benchmark": "growth_seconds",
        "experiment": line.world.experiment,
        "method": line.method,
        "width": width,
        "parameters": [before, count(model)],
        "widths": list_channels(model),
        "growth_seconds": round(seconds[1], 3),
        "with_compilation": round(seconds[0], 3),
        "child": line.setting.child if line.method == "nash" else None,
        "images": len(line.world.train),
        "device": hardware(line.world.place.device),
    }


def prepare(line: Line, width: int) -> tuple[torch.nn.Module, torch.optim.SGD]:
    """The same network every time, as the training loop leaves it, with its widths known."""
    torch.manual_seed(0)
    gpu = line.world.place.device.type == "cuda"
    model = line.world.make(width).to(line.world.place.device)
    model = model.to(memory_format=torch.channels_last) if gpu else model  # type: ignore[call-overload]
    if line.method == "firefly-deeper":  # as its first growth does
        firefly.deepen(model, line.example(1))
    line.anatomy = None
    line.trace(model, 1)
    wait(line.world.place.device)
    return model, line.make_optimizer(model)


def wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize()


def make_world(name: str, how: argparse.Namespace) -> World:
    experiment, classes = EXPERIMENTS[name], 100 if EXPERIMENTS[name].dataset == "cifar100" else 10
    images = torch.randint(256, (how.images, 3, 32, 32), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    data = Images(images, torch.arange(how.images) % classes, classes, experiment.dataset)
    make, nowhere = partial(getattr(models, experiment.model), classes=classes), Path("runs")
    return World(
        experiment=name,
        make=lambda widths: make(widths=widths),
        start=experiment.start,
        train=data,
        test=data,
        place=Place(torch.device(how.device), nowhere, nowhere),
    )


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("experiment", choices=EXPERIMENTS)
    parser.add_argument("--widths", nargs="+", type=int, default=[32], help="channels of every layer before the growth")
    parser.add_argument("--methods", nargs="+", choices=METHODS, default=list(METHODS), help="which to measure")
    parser.add_argument("--more", type=float, default=0.45, help="parameters to add, as a share of those present")
    parser.add_argument("--child", type=int, default=2, help="epochs that NASH trains each of its eight children")
    parser.add_argument("--images", type=int, default=50_000)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--quick", action="store_true", help="few images and steps")
    parser.add_argument("--out", type=Path, help="a file to append JSON lines to")
    return parser.parse_args()


def choose_setting(how: argparse.Namespace) -> Setting:
    setting = replace(EXPERIMENTS[how.experiment].settings["middle"], child=how.child)
    return replace(setting, steps=2, evaluate_on=1, candidates=8, batch=32, child=1) if how.quick else setting


def main() -> None:
    how = parse()
    how.images = 256 if how.quick else how.images
    world, setting = make_world(how.experiment, how), choose_setting(how)
    for width in how.widths:
        for method in how.methods:
            row = measure(Line(method, 0, setting, world, METHODS[method]), width, how.more)
            told = f"{row['growth_seconds']:8.2f} s, {row['with_compilation']:8.2f} s the first time"
            print(f"{how.experiment} {width:>4} channels  {method:15}{told}", flush=True)
            if how.out:
                append(how.out, row)


if __name__ == "__main__":
    main()
