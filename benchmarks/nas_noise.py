"""Is what a growth says of operations noise? The same growth again on the same weights, and on those of other seeds.

    python benchmarks/nas_noise.py --out results/nas-noise.jsonl        measure: most of an hour of a CPU core
    python benchmarks/nas_noise.py --ways "asleep, 24 new candidates" --seeds 0 1 2 3 4 5 6 7 --out more.jsonl
    python benchmarks/nas_noise.py --read results/nas-noise.jsonl       the table of what was measured

A small template learns digits of the package. Then all of its operations are over-grown together and scored on training
images that were set apart, twice, each time from other directions and on other images; nothing is grown. If two growths
of the *same weights* disagree, scores are noise. If they agree and those of *other weights* do not, then what wins is
decided by what the weights have become so far, and no better score helps. Chance is shuffled edges (`agreement.py`).
"""

import argparse
import json
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import combinations, product
from pathlib import Path
from typing import Any

import torch

import firefly
from firefly.anatomy.widths import Anatomy
from firefly.experiments.rows import append
from firefly.method import Method
from firefly.nas.agreement import mean, measure_agreement, measure_growth
from firefly.nas.growing import draw_looks, trace_plain
from firefly.nas.plan import Plan
from firefly.nas.searching import make_loss
from firefly.nas.template import Template, list_operations
from firefly.nas.winners import Edge, Rival, merge, read_path
from firefly.stages.selection import Ballot, Chosen, select
from firefly.training import fit
from firefly.training.resident import upload
from firefly.vision import digits
from firefly.vision.data import Images, hold_out

PLAN = Plan((4, 8, 8, 8, 8), (2,) * 5, (2,) * 5, nodes=2, batch=64, score_on=3)
WAYS: dict[str, dict[str, Any]] = {  # how the template was trained; how long each step one is, in epochs; candidates
    "annealed": {"epochs": 5, "anneal": True, "asleep": False, "step_one": [1, 4]},
    "asleep": {"epochs": 5, "anneal": True, "asleep": True, "step_one": [1]},
    **{
        f"asleep, {new} new candidates": {"epochs": 5, "anneal": True, "asleep": True, "step_one": [2], "new": new}
        for new in (2, 8, 24)
    },
    "annealed, 24 new candidates": {"epochs": 5, "anneal": True, "asleep": False, "step_one": [2], "new": 24},
    "hardly trained": {"epochs": 1, "anneal": True, "asleep": False, "step_one": [1]},
    "constant rate": {"epochs": 5, "anneal": False, "asleep": False, "step_one": [1]},
    **{
        f"annealed, {name}": {"epochs": 5, "anneal": True, "asleep": False, "step_one": [1], "plan": plan}
        for name, plan in {
            "scored on 8 batches": {"score_on": 8},
            "a larger rate": {"score_on": 8, "rate": 0.2},
            "larger new neurons": {"score_on": 8, "fresh": 0.3},
            "both": {"score_on": 8, "rate": 0.2, "fresh": 0.3},
        }.items()
    },
}
WORTHS = ("neuron", "operation")
Row = dict[str, Any]
CPU = torch.device("cpu")


