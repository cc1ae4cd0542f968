"""Does growth pay? A network grown to known widths against what one would do instead, on images set apart.

    python benchmarks/growth_pays.py resnet20-cifar10 --try fixed --try short --try firefly --seeds 0 1 2   (a GPU)
    python benchmarks/growth_pays.py resnet-fashion --try "firefly after=forget:0" --try "firefly grow_at=0.1,0.2,0.3"
    python benchmarks/growth_pays.py resnet20-cifar10 --quick --device cpu                             (a smoke test)

Every network ends with exactly the same widths; grown ones begin with a quarter of them. `fixed` has them from the
start; `short` too, for as many epochs as cost the training FLOPs of the grown one; `thrown-away` grows, and forgets all
weights at its last growth. Growth pays where it beats those two. A `--try` is a method and changes of its `Recipe`.
One JSON line a network goes to `--out` as soon as it is trained; what is there is not done again. The test images are
never read.
"""

import argparse
import math
import os
import time
from dataclasses import asdict, dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import torch
from pays_grower import NEIGHBORHOODS, Grower
from pays_networks import SGD, START, TASKS, Task
from pool import run_jobs

import firefly
from firefly.experiments.rows import append, read_rows
from firefly.training import fit

UNGROWN = ("fixed", "short", "small")


@dataclass(frozen=True)
class Recipe:
    """How one network comes about; `after` is name:number of `pays_after.AFTER`, joined with +."""

    method: str
    grow_at: tuple[float, ...] = (0.15, 0.25, 0.4)  # shares of the epochs
    shares: tuple[float, ...] = (0.375, 0.625, 1.0)  # of the full widths after each growth
    after: str = ""
    age: float = 1.0  # newborn entries learn so many times as fast; negative: the old ones 1/-age as fast
    fade: float = 5.0  # epochs until half of that is gone
    warmup: float = 0.0  # epochs after a growth in which the rate rises from 0
    split: float = 0.3  # epsilon
    new: float = 0.3  # epsilon
    kinds: str = ""  # split, new or both; "" as the method has it
    steps: int = 40
    batches: int = 4
    count: int = 8  # new candidates a width, or as many as the width that lacks most, where nothing splits
    epochs: int = 0  # 0 as the task has it
    lr: float = 0.0
    hold: bool = False  # the full rate until the last growth, then cosine
    sgd: bool = False  # instead of the task's optimiser
    augment: str = ""  # crop; "" as the task has it


def read_recipe(words: str) -> Recipe:
    """A method and KEY=VALUE changes."""
    method, *changes = words.split()
    recipe = Recipe(method)
    for change in changes:
        key, value = change.split("=")
        kind = type(getattr(recipe, key))
        made: Any = tuple(map(float, value.split(","))) if kind is tuple else kind(value)
        made = value == "1" if kind is bool else made
        recipe = replace(recipe, **{key: made})
    return recipe


