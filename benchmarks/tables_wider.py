"""The tables of growing wider (VGG-19, MobileNetV1) and of the headline, for `tables.py`."""

import math
from collections.abc import Callable
from itertools import pairwise

from tables_text import (
    EMPTY,
    BySeed,
    Row,
    by_seed,
    describe,
    describe_gap,
    is_clear,
    join,
    lay_out,
    list_gaps,
    mean,
    percent,
    read,
)

NAMES = {
    "firefly": "Firefly",
    "firefly-split": "splits only",
    "firefly-new": "new neurons only",
    "firefly-deeper": "wider and deeper",
    "both": "parameters and FLOPs limited",
    "gradmax": "GradMax",
    "random": "random",
    "nash": "NASH",
    "uniform": "uniform, all layers alike",
    "fast-splitting": "fast splitting",
    "splitting": "exact splitting",
    "net2net": "Net2Net",
    "full": "full network",
    "scratch": "Firefly's widths, from scratch",
}
WHOLE = ("full", "scratch")  # never grown
LONG = ["", "parameters", "MFLOPs", "epochs + growths", "accuracy", "seeds", "against the full network"]
FROM = {"wider-vgg19": 4, "wider-mobilenet": 1}  # the first step that a table shows
# batches that a growth goes through, forward and backward, where that is no setting (their defaults)
PASSES = {"gradmax": 2 * 10 * 8, "splitting": 20 * 8, "fast-splitting": 100, "uniform": 0, "net2net": 0, "random": 0}


def pick(name: str, method: str, final: bool) -> dict[int, BySeed]:
    """The rows of a method by step; `both` is Firefly with parameters and FLOPs limited."""
    budget = "both" if method == "both" else "parameters"
    own = "firefly" if method == "both" else method
    rows = [row for row in read(name) if (row["method"], row["final"]) == (own, final)]
    rows = [row for row in rows if row["config"].get("budget", "parameters") == budget]
    return {step: by_seed(row for row in rows if row["step"] == step) for step in sorted({row["step"] for row in rows})}


def list_steps(name: str) -> list[int]:
    return [step for step in pick(name, "firefly", False) if step >= FROM[name]]


def name_size(name: str, step: int) -> str:
    share = 100 * mean(pick(name, "firefly", False)[step].values(), "share")
    return f"{share:.2f} %" if share < 3 and name == "wider-vgg19" else f"{share:.1f} %"


def count_beside(method: str, rows: BySeed) -> str:
    """Epochs that one growth costs beside training: step one on over-grown networks, or the training of children."""
    epochs = find_beside(method, next(iter(rows.values())))
    return f"{epochs:.1f}" if epochs else "0"


def find_beside(method: str, row: Row, images: int = 50_000) -> float:
    config = row["config"]
    passes = PASSES.get(method, config["steps"])
    return float(row.get("search_epochs") or 2 * config["batch"] * passes / (config.get("images") or images))


def tabulate_rounds(name: str) -> str:
    """Accuracy at every size, FLOPs at the largest of them that is reported, and what a growth costs."""
    steps = list_steps(name)
    last = {"wider-vgg19": 7, "wider-mobilenet": 7}[name]
    lines = []
    for method, label in NAMES.items():
        found = pick(name, method, False)
        if not found:
            continue
        cells = [describe([percent(row) for row in found.get(step, {}).values()]) for step in steps]
        flops = f"{mean(found[last].values(), 'flops') / 1e6:.0f}"
        lines.append([label, str(len(found[last])), *cells, flops, count_beside(method, found[last])])
    heads = ["rounds of 10 epochs", "seeds", *(name_size(name, step) for step in steps)]
    return lay_out([*heads, f"MFLOPs at {name_size(name, last)}", "epochs in a growth"], lines)


def tabulate_seconds(name: str) -> str:
    """Seconds of one growth: of the same network, kernels compiled before; or the mean over the rounds."""
    clocked = {row["method"]: [row["growth_seconds"]] for row in read("growth-seconds") if row["experiment"] == name}
    took = clocked or {
        method: [
            row["growth_seconds"]
            for rows in pick(name, method, False).values()
            for row in rows.values()
            if not row.get("shared")
        ]
        for method in NAMES
    }
    found = {NAMES[method]: sum(values) / len(values) for method, values in took.items() if values}
    first = found["Firefly"]
    lines = [
        [label, f"{value:.1f}", f"{value / first:.1f}"]
        for label, value in sorted(found.items(), key=lambda one: one[1])
    ]
    return lay_out(["one growth", "seconds", "times Firefly's"], lines)


