"""The tables of growing deeper, of the toy, of costs, and of where rows come from, for `tables.py`."""

import json
import statistics
from collections.abc import Callable

from tables_text import EMPTY, RESULTS, BySeed, by_seed, describe, describe_gap, lay_out, list_gaps, mean, percent, read
from tables_wider import NAMES, find_beside

DEEPER = {
    "firefly": "Firefly, here",
    "scratch": "the network it found, from scratch",
    "nash": "NASH, here",
    "autogrow": "AutoGrow, here",
    "fixed": "fixed 12-12-12-12",
}
PUBLISHED = {  # the paper's Table 3: accuracy and size
    "mnist": {"Firefly": ("99.59", "1.9 M"), "NASH": ("99.50", "2.0 M"), "AutoGrow": ("99.57", "2.3 M")},
    "fashion-mnist": {"Firefly": ("94.48", "2.1 M"), "NASH": ("94.34", "2.2 M"), "AutoGrow": ("94.47", "2.3 M")},
}


def pick_deeper(dataset: str, method: str) -> BySeed:
    rows = read(f"deeper-{dataset}")
    return by_seed(row for row in rows if (row["method"], row["final"]) == (method, True))


def tabulate_deeper(dataset: str) -> str:
    """Accuracy, the difference to Firefly paired by seed, size, FLOPs and epochs, and what was published."""
    ours = pick_deeper(dataset, "firefly")
    if not ours:
        return EMPTY
    lines = []
    for method, label in DEEPER.items():
        found = pick_deeper(dataset, method)
        if found:
            gap = "" if method == "firefly" else describe_gap(list_gaps(found, ours), 2)
            size, flops = (mean(found.values(), key) / 1e6 for key in ("parameters", "flops"))
            cells = [describe([percent(row) for row in found.values()], 2), gap, f"{size:.2g} M", f"{flops:.0f}"]
            epochs = f"{mean(found.values(), 'epochs'):.0f}{count_growths(dataset, method, len(found))}"
            lines.append([label, *cells, epochs, str(len(found))])
    for method, (accuracy, size) in PUBLISHED.get(dataset, {}).items():
        lines.append([f"{method}, published", accuracy, "", size, "", "", ""])
    return lay_out(["", "accuracy", "against Firefly", "parameters", "MFLOPs", "epochs + growths", "seeds"], lines)


def count_growths(dataset: str, method: str, seeds: int) -> str:
    """Epochs of step one, or of children, over all growths of a network."""
    rows = [row for row in read(f"deeper-{dataset}") if row["method"] == method and not row["final"]]
    total = sum(find_beside(method, row, 60_000) for row in rows) / seeds
    return f" + {total:.0f}" if total else ""


def tabulate_toy() -> str:
    """Losses over the truths at a few sizes, and on how many of them Firefly is ahead."""
    rows = read("toy")
    lines = []
    for neurons in (4, 6, 8, 10, 12):
        own = {row["seed"]: row["loss"] for row in rows if (row["method"], row["neurons"]) == ("firefly", neurons)}
        cells = []
        for method in ("firefly", "random-search", "scratch", "firefly-split"):
            found = {row["seed"]: row["loss"] for row in rows if (row["method"], row["neurons"]) == (method, neurons)}
            won = sum(own[seed] < loss for seed, loss in found.items())
            ahead = "" if method == "firefly" else f" ({won})"
            cells.append(f"{statistics.fmean(found.values()):.2g}, {statistics.median(found.values()):.1g}{ahead}")
        lines.append([str(neurons), *cells])
    heads = ["neurons", "Firefly", "random search, new neurons too", "from scratch", "Firefly, splits only"]
    return lay_out(heads, lines)


def tabulate_cost() -> str:
    """One growth with its settings, against plain training steps of the same network."""
    lines = []
    for row in read("growth-cost"):
        steps = f"{row['growth_s'] / row['plain_s'] / row['epoch']:.1f}"
        whole, times = row["growth_mib"] / row["plain_mib"], row["step_s"] / row["plain_s"]
        size = f"{row['parameters']:,}"
        lines.append([row["case"], size, f"{row['growth_s']:.0f}", steps, f"{times:.1f}", f"{whole:.1f}"])
    heads = ["network", "parameters", "seconds", "in epochs of 390 steps", "an over-grown step, in plain ones"]
    return lay_out([*heads, "memory of the process, times"], lines)


