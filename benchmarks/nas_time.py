"""How long a step takes of a search and of an evaluation, in every form; the fastest form is written down for nas.sh.

    python benchmarks/nas_time.py --out runs/nas         a minute on a GPU; forms not reached in time are left out
    python benchmarks/nas_time.py --quick --out runs/t   small networks, on a CPU

Forms are what `firefly nas ... --fit` takes. What they compute differs by rounding alone, so the choice is free;
float32 is TF32 in convolutions, as torch has it on a GPU. `--batch` tells how the time follows the batch.
"""

import argparse
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from firefly.errors import FireflyError
from firefly.experiments.nas import read_loop
from firefly.experiments.nas.evaluate import SETTINGS, find_channels
from firefly.experiments.nas.search import PLANS
from firefly.experiments.rows import hardware
from firefly.nas import Network, find_known, train_loss
from firefly.nas.searching import make_loss
from firefly.nas.template import Template
from firefly.training import fit
from firefly.training.recipe import find_device

FORMS = [
    "dense=true precision=bf16 channels_last=true",
    "dense=false precision=bf16 channels_last=false",
    "dense=true precision=float32 channels_last=true",
    "dense=false precision=bf16 channels_last=true",
    "dense=true precision=bf16 channels_last=false",
    "dense=false precision=float32 channels_last=false",
    "dense=true precision=float32 channels_last=false",
]
STEPS, EPOCHS = 8, 3  # the first epoch has the capture in it


def time_search(how: dict[str, Any], size: str, batch: int | None, device: torch.device) -> float:
    """Seconds of a training step of the template."""
    plan = PLANS[size]
    model = Template(plan.channels, plan.begin, 10, plan.nodes, 3, how.pop("dense"))
    return measure(model, batch or plan.batch, device, how, loss=make_loss(device, how["precision"]))


def time_evaluate(how: dict[str, Any], size: str, batch: int | None, device: torch.device) -> float:
    """Seconds of a training step of DARTS' second-order cells."""
    trial, genotype = SETTINGS[size], find_known("darts-v2")
    channels = find_channels(genotype, trial, 10, 3)
    options = {"auxiliary": trial.auxiliary, "drop_path": trial.drop_path, "dense": how.pop("dense")}
    model = Network(genotype, trial.cells, channels, **options)
    return measure(model, batch or trial.batch, device, how, loss=train_loss, cutout=trial.cutout)


def measure(model: torch.nn.Module, batch: int, device: torch.device, how: dict[str, Any], **more: Any) -> float:
    images = torch.randint(0, 256, (STEPS * batch, 3, 32, 32), dtype=torch.uint8)
    data = images, torch.arange(len(images)) % 10
    history = fit(model, data, EPOCHS, batch=batch, lr=0.01, device=device, progress=False, **how, **more)
    return min(row.seconds for row in history.epochs[1:]) / STEPS


TIMED: dict[str, Callable[..., float]] = {"search": time_search, "evaluate": time_evaluate}


def choose(job: str, size: str, batch: int | None, device: torch.device, deadline: float) -> list[dict[str, Any]]:
    """A row for every form that was reached, the fastest first. A form that fails is told and left out."""
    rows: list[dict[str, Any]] = []
    for form in FORMS:
        if rows and time.monotonic() > deadline:
            print(f"{job}: no time for {form}", flush=True)
            continue
        try:
            seconds = TIMED[job](read_loop(form.split()), size, batch, device)
        except (RuntimeError, FireflyError) as error:  # such as too little memory, or a loss that is no number
            print(f"{job}: {form}: {error}", flush=True)
            continue
        rows.append({"benchmark": "nas_time", "job": job, "form": form, "seconds_per_step": seconds, "batch": batch})
        print(f"{job}: {1000 * seconds:8.1f} ms a step   {form}", flush=True)
    return sorted(rows, key=lambda row: row["seconds_per_step"])


def estimate(job: str, size: str, seconds: float) -> str:
    """What that means for the whole: 50,000 images, half of them for the weights of a search."""
    if job == "search":
        plan = PLANS[size]
        return f"a search takes about {2.2 * plan.epochs * 25_000 / plan.batch * seconds / 60:.0f} minutes alone"
    trial = SETTINGS[size]
    return f"a network takes about {trial.epochs * 50_000 / trial.batch * seconds / 60:.1f} minutes alone"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("runs/nas"), help="the folder of fast-search and so on")
    parser.add_argument("--seconds", type=float, default=60, help="for all (60)")
    parser.add_argument("--batch", type=int, help="another batch; the choice is not written down then")
    parser.add_argument("--quick", action="store_const", dest="size", const="quick", default="middle")
    parser.add_argument("--device", help="cuda or cpu (what there is)")
    args = parser.parse_args()
    device, start = find_device(args.device), time.monotonic()
    args.out.mkdir(parents=True, exist_ok=True)
    for number, job in enumerate(TIMED, start=1):
        rows = choose(job, args.size, args.batch, device, start + args.seconds * number / len(TIMED))
        with open(args.out / "times.jsonl", "a", encoding="utf-8") as file:
            file.writelines(json.dumps(row | {"size": args.size, "device": hardware(device)}) + "\n" for row in rows)
        if rows and args.batch is None:
            (args.out / f"fast-{job}").write_text(rows[0]["form"] + "\n", encoding="utf-8")
            print(f"{job}: {rows[0]['form']}; {estimate(job, args.size, rows[0]['seconds_per_step'])}", flush=True)


if __name__ == "__main__":
    main()
