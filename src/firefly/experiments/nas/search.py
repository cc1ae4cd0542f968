"""The searches of an experiment: each is kept in the folder of its seed and plan, told, drawn and compared."""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from hashlib import sha256
from pathlib import Path
from shutil import rmtree
from typing import Any

from firefly.errors import FireflyError
from firefly.experiments.options import read_rows
from firefly.experiments.rows import Row, append, hardware
from firefly.experiments.setting import Place
from firefly.nas.agreement import measure_agreement
from firefly.nas.drawing import draw_genotype, draw_growth
from firefly.nas.plan import Plan
from firefly.nas.searching import Searched, read_search, search, write_search
from firefly.nas.winners import find_winners, list_rivals, make_genotype, merge
from firefly.vision.data import Images

SMALL = (4, 8, 8, 8, 8)
PLANS = {
    "quick": Plan(
        SMALL, (2,) * 5, (2,) * 5, nodes=2, sweeps=1, every=1, step_one=1.0, score_on=1, batch=32, images=512
    ),
    "middle": Plan(),
}

Found = list[tuple[Path, Searched]]


def run_search(plan: Plan, data: Images, dataset: str, seed: int, place: Place, more: dict[str, Any]) -> bool:
    """One search, unless it has been done; False if time ran out. Its file comes last: where it is, all is."""
    path = place.folder / f"search-{name_plan(plan, dataset)}{seed}.json"
    folder = path.with_suffix("")
    if path.exists():
        place.say(f"{path} is there: seed {seed} has been searched")
        rmtree(folder, ignore_errors=True)
        return True
    if time.monotonic() > place.deadline:
        return False
    found = search(
        data, plan, folder=folder, seed=seed, deadline=place.deadline, device=place.device, progress=False, **more
    )
    if found is None:
        return False
    found = replace(found, dataset=dataset)
    draw(found, path)
    note(make_row(found, dataset, place), place.results)
    write_search(found, path)
    place.say(tell(found, path))
    rmtree(folder, ignore_errors=True)
    return True


def name_plan(plan: Plan, dataset: str) -> str:
    """Nothing for the plain plan on the usual images, else what tells it from others."""
    images = "" if dataset in ("cifar10", "digits") else f"{dataset}-"
    if plan == PLANS["middle"]:
        return images
    return f"{images}{sha256(json.dumps(plan.to_dict()).encode()).hexdigest()[:6]}-"


def note(row: Row, results: Path) -> None:
    """Write the row of a search, unless it was written before a kill."""
    keys = ("dataset", "seed", "config", "widths", "gains")
    if not any(all(old.get(key) == row[key] for key in keys) for old in read_rows(results)):
        append(results, row)


def draw(found: Searched, path: Path) -> None:
    """The cells and the growth of every operation, beside the search."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.with_name(f"{path.stem}-cells.svg").write_text(draw_genotype(found.genotype), encoding="utf-8")
    path.with_name(f"{path.stem}-growth.svg").write_text(draw_growth(found), encoding="utf-8")
    if found.genotype.text:
        path.with_name(f"{path.stem}.txt").write_text(f"{found.genotype}\n", encoding="utf-8")


def make_row(found: Searched, dataset: str, place: Place) -> Row:
    return {
        "experiment": "nas",
        "method": "search",
        "dataset": dataset,
        "seed": found.seed,
        "final": False,
        "parameters": found.parameters,
        "growing_accuracy": found.accuracy,
        "epochs": found.plan.epochs,
        "train_seconds": found.seconds["training"],
        "growth_seconds": found.seconds["growing"],
        "search_seconds": round(sum(found.seconds.values()), 1),
        "device": hardware(place.device),
        **({"shared": True} if place.shared else {}),
        "widths": found.growths[-1]["widths"],
        "gains": [growth["gains"] for growth in found.growths],
        "genotype": found.genotype.to_dict(),
        "config": found.plan.to_dict(),
    }


def tell(found: Searched, path: Path) -> str:
    """A search in a few lines: its time, the winners, what grew."""
    rivals = list_rivals(found.growths, found.plan)
    wins = Counter(won.operation for won in find_winners(rivals, found.plan).values())
    grown: dict[str, list[float]] = {}
    for mine in rivals.values():
        for one in mine:
            grown.setdefault(one.name, []).append(one.width - one.start)
    mean = ", ".join(f"{name} +{sum(more) / len(more):.1f}" for name, more in grown.items())
    kinds = [sum(growth[kind] for growth in found.growths) for kind in ("split", "new")]
    accuracy = "" if found.accuracy is None else f", {found.accuracy:.1%} right on the images grown on"
    return (
        f"seed {found.seed}: {sum(found.seconds.values()):.0f} s ({found.seconds['growing']:.0f} of them growing), "
        f"{found.parameters:,} parameters{accuracy}; {kinds[0]} splits and {kinds[1]} new neurons\n"
        f"  channels grown, mean per edge: {mean}\n"
        f"  edges won: {', '.join(f'{name} {count}' for name, count in wins.most_common())}\n"
        f"  {path}, beside it the genotype as text, its cells and their growth as pictures"
    )


def find_searches(where: Path | Sequence[Path], plan: Plan | None = None) -> Found:
    """Those in a folder, or those named; only those of a plan, if one is given."""
    paths = sorted(where.glob("search-*.json")) if isinstance(where, Path) else list(where)
    found = [(path, read_search(path)) for path in paths]
    return [(path, one) for path, one in found if plan is None or one.plan == plan]


def tell_agreement(found: Found) -> str:
    """The agreement of searches, those of each plan and data set by themselves."""
    several = [ones for ones in line_up(found) if len(ones) > 1]
    if not several:
        raise FireflyError(f"{len(found)} searches, no two seeds of one plan: search with --seeds 0 1 2 first")
    told = []
    for ones in several:
        plan = ones[0].plan
        result = measure_agreement([list_rivals(one.growths, plan) for one in ones], plan)
        seeds = ", ".join(str(one.seed) for one in ones)
        told.append(f"{ones[0].dataset or 'searches'}, seeds {seeds}{differ(plan)}: {result}")
    return "\n".join(told)


def line_up(found: Found) -> list[list[Searched]]:
    """Searches that differ in nothing but their seed, side by side; one of each seed."""
    alike: dict[str, dict[int, Searched]] = {}
    for _, one in found:
        alike.setdefault(json.dumps([one.dataset, one.plan.to_dict()]), {})[one.seed] = one
    return [list(ones.values()) for ones in alike.values()]


def merge_searches(found: Found, path: Path) -> str:
    """The cells of all searches of one plan together, as a genotype's file."""
    several = line_up(found)
    if len(several) != 1:
        raise FireflyError(f"--merge with {len(found)} searches: name searches of one plan and data set")
    if path.match("search-*.json"):
        raise FireflyError(f"--merge {path}: files of this name are whole searches; take another, such as merged.json")
    (ones,) = several
    plan = ones[0].plan
    together = merge([list_rivals(one.growths, plan) for one in ones])
    genotype = make_genotype(
        find_winners(together, plan), plan, "-".join([plan.title, *(str(one.seed) for one in ones)])
    )
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(genotype.to_dict()), encoding="utf-8")
    return f"{path}: the cells of {len(ones)} searches together\n{genotype.text}"


def differ(plan: Plan) -> str:
    """What is special about a plan."""
    usual = Plan().to_dict()
    special = [f"{key}={value}" for key, value in plan.to_dict().items() if value != usual[key]]
    return f" ({', '.join(special)})" if special else ""