def load() -> tuple[Images, Images]:
    """Digits: a half for the weights, a half for growing; no test images."""
    images, labels, _, _ = digits.load()
    whole = Images((images * 255).round().to(torch.uint8), labels, 10, "mnist")
    return hold_out(whole, len(whole) // 2)


def train(how: dict[str, Any], images: Images, seed: int) -> Template:
    torch.manual_seed(seed)
    start = (0,) * 5 if how["asleep"] else PLAN.start
    model = Template(PLAN.channels, start, 10, PLAN.nodes, 1, dense=True)
    schedule = "cosine" if how["anneal"] else "constant"
    kept = {"batch": PLAN.batch, "lr": PLAN.lr, "weight_decay": PLAN.weight_decay, "loss": make_loss(CPU)}
    fit(model, images, how["epochs"], schedule=schedule, augment=False, seed=seed, device=CPU, progress=False, **kept)
    return model


def score(model: Template, anatomy: Anatomy, growing: Images, how: Row, step_one: int, seed: int) -> Row:
    """The gain of every candidate of every operation, from one step one."""
    told: Row = {}
    plan = replace(PLAN, **how.get("plan", {}))

    def listen(ballot: Ballot) -> Chosen:
        told["gains"] = {name: [float(f"{one:.3g}") for one in gain.tolist()] for name, gain in ballot.gains.items()}
        return select(ballot)

    looks = draw_looks(upload(growing, CPU), plan, seed, 0)
    growth = firefly.grow(
        model,
        make_loss(CPU),
        looks.batches,
        held=looks.held,
        example=looks.batches[0][0][:4],
        anatomy=anatomy,
        neighborhood=[firefly.Split(plan.split), firefly.New(how.get("new", 2), epsilon=plan.fresh)],
        widths=[path for path, _, _ in list_operations(model)],
        steps=step_one * len(looks.batches),
        lr=plan.rate,
        evaluate_on=len(looks.held),
        seed=seed,
        method=Method(select=listen),
        preview=True,
    )
    told["losses"] = [round(one, 4) for one in (growth.loss_before, growth.loss_overgrown)]
    return told | {"step_one": step_one, "shortened": growth.shortened}


def measure(ways: Sequence[str], seeds: Sequence[int], out: Path | None, say: Callable[[str], None]) -> None:
    fitting, growing = load()
    for way in ways:
        how, anatomy = WAYS[way], None
        for seed in seeds:
            start = time.process_time()
            model = train(how, fitting, seed)
            anatomy = anatomy or trace_plain(model, upload(growing, CPU).images[:2].permute(0, 3, 1, 2).float())
            for step_one, again in product(how["step_one"], range(2)):
                row = {"benchmark": "nas_noise", "way": way, "weights": seed, "again": again}
                row |= score(model, anatomy, growing, how, step_one, 100 * again + seed)
                row |= {"config": how, "device": "cpu"}
                if out:
                    append(out, row)
            say(f"{way}, weights {seed}: {row['losses']}, {time.process_time() - start:.0f} s")


# ---- what was measured -----------------------------------------------------------------------------------------------


def list_rivals(row: Row, worth: str) -> dict[Edge, list[Rival]]:
    """The channels that each operation would get if a quarter of its cell's candidates were kept, as in a search."""
    keys: dict[int, list[tuple[float, str]]] = {}
    totals = {path: sum(max(0.0, gain) for gain in gains) for path, gains in row["gains"].items()}
    for path, gains in row["gains"].items():
        base = totals[path] if worth == "operation" else 0.0
        ranked = [((1e-3 * gain if base else gain) + base, path) for gain in gains if gain > 0]
        keys.setdefault(read_path(path).cell, []).extend(ranked)
    counts = Counter[str]()
    for cell, ranked in keys.items():
        candidates = sum(len(gains) for path, gains in row["gains"].items() if read_path(path).cell == cell)
        counts.update(path for _, path in sorted(ranked, reverse=True)[: round(PLAN.keep * candidates)])
    found: dict[Edge, list[Rival]] = {}
    for path, total in totals.items():
        place, start = read_path(path), 0 if row["config"]["asleep"] else PLAN.start[0]
        one = Rival(place.operation, start, start + counts[path], total)
        found.setdefault((place.cell, place.node, place.source), []).append(one)
    return found


def compare(rows: Sequence[Row], worth: str, decide: str) -> list[float]:
    """Kappa of winners and the correlation of widths: the same weights twice, then pairs of other weights."""
    plan, told = replace(PLAN, decide=decide), []
    found = {(row["weights"], row["again"]): list_rivals(row, worth) for row in rows}
    seeds = sorted({weights for weights, _ in found})
    same = [(found[seed, 0], found[seed, 1]) for seed in seeds]
    other = [(found[one, k], found[two, k]) for one, two in combinations(seeds, 2) for k in (0, 1)]
    for pairs in (same, other):
        results = [measure_agreement(pair, plan, shuffles=0) for pair in pairs]
        told += [mean([one.kappa for one in results]), mean([one.width for one in results])]
    return told


def group(rows: Sequence[Row], worth: str) -> dict[int, list[dict[Edge, list[Rival]]]]:
    """The growths of each weights."""
    found: dict[int, list[dict[Edge, list[Rival]]]] = {}
    for row in rows:
        found.setdefault(row["weights"], []).append(list_rivals(row, worth))
    return found


def compare_merged(rows: Sequence[Row], worth: str, count: int) -> tuple[float, float]:
    """Kappa and correlation of so many weights taken together, and as many others; the mean over all such pairs."""
    found = group(rows, worth)
    together = combinations(found, count)
    groups = {some: merge([one for weights in some for one in found[weights]]) for some in together}
    pairs = [(one, two) for one, two in combinations(groups, 2) if not set(one) & set(two)]
    results = [measure_agreement([groups[one], groups[two]], PLAN, shuffles=0) for one, two in pairs]
    return mean([one.kappa for one in results]), mean([one.width for one in results])


def tabulate_merged(rows: Sequence[Row], counts: Sequence[int] = (1, 2, 4)) -> list[list[str]]:
    """A line for each number of weights that are taken together."""
    told = [[compare_merged(rows, worth, count) for worth in WORTHS] for count in counts]
    return [[str(count), *(show(one) for pair in line for one in pair)] for count, line in zip(counts, told)]


def tabulate_kinds(rows: Sequence[Row], worth: str = "neuron") -> dict[str, tuple[float, float]]:
    """Of every operation the channels that it gets in a growth, on the mean of all edges: over weights, ± its error."""
    found = group(rows, worth)
    grown = measure_growth([merge(mine) for mine in found.values()])
    times = max(map(len, found.values()))  # so many growths are added up
    return {name: (value / times, error / times) for name, (value, error) in grown.items()}


def show(number: float) -> str:
    return f"{number:.2f}".replace("-", "−")


def tabulate(rows: Sequence[Row]) -> list[list[str]]:
    """A line for each way, length of step one and ranking."""
    lines = []
    for way, steps in dict.fromkeys((row["way"], row["step_one"]) for row in rows):
        mine = [row for row in rows if (row["way"], row["step_one"]) == (way, steps)]
        for worth, decide in [*((worth, "width") for worth in WORTHS), ("neuron", "gain")]:
            told = [show(one) for one in compare(mine, worth, decide)]
            lines.append([way, str(steps), "summed gain" if decide == "gain" else f"channels, by {worth}", *told])
    return lines


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, help="append the rows to this file")
    parser.add_argument("--read", type=Path, help="measure nothing, read this file")
    parser.add_argument("--ways", nargs="+", default=list(WAYS), choices=WAYS)
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2], help="the weights of every way (0 1 2)")
    args = parser.parse_args()
    torch.set_num_threads(1)
    if args.read is None:
        measure(args.ways, args.seeds, args.out, lambda text: print(text, flush=True))
    elif args.read.exists():
        for line in tabulate([json.loads(text) for text in args.read.read_text().splitlines()]):
            print("".join(f"{cell:<28}" if k in (0, 2) else f"{cell:^8}" for k, cell in enumerate(line)))