def tabulate_gaps(name: str) -> str:
    """Firefly against every other method, paired by seed."""
    steps, ours = list_steps(name), pick(name, "firefly", False)
    lines = []
    for method, label in NAMES.items():
        found = pick(name, method, False)
        if found and method != "firefly":
            gaps = [list_gaps(ours[step], found.get(step, {})) for step in steps]
            lines.append([f"against {label}", str(len(gaps[-1])), *(describe_gap(gap, 2) for gap in gaps)])
    return lay_out(["points, paired by seed", "seeds", *(name_size(name, step) for step in steps)], lines)


def tabulate_versus(name: str, method: str, other: str) -> str:
    """Two methods at the same parameters, with the FLOPs of each; and the first against the second at equal FLOPs."""
    one, two, steps = pick(name, method, False), pick(name, other, False), list_steps(name)
    flops = [[mean(rows[step].values(), "flops") / 1e6 for step in steps] for rows in (one, two)]
    lines = [
        ["points at equal parameters", *(describe_gap(list_gaps(one[step], two[step]), 2) for step in steps)],
        [f"MFLOPs, {NAMES[method]}", *(f"{value:.0f}" for value in flops[0])],
        [f"MFLOPs, {NAMES[other]}", *(f"{value:.0f}" for value in flops[1])],
        ["points at equal FLOPs", *(describe_gap(list_level_gaps(one[step], two), 2) for step in steps)],
    ]
    return lay_out([f"{NAMES[method]} against {NAMES[other]}", *(name_size(name, step) for step in steps)], lines)


def list_level_gaps(rows: BySeed, others: dict[int, BySeed]) -> list[float]:
    """Against the other's accuracy at as many FLOPs, between its sizes along the logarithm, seed by seed."""
    gaps = []
    for seed, row in sorted(rows.items()):
        points = sorted(
            (math.log(found[seed]["flops"]), percent(found[seed])) for found in others.values() if seed in found
        )
        for (low, worse), (high, better) in pairwise(points):
            place = math.log(row["flops"])
            if low <= place <= high:
                gaps.append(percent(row) - worse - (better - worse) * (place - low) / (high - low))
    return gaps


def claim(name: str) -> str:
    """Where Firefly is ahead or behind by more than two standard errors, in words."""
    steps, ours, lines = list_steps(name), pick(name, "firefly", False), []
    single = []
    for method, label in NAMES.items():
        found = pick(name, method, False)
        if not found or method == "firefly":
            continue
        gaps = {step: list_gaps(ours[step], found.get(step, {})) for step in steps}
        if max(map(len, gaps.values())) < 2:
            single.append(label)
            continue
        clear = {step: sum(gap) > 0 for step, gap in gaps.items() if is_clear(gap)}
        ahead = [name_size(name, step) for step, won in clear.items() if won]
        behind = [name_size(name, step) for step, won in clear.items() if not won]
        parts = [f"{word} at {join(sizes)}" for word, sizes in (("ahead", ahead), ("behind", behind)) if sizes]
        undecided = [name_size(name, step) for step in steps if step not in clear]
        parts += [f"undecided at {join(undecided)}"] if undecided and parts else []
        lines.append(f"- against {label}: {'; '.join(parts) or 'undecided at every size'}")
    lines += [f"- one seed, so no claim: {join(single)}"] if single else []
    return "\n".join(lines)


def tabulate_long(name: str) -> str:
    """Networks that were trained on, beside the full one; differences paired by seed."""
    full = next(iter(pick(name, "full", True).values()))
    lines = []
    for method in ("full", "firefly", "firefly-deeper", "scratch", "uniform"):
        for step, found in pick(name, method, True).items():
            beside = 0.0 if method in WHOLE else step * find_beside(method, next(iter(found.values())))
            lines.append(describe_long(NAMES[method], found, full, beside))
    return lay_out(LONG, lines)


