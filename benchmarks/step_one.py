"""What a growth is worth on images that it has not seen: to choose the settings of step one and of the scores.

    python benchmarks/step_one.py wider-mobilenet --try rate=0.02 --try rate=0.06 --out step-one.jsonl    (a GPU)
    python benchmarks/step_one.py wider-vgg19 --quick --device cpu                              (a smoke test)

A network with so many channels everywhere is trained on all training images but 10,000, for a round of `firefly
reproduce --middle`, and grown by 45 % of its parameters, anew for every `--try`: KEY=VALUE changes of the experiment's
settings. Told are the decreases of the loss as the growth reports them, over-grown and grown, and that on the images
set apart, augmented in the same way, with the statistics of the batch as in training.
"""

import argparse
import copy
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

import firefly
from firefly.experiments import options
from firefly.experiments.growers import METHODS
from firefly.experiments.lineage import Line
from firefly.experiments.rows import append, count, hardware, list_channels
from firefly.experiments.setting import Setting
from firefly.experiments.wider import MOBILENET, VGG19, Wider
from firefly.training.resident import Batches, draw, upload

EXPERIMENTS = {experiment.name: experiment for experiment in (VGG19, MOBILENET)}
KNOWN = [method for method in METHODS if method != "firefly-deeper"]  # whose layers come before its first growth
APART = 10_000  # images


def measure(line: Line, start: nn.Module, words: list[str]) -> dict[str, Any]:
    """One line of the results."""
    model = copy.deepcopy(start)
    budget = firefly.Parameters(fraction=0.45) & firefly.Multiples(line.setting.multiple)
    before = find_loss(line, model)
    assert line.grow is not None
    growth = line.grow(line, model, line.make_optimizer(model), budget, 2).growth
    return {
        "benchmark": "step_one",
        "experiment": line.world.experiment,
        "method": line.method,
        "tried": words,
        "parameters": [count(start), count(model)],
        "widths": list_channels(model),
        "losses": (growth.loss_before, growth.loss_overgrown, growth.loss_after),
        "predicted": growth.predicted,
        "apart": (before, find_loss(line, model)),
        "config": options.plain(line.setting),
        "device": hardware(line.world.place.device),
    }


@torch.no_grad()
def find_loss(line: Line, model: nn.Module) -> float:
    """On the images set apart; the buffers of the model stay."""
    lines = line.world.place.device.type == "cuda"
    data = upload(line.world.test, line.world.place.device, augment=line.world.augment, channels_last=lines)
    batches = Batches(data, draw(data, 2 * line.setting.batch, line.seed, 20_000))
    twin = copy.deepcopy(model).train()
    return torch.stack([line.loss(twin, batch) for batch in batches]).mean().item()


def train(experiment: Wider, how: argparse.Namespace, setting: Setting, width: int) -> tuple[Line, nn.Module]:
    """A network with so many channels everywhere after a round, and the line that it begins."""
    world = replace(experiment.make_world(how, setting), start=width)
    world = replace(world, place=replace(world.place, folder=how.runs / str(width)))
    line = Line("start", how.seed, setting, world)
    model = line.make_start()
    line.train(model, line.folder(0), setting.epochs, 0, line.make_optimizer(model))
    return line, model


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("experiment", choices=EXPERIMENTS)
    parser.add_argument("--try", dest="tries", nargs="+", action="append", metavar="KEY=VALUE", help="other settings")
    parser.add_argument("--methods", nargs="+", choices=KNOWN, default=["firefly", "firefly-split"])
    parser.add_argument("--widths", nargs="+", type=int, help="channels of every layer before the growth (the start's)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--data", type=Path, help="the folder of the data sets (FIREFLY_DATA, else data)")
    parser.add_argument("--runs", type=Path, default=Path("runs/step-one"), help="the trained networks")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--quick", action="store_true", help="few images and steps")
    parser.add_argument("--out", type=Path, help="a file to append JSON lines to")
    parser.set_defaults(report=None, minutes=None, shared=False)
    return parser.parse_args()


def choose_setting(how: argparse.Namespace) -> Setting:
    setting = replace(EXPERIMENTS[how.experiment].settings["middle"], held_out=APART)
    few = replace(setting, images=512, epochs=1, batch=32, steps=4, evaluate_on=2, candidates=4)
    return few if how.quick else setting


def main() -> None:
    how = parse()
    experiment, setting = EXPERIMENTS[how.experiment], choose_setting(how)
    for width in how.widths or [experiment.start]:
        line, model = train(experiment, how, setting, width)
        for words in how.tries or [[]]:
            for method in how.methods:
                changed = replace(line, method=method, setting=options.change(setting, words), grow=METHODS[method])
                row = measure(changed, model, words)
                print(f"{width:>4} channels  {method:15} {' '.join(words):40} {tell(row)}", flush=True)
                if how.out:
                    append(how.out, row)


def tell(row: dict[str, Any]) -> str:
    """By how much the loss fell."""
    before, overgrown, after = row["losses"]
    reported = f"over-grown {before - overgrown:7.4f}, grown {before - after:7.4f}, predicted {row['predicted']:7.4f}"
    return f"{reported}, images set apart {row['apart'][0] - row['apart'][1]:7.4f}"


if __name__ == "__main__":
    main()