def tabulate_speed() -> str:
    """Seconds an epoch of `fit`."""
    lines = [
        [row["model"], row["variant"], f"{row['seconds_per_epoch']:.2f}", str(row["batch"]), row["device"]]
        for row in read("training-speed")
    ]
    return lay_out(["network", "how", "seconds an epoch", "batch", "device"], lines)


def tabulate_gromo() -> str:
    """One growth of an MLP by 16 neurons, medians over seeds."""
    rows = read("versus-gromo")

    def middle(key: str) -> float:
        return statistics.median(row[key] for row in rows)

    lines = [
        [name, f"{middle(took):.1f} epochs", f"{middle('before'):.3f} → {middle(after):.3f}"]
        for name, took, after in (("Firefly", "firefly", "firefly_after"), ("gromo", "gromo", "gromo_after"))
    ]
    epoch = f"{1000 * middle('epoch'):.0f} ms"
    return lay_out([f"{len(rows)} seeds; an epoch takes {epoch}", "one growth", "loss"], lines)


def count_trials() -> str:
    """Settings that each method was tried with on images set apart, before the test images."""
    lines = []
    for name, label in (("wider-vgg19", "VGG-19"), ("wider-mobilenet", "MobileNetV1")):
        rows = [*read(f"{name}-held-out"), *(read("mobilenet-small-held-out") if "mobile" in name else ())]
        tried: dict[str, set[str]] = {}
        for row in rows:
            config = {key: value for key, value in row["config"].items() if key not in ("sizes", "long", "long_lr")}
            tried.setdefault(row["method"], set()).add(json.dumps(config, sort_keys=True))
        tested = dict.fromkeys(row["method"] for row in read(name) if row["method"] not in ("start", "full", "scratch"))
        for method in tested:
            lines.append([label, NAMES[method], str(len(tried.get(method, ())))])
    return lay_out(["network", "method", "settings tried on images set apart"], lines)


def list_origins() -> str:
    """The files whose rows do not say what code they were made with; all others do."""
    lines = []
    for path in sorted(RESULTS.glob("*.jsonl")):
        rows = read(path.stem)
        bare = [row for row in rows if "versions" not in row]
        if bare:
            torch = sorted({str(row["torch"]) for row in bare if "torch" in row})
            lines.append([f"`{path.name}`", f"{len(bare)} of {len(rows)}", ", ".join(torch)])
    return lay_out(["file", "rows without versions", "torch, where they say it"], lines)


def tabulate_gpt() -> str:
    """Held-out loss, the difference to the grown network paired by seed, size and training cost."""
    rows = read("gpt")
    methods = list(dict.fromkeys(row["method"] for row in rows))
    grown = by_seed(row for row in rows if row["method"] == "grown")
    lines = []
    for method in methods:
        found = by_seed(row for row in rows if row["method"] == method)
        losses = {seed: row["held_out_loss"] for seed, row in found.items()}
        gap = "" if method == "grown" else describe_gap(list_gaps(found, grown, lambda row: row["held_out_loss"]), 3)
        size, cost = mean(found.values(), "parameters") / 1e3, mean(found.values(), "teraflops")
        cells = [describe(list(losses.values()), 3), gap, f"{size:.0f} k", f"{cost:.2f}"]
        lines.append([method, *cells, f"{mean(found.values(), 'steps'):.0f}", str(len(found))])
    heads = ["", "held-out loss", "against grown", "parameters", "TFLOPs of training", "steps", "seeds"]
    return lay_out(heads, lines) if lines else EMPTY


def compare_gpt() -> str:
    """The held-out loss of the sizes that growth found against equal ones, both from scratch for as many steps."""
    found, even = (
        by_seed(row for row in read("gpt") if row["method"] == method)
        for method in ("the sizes found, from scratch", "equal layers")
    )
    return describe_gap(list_gaps(found, even, lambda row: row["held_out_loss"]), 3) or EMPTY


PIECES: dict[str, Callable[..., str]] = {
    "deeper": tabulate_deeper,
    "toy": tabulate_toy,
    "cost": tabulate_cost,
    "speed": tabulate_speed,
    "gromo": tabulate_gromo,
    "trials": count_trials,
    "origins": list_origins,
    "gpt": tabulate_gpt,
    "gpt-sizes": compare_gpt,
}
