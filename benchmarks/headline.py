"""The headline, fairly: the best full VGG-19, and the grown networks, each at the best of the same few settings.

    python benchmarks/headline.py --jobs 3 --out results/headline.jsonl          (a GPU; the same command goes on)
    python benchmarks/headline.py --only grid --minutes 9 --jobs 3 --out ...     (no test images yet)
    python benchmarks/headline.py --quick --device cpu                           (to see that all works)

1. The networks grow as `firefly reproduce wider-vgg19 --middle` grows them, with images set apart.
2. Each is trained on with batches of 128 and 256 at three rates: six trials for each network, the full one included.
3. The best setting of each, by those images, serves three seeds, grown and trained on all training images and measured
   once on the test images. `--only grid` ends before that.

One JSON line a training goes to `--out`; epochs are counted, those of the rounds included.
"""

import argparse
import json
import os
import statistics
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from pool import run_jobs

import firefly
from firefly.experiments import wider
from firefly.experiments.growers import METHODS
from firefly.experiments.lineage import Line, State
from firefly.experiments.notes import is_begun, read_note
from firefly.experiments.options import make_world
from firefly.experiments.rows import Row, append, count, count_flops, hardware, list_channels, read_rows
from firefly.experiments.setting import Setting, World
from firefly.training import evaluate, fit
from firefly.vision import data, models

NETWORKS = {  # the line that it is of, and its size
    "full": ("full", 1.0),
    "wider-4": ("firefly", 0.04),
    "wider-6": ("firefly", 0.062),
    "deeper-4": ("firefly-deeper", 0.04),
    "uniform-4": ("uniform", 0.04),
}
GRID = [(128, 0.05), (128, 0.1), (128, 0.2), (256, 0.1), (256, 0.2), (256, 0.4)]
QUICK = replace(wider.QUICK, sizes=(0.0028, 0.0032), epochs=1, images=256, steps=2)


@dataclass(frozen=True)
class Job:
    """To grow a line (batch 0), or to train one of its networks on."""

    network: str  # of a growth: the name of the line
    seed: int
    test: bool
    how: argparse.Namespace = field(compare=False, repr=False)
    batch: int = 0
    lr: float = 0.0

    @property
    def line(self) -> str:
        return NETWORKS[self.network][0] if self.batch else self.network

    @property
    def epochs(self) -> int:
        """After the last growth."""
        return int(self.how.epochs if self.test else self.how.grid_epochs)

    @property
    def setting(self) -> Setting:
        usual = QUICK if self.how.quick else wider.MIDDLE
        return replace(usual, held_out=0 if self.test else 128 if self.how.quick else 5000)

    @property
    def step(self) -> int:
        """At which its line has the network's size."""
        known = sorted({size for _, size in NETWORKS.values()})
        sizes = self.setting.sizes if self.how.quick else known[:-1]
        size = sizes[known.index(NETWORKS[self.network][1])]
        return self.setting.sizes.index(size) + 1

    def find_folder(self, step: int) -> Path:
        """Where the grown network of a step is kept."""
        place = "test" if self.test else "held"
        return Path(self.how.runs) / f"{place}-{self.line}-{self.seed}-{step}"


def load_world(job: Job) -> World:
    how = job.how

    def load(split: str) -> data.Images:
        if how.quick:  # random images: nothing is to be learnt
            generator = torch.Generator().manual_seed(0)
            images = torch.randint(256, (512, 3, 32, 32), dtype=torch.uint8, generator=generator)
            return data.Images(images, torch.arange(512) % 10, 10, "cifar10")
        return data.load("cifar10", how.data, split)

    args = argparse.Namespace(**{**vars(how), "report": None, "minutes": None, "shared": how.jobs > 1})
    args.runs = Path(how.runs) / "rounds" / job.line  # of its own: lines may run beside each other
    return make_world("wider-vgg19", args, job.setting, load, lambda _, w: models.vgg19(widths=w), 16, ())