def describe_long(label: str, found: BySeed, full: BySeed, beside: float) -> list[str]:
    share, flops = mean(found.values(), "share"), mean(found.values(), "flops")
    against = "" if found == full else describe_gap(list_gaps(found, full), 2)
    whole = mean(full.values(), "flops")
    mega = f"{flops / 1e6:.0f} ({100 * flops / whole:.0f} %)"
    part = "100 %" if share == 1 else f"{100 * share:.2f} %"
    epochs = f"{mean(found.values(), 'epochs'):.0f}" + (f" + {beside:.0f}" if beside else "")
    accuracy = describe([percent(row) for row in found.values()], 2)
    return [label, part, mega, epochs, accuracy, str(len(found)), against]


def tabulate_headline() -> str:
    """Each network at the best of the same six settings, chosen on images set apart; test images."""
    rows = [row for row in read("headline") if not row["config"]["quick"]]
    tested = [row for row in rows if "test_accuracy" in row]
    if not tested:
        return EMPTY
    labels = {"full": "full network", "wider-4": "Firefly", "wider-6": "Firefly"}
    labels |= {"deeper-4": "wider and deeper", "uniform-4": "uniform widths"}
    full = by_seed(row for row in tested if row["method"] == "full")
    lines = []
    for network, label in labels.items():
        found = by_seed(row for row in tested if row["method"] == network)
        if found:
            row = next(iter(found.values()))
            beside = 0.0 if network in ("full", "uniform-4") else len(row["growths"]) * 98 * 512 / 50_000
            setting = f"{row['config']['batch']}, {row['config']['lr']:g}"
            lines.append([*describe_long(label, found, full, beside), setting])
    return lay_out([*LONG, "batch, rate"], lines)


def tabulate_grid() -> str:
    """The trials on images set apart from which the headline's settings come."""
    rows = [row for row in read("headline") if "held_accuracy" in row and not row["config"]["quick"]]
    settings = sorted({(row["config"]["batch"], row["config"]["lr"]) for row in rows})
    lines = []
    for network in dict.fromkeys(row["method"] for row in rows):
        mine: list[Row] = [row for row in rows if row["method"] == network]
        found = {
            one: [percent(r) for r in mine if (r["config"]["batch"], r["config"]["lr"]) == one] for one in settings
        }
        lines.append([network, *(describe(found[one], 2) for one in settings)])
    return lay_out(["", *(f"{batch}, {lr:g}" for batch, lr in settings)], lines) if rows else EMPTY


def tell_accuracy(name: str, method: str, step: str, long: str = "") -> str:
    """One number: `accuracy wider-vgg19 firefly 7 long`."""
    return describe([percent(row) for row in pick(name, method, bool(long))[int(step)].values()], 2 if long else 1)


def tell_gap(name: str, method: str, other: str, step: str, long: str = "") -> str:
    """One difference, paired by seed: `gap wider-vgg19 firefly uniform 7`."""
    one, two = (pick(name, which, bool(long)) for which in (method, other))
    against = two.get(int(step)) or next(iter(two.values()))
    return describe_gap(list_gaps(one[int(step)], against), 2 if long else 1)


def tell_share(name: str, method: str, step: str, key: str) -> str:
    """Of the full network, in per cent: `share wider-vgg19 firefly 7 flops`."""
    own, full = pick(name, method, True)[int(step)], next(iter(pick(name, "full", True).values()))
    return f"{100 * mean(own.values(), key) / mean(full.values(), key):.0f} %"


def tell_splits(name: str, method: str) -> str:
    """How many of the neurons that a method added were splits, in per cent."""
    growths = [row["growth"] for rows in pick(name, method, False).values() for row in rows.values()]
    split, new = (sum(growth[kind] for growth in growths) for kind in ("split", "new"))
    return f"{100 * split / (split + new):.0f} %"


PIECES: dict[str, Callable[..., str]] = {
    "rounds": tabulate_rounds,
    "gaps": tabulate_gaps,
    "seconds": tabulate_seconds,
    "versus": tabulate_versus,
    "claims": claim,
    "long": tabulate_long,
    "headline": tabulate_headline,
    "headline-grid": tabulate_grid,
    "accuracy": tell_accuracy,
    "gap": tell_gap,
    "share": tell_share,
    "splits": tell_splits,
}