@cache
def load_task(name: str, random: int) -> Any:
    task = TASKS[name]
    return (task.invent(random), task.invent(random // 2)) if random else task.load()


@dataclass(frozen=True)
class Job:
    task: Task
    words: str
    seed: int
    quick: bool
    random: int
    device: str
    shared: bool


def run_job(job: Job) -> dict[str, Any]:
    """One network: trained, perhaps grown, and judged."""
    torch.set_num_threads(1 if job.shared else max(1, (os.cpu_count() or 2) // 2))
    recipe, task = read_recipe(job.words), job.task
    if job.quick:
        recipe = replace(recipe, steps=3, batches=2)
    train, held = load_task(task.name, job.random)
    settings = {**(SGD if recipe.sgd else task.settings), **({"lr": recipe.lr} if recipe.lr else {})}
    options = {**task.recipe, "epochs": recipe.epochs or task.recipe["epochs"]}
    options |= {"augment": recipe.augment} if recipe.augment else {}
    options |= {"epochs": 4, "batch": 64} if job.quick else {}
    count, apart = (len(data[1] if isinstance(data, tuple) else data) for data in (train, held))
    steps = count // options["batch"]
    torch.manual_seed(job.seed)
    model = task.make(START if recipe.method not in ("fixed", "short") else 1.0)
    whole = firefly.trace(model, task.example)
    grower = None
    if recipe.method == "short":
        share = plan_share(task, recipe, steps, options)
        options["epochs"] = min(options["epochs"], max(1, round(share * options["epochs"])))
    if recipe.method not in UNGROWN:
        grower = Grower(model, task.example, recipe, options["epochs"], steps, job.seed)
        grower._anatomy = whole
    optimizer = (torch.optim.SGD if recipe.sgd else task.optimizer)(model.parameters(), **settings)
    start = time.perf_counter()
    history = fit(
        model,
        train,
        options["epochs"],
        batch=options["batch"],
        augment=options["augment"],
        loss=task.loss,
        optimizer=optimizer,
        schedule=make_schedule(recipe, options["epochs"], task.rise),
        grower=grower,
        device=job.device,
        seed=job.seed,
        progress=False,
    )
    seconds = time.perf_counter() - start
    found = task.judge(model, held)
    sizes = [whole.sizes()] if grower is None else grower.sizes_by_epoch(len(history))
    forward = [whole.flops(one) for one in sizes] * (1 if grower else len(history))
    images = steps * options["batch"]
    told = {"quick": True} if job.quick else {}
    told |= {"random": job.random} if job.random else {}
    told |= {"rise": task.rise} if task.rise else {}
    growing = grower.flops_spent(options["batch"]) if grower else 0
    return {
        "benchmark": "growth_pays",
        "task": task.name,
        "method": recipe.method,
        "tried": job.words,
        "seed": job.seed,
        **found,
        "train_loss": history[-1].loss,
        "parameters": sum(parameter.numel() for parameter in model.parameters()),
        "flops": forward[-1],
        "train_flops": 3 * images * sum(forward) + growing,
        "growth_flops": growing,
        "epochs": len(history),
        "seconds": round(seconds, 2),
        "growth_seconds": round(grower.seconds, 2) if grower else 0.0,
        "grown": grower.told if grower else [],
        "shared": job.shared,
        "device": torch.cuda.get_device_name() if job.device == "cuda" else "cpu",
        "config": {**asdict(recipe), **options, **settings, "images": count, "held": apart, **told},
    }


def plan_share(task: Task, recipe: Recipe, steps: int, options: dict[str, Any]) -> float:
    """The training FLOPs of Firefly's run with this schedule, as a share of those of a fixed network."""
    small = task.make(START)
    grown = replace(recipe, method="firefly")
    grower = Grower(small, task.example, grown, options["epochs"], steps, 0)
    flops = grower.plan_flops(options["epochs"], steps * options["batch"], options["batch"])
    fixed = grower.anatomy.flops(grower.full)
    return flops / (3 * fixed * steps * options["batch"] * options["epochs"])


def make_schedule(recipe: Recipe, epochs: int, rise: float = 0.0) -> Any:
    """Cosine; with `hold` only from the last growth on; with `warmup` it rises anew after each growth.

    The first `rise` epochs it rises, too, in every method: a network that begins small needs it less than a large one.
    """
    grows = recipe.method not in UNGROWN
    times = [round(share * epochs) for share in recipe.grow_at] if grows else []

    def factor(at: float) -> float:
        last = times[-1] if times and recipe.hold else 0
        done = max(0.0, at - last) / (epochs - last)
        since = min((at - time for time in times if at >= time), default=math.inf)
        ramp = min(1.0, since / recipe.warmup) if recipe.warmup else 1.0
        ramp *= min(1.0, at / rise) if rise else 1.0
        return ramp * 0.5 * (1 + math.cos(math.pi * done))

    return factor


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("task", choices=TASKS)
    parser.add_argument("--try", dest="tries", action="append", metavar="METHOD KEY=VALUE ...")
    parser.add_argument("--tries", dest="file", type=Path, help="a file with one such line each")
    parser.add_argument("--seeds", nargs="+", type=int, default=[0])
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--jobs", type=int, default=1, help="processes beside each other; seconds mean little then")
    parser.add_argument("--minutes", type=float, default=math.inf, help="begin no network after that time")
    parser.add_argument("--quick", action="store_true", help="a few random images, few steps")
    parser.add_argument("--random", type=int, default=0, help="so many random images, to measure seconds only")
    parser.add_argument("--out", type=Path, help="a file to append JSON lines to")
    return parser.parse_args()


def list_tries(how: argparse.Namespace) -> list[str]:
    lines = how.file.read_text().splitlines() if how.file else []
    tries = [*(how.tries or []), *(line.strip() for line in lines if line.strip() and not line.startswith("#"))]
    return tries or [*UNGROWN[:2], "thrown-away", *NEIGHBORHOODS]


def show(row: dict[str, Any]) -> None:
    good = f"{row['held_accuracy']:7.2%} " if "held_accuracy" in row else ""
    print(
        f"{good}loss {row['held_loss']:.4f} train {row['train_loss']:.4f}  "
        f"{row['parameters']:>8,} parameters  {row['train_flops'] / 1e12:9.3f} TFLOPs (growth "
        f"{row['growth_flops'] / row['train_flops']:5.1%})  {row['epochs']:>3} epochs {row['seconds']:6.1f} s (growth "
        f"{row['growth_seconds']:5.1f})  seed {row['seed']}  {row['tried']}",
        flush=True,
    )


def list_done(out: Path, quick: bool, random: int) -> set[tuple[str, str, int]]:
    """Task, words and seed of the rows that are there, of smoke tests and random images only where these are meant."""
    rows = read_rows(out, under_way=True) if out.exists() else []
    made = [row for row in rows if [row["config"].get(key, 0) for key in ("quick", "random")] == [quick, random]]
    return {(row["task"], row["tried"], row["seed"]) for row in made}


def main() -> int:
    how = parse()
    shared = how.jobs > 1
    random = how.random or 512 * how.quick
    done = list_done(how.out, how.quick, random) if how.out else set()
    todo = [
        Job(TASKS[how.task], words, seed, how.quick, random, how.device, shared)
        for seed in how.seeds
        for words in dict.fromkeys(list_tries(how))
        if (how.task, words, seed) not in done
    ]

    def finish(job: Job, row: dict[str, Any]) -> None:
        show(row)
        if how.out:
            append(how.out, row)

    left, failed = run_jobs(todo, run_job, finish, how.jobs, how.minutes)
    if left or failed:
        print(f"{left} left, {failed} failed: the same command goes on")
    return 1 if failed else 0


if __name__ == "__main__":
    raise SystemExit(main())