def do(job: Job) -> Row | None:
    torch.set_num_threads(1 if job.how.jobs > 1 else max(1, (os.cpu_count() or 2) // 2))
    line = Line(job.line, job.seed, job.setting, load_world(job), METHODS.get(job.line))
    return train(job, line) if job.batch else grow(job, line)


def grow(job: Job, line: Line) -> None:
    """All rounds of a line, from where they stopped; the networks of the headline's sizes are kept."""
    wanted = {
        replace(job, network=name, batch=1).step for name, (method, _) in NETWORKS.items() if method == line.method
    }
    growths = line.folder("growths.json")  # those of rounds that are over, whose own notes are gone
    told = json.loads(growths.read_text()) if growths.exists() else []
    begun = [step for step in range(1, len(told) + 2) if is_begun(line.folder(step))]
    state: State | None = None
    for step in range(max(begun, default=1), max(wanted) + 1):
        state = line.take_step(state, step, write=False)
        note = read_note(line.folder(step))["growth"]
        told = [*told[: step - 1], {key: note[key] for key in ("growth_seconds", "search_epochs")}]
        write(growths, told)
        if step in wanted:
            folder = job.find_folder(step)
            firefly.save(folder, state.model)
            write(folder / "rounds.json", {"epochs": state.epochs, "growths": told})


def write(path: Path, told: Any) -> None:
    """At once: whoever finds the file finds all of it."""
    path.with_suffix(".part").write_text(json.dumps(told))
    path.with_suffix(".part").replace(path)


def train(job: Job, line: Line) -> Row:
    """The training that counts, from a grown network or from nothing."""
    world, setting = line.world, line.setting
    rounds: Row = {"epochs": 0, "growths": []}
    if job.network == "full":
        torch.manual_seed(10_000 + job.seed)
        model = world.make(setting_widths(job)).to(world.place.device)
        epochs = job.epochs + setting.epochs * (line_steps(job) + 1)
    else:
        model, epochs = line.make_start(), job.epochs
        firefly.load(job.find_folder(job.step), model)
        rounds = json.loads((job.find_folder(job.step) / "rounds.json").read_text())
    decay = {"nesterov": True, "weight_decay": setting.weight_decay}
    optimizer = torch.optim.SGD(model.parameters(), job.lr, 0.9, **decay)
    seed = 1000 * job.seed + 100
    how = {"batch": job.batch, "seed": seed, "device": world.place.device, "progress": False}
    history = fit(model, world.train, epochs, optimizer=optimizer, **how)
    score = evaluate(model, world.test)
    return {
        "experiment": "headline",
        "method": job.network,
        "dataset": "cifar10",
        "seed": job.seed,
        "final": True,
        "step": 0,
        "test_accuracy" if job.test else "held_accuracy": score.accuracy,
        "train_loss": history[-1].loss,
        "parameters": count(model),
        "share": count(model) / world.full,
        "flops": count_flops(model, torch.zeros(3, 32, 32, device=world.place.device)),
        "epochs": rounds["epochs"] + len(history),
        "growths": rounds["growths"],
        "train_seconds": round(history.seconds, 2),
        "widths": list_channels(model),
        "device": hardware(world.place.device),
        "shared": job.how.jobs > 1,
        "config": {"batch": job.batch, "lr": job.lr, "further": job.epochs, "quick": job.how.quick},
    }


def setting_widths(job: Job) -> Any:
    return 16 if job.how.quick else "full"


def line_steps(job: Job) -> int:
    """Rounds of the lines that the full network is compared with: it gets as many epochs."""
    return replace(job, network="wider-4").step


# ---- what to do ------------------------------------------------------------------------------------------------------


def list_jobs(how: argparse.Namespace, rows: list[Row]) -> list[Job]:
    """The trials on images set apart; when all are there, the test with the best of each network."""
    mine = [row for row in rows if row["config"]["quick"] == how.quick]
    grid = [Job(name, how.seed, False, how, batch, lr) for name in NETWORKS for batch, lr in GRID]
    left = [job for job in grid if not is_done(job, mine)]
    if not left and how.only != "grid":
        tried = [row for row in mine if row["config"]["further"] == how.grid_epochs]
        chosen = {name: choose(name, tried) for name in NETWORKS}
        final = [Job(name, seed, True, how, *chosen[name]) for seed in how.seeds for name in NETWORKS]
        left = [job for job in final if not is_done(job, mine)]
    lines = dict.fromkeys(replace(job, network=job.line, batch=0, lr=0.0) for job in left if not is_ready(job))
    return [*lines, *left]


def is_done(job: Job, rows: list[Row]) -> bool:
    key = "test_accuracy" if job.test else "held_accuracy"
    same = [row for row in rows if (row["method"], row["seed"]) == (job.network, job.seed) and key in row]
    wanted = {"batch": job.batch, "lr": job.lr, "further": job.epochs}
    return any(row["config"] | wanted == row["config"] for row in same)


def choose(network: str, rows: list[Row]) -> tuple[int, float]:
    """The batch and the rate that were best on images set apart."""
    found: dict[tuple[int, float], list[float]] = {}
    for row in rows:
        if row["method"] == network and "held_accuracy" in row:
            found.setdefault((row["config"]["batch"], row["config"]["lr"]), []).append(row["held_accuracy"])
    return max(found, key=lambda one: statistics.fmean(found[one]))


def is_ready(job: Job) -> bool:
    return not job.batch or job.line == "full" or (job.find_folder(job.step) / "rounds.json").exists()


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", choices=["grid"], help="end before the test images are read")
    parser.add_argument("--epochs", type=int, default=0, help="after the last growth (200)")
    parser.add_argument("--grid-epochs", type=int, default=0, help="the same in the trials, if fewer")
    parser.add_argument("--seed", type=int, default=0, help="of the grid")
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2], help="of the test")
    parser.add_argument("--jobs", type=int, default=1, help="processes beside each other")
    parser.add_argument("--minutes", type=float, default=float("inf"), help="begin nothing after that time")
    parser.add_argument("--quick", action="store_true", help="random images, one epoch")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--data", type=Path, help="the folder of the data sets (FIREFLY_DATA, else data)")
    parser.add_argument("--out", type=Path, default=Path("runs/headline/results.jsonl"))
    parser.add_argument("--runs", type=Path, default=Path("runs/headline"), help="the grown networks")
    how = parser.parse_args()
    how.epochs = how.epochs or (1 if how.quick else 200)
    how.grid_epochs = how.grid_epochs or how.epochs
    return how


def main() -> int:
    how = parse()

    def finish(job: Job, row: Row | None) -> None:
        if row is not None:
            append(how.out, row)
            found = row.get("test_accuracy", row.get("held_accuracy"))
            place = "test" if job.test else "apart"
            print(f"{job.network:10} {place} {found:7.2%} batch {job.batch} lr {job.lr} seed {job.seed}", flush=True)

    failed = 0
    while todo := list_jobs(how, read_rows(how.out, under_way=True) if how.out.exists() else []):
        left, failed = run_jobs(todo, do, finish, how.jobs, how.minutes, is_ready)
        if left or failed:
            print(f"{left} left, {failed} failed: the same command goes on")
            break
    return 1 if failed else 0


if __name__ == "__main__":
    raise SystemExit(main())
