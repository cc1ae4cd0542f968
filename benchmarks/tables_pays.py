"""The tables of growth that pays, as an accelerator and as a finder, for `tables.py`."""

import statistics
from collections.abc import Callable

from tables_text import (
    EMPTY,
    BySeed,
    Row,
    by_seed,
    describe,
    describe_gap,
    is_clear,
    lay_out,
    list_gaps,
    mean,
    percent,
    read,
)

# ---- as an accelerator -----------------------------------------------------------------------------------------------

RESNET = {  # what was tried: what it is called
    "fixed epochs=30": "fixed, all 30 epochs",
    "short epochs=30": "short: fixed, as many FLOPs as the grown ones",
    "uniform epochs=30 kinds=new": "uniform, new neurons with zero columns",
    "firefly epochs=30 kinds=new": "Firefly, new neurons",
    "firefly epochs=30": "Firefly, both kinds",
    "firefly epochs=30 kinds=split": "Firefly, splits",
    "gradmax epochs=30": "GradMax",
    "variance-transfer epochs=30": "variance transfer",
    "thrown-away epochs=30": "all weights thrown away at the last growth",
    "net2net epochs=30": "Net2Net",
}
CHANGES = {  # what was changed about Firefly's growth
    "firefly epochs=30 hold=1": "the rate held until the last growth",
    "firefly epochs=30 after=rescale:0.5": "weights rescaled to the new fan-in",
    "firefly epochs=30 after=forget:0": "momentum begun anew",
    "firefly epochs=30 warmup=1": "a warm-up after each growth",
    "firefly epochs=30 age=3": "newborn entries learn three times as fast",
    "firefly epochs=30 grow_at=0.1,0.2,0.3": "growing earlier",
    "firefly epochs=30 after=renorm:1": "weights in front of norms back at their first size",
}


def find_tried(task: str, words: str) -> BySeed:
    return by_seed(row for row in read_measured() if (row["task"], row["tried"]) == (task, words))


def read_measured() -> list[Row]:
    """Without smoke tests and random images, each network once."""
    rows = [row for row in read("growth-pays") if "random" not in row["config"]]
    return list({(row["task"], row["tried"], row["seed"]): row for row in rows}.values())


def tabulate_pays(task: str, names: dict[str, str], base: str) -> str:
    """Means, the difference to `base` paired by seed, training FLOPs and how much of them is growing."""
    against = find_tried(task, base)
    lines = []
    for words, label in names.items():
        found = find_tried(task, words)
        if not found:
            continue
        rows, flops = list(found.values()), mean(found.values(), "train_flops")
        gap = "" if found == against else describe_gap(list_gaps(found, against), 2)
        share = f"{100 * mean(rows, 'growth_flops') / flops:.0f} %"
        epochs = f"{mean(rows, 'epochs'):.0f}"
        cells = [describe([percent(row) for row in rows], 2), gap, f"{flops / 1e12:.3g}", share, epochs, str(len(rows))]
        lines.append([label, *cells])
    heads = [
        "",
        "accuracy",
        f"against {names.get(base, base).partition(':')[0]}",
        "TFLOPs",
        "of them growing",
        "epochs",
    ]
    return lay_out([*heads, "seeds"], lines)


def tabulate_resnet() -> str:
    return tabulate_pays("resnet20-cifar10", RESNET, "short epochs=30")


def tabulate_changes() -> str:
    names = {"firefly epochs=30": "as it is", **CHANGES}
    return tabulate_pays("resnet20-cifar10", names, "firefly epochs=30")


def tabulate_rates(task: str) -> str:
    """The best recipe of each method at every rate: what a claim at one rate is worth."""
    rows = [row for row in read_measured() if row["task"] == task]
    rates, whole = sorted({row["config"]["lr"] for row in rows}), max(row["config"]["epochs"] for row in rows)

    def name(row: Row) -> str:
        fewer = row["method"] == "fixed" and row["config"]["epochs"] < whole
        return f"fixed, {row['config']['epochs']} epochs instead of {whole}" if fewer else str(row["method"])

    lines = []
    for method in sorted(dict.fromkeys(map(name, rows)), key=lambda one: not one.startswith("fixed")):
        cells = []
        for rate in rates:
            tries: dict[str, BySeed] = {}
            for row in rows:
                if (name(row), row["config"]["lr"]) == (method, rate):
                    tries.setdefault(row["tried"], {})[row["seed"]] = row
            means = [statistics.fmean(map(percent, found.values())) for found in tries.values() if len(found) > 1]
            cells.append(f"{max(means):.2f} ({len(means)})" if means else "")
        lines.append([method, *cells])
    return lay_out(["best mean accuracy (recipes tried)", *(f"rate {rate:g}" for rate in rates)], lines)


def count_recipes() -> str:
    """How many recipes each task saw."""
    rows = read_measured()
    lines = []
    for task in dict.fromkeys(row["task"] for row in rows):
        mine = [row for row in rows if row["task"] == task]
        seeds = len({row["seed"] for row in mine})
        lines.append([task, str(len({row["tried"] for row in mine})), str(seeds), str(len(mine))])
    return lay_out(["task", "recipes", "seeds", "networks"], lines)


# ---- as a finder -----------------------------------------------------------------------------------------------------

WAYS = {
    "full": "the full network",
    "scaled": "the full network's widths scaled",
    "uniform": "equal widths",
    "longer": "the same, longer by what a finding costs",
    "random": "random search over widths",
    "slimming": "network slimming",
    "taylor": "Taylor pruning",
    "magnitude": "magnitude pruning",
    "find-on": "Firefly, trained on",
    "find-anew": "Firefly's widths, drawn anew",
}


def score(row: Row) -> float:
    """Accuracy in per cent; of text the loss, with its sign turned so that more is better."""
    where = "test" if "test_loss" in row else "held"
    return 100 * row[f"{where}_accuracy"] if f"{where}_accuracy" in row else -row[f"{where}_loss"]


def list_found(task: str) -> dict[str, BySeed]:
    """The rows by what was tried: on the test set, if any are; of several lengths of the last training the longest."""
    rows = [row for row in read("find-pays") if row["task"] == task and not row["config"]["quick"]]
    rows = [row for row in rows if "test_loss" in row] or rows
    longest = max((row["config"]["epochs"] for row in rows), default=0)
    rows = [row for row in rows if row["config"]["epochs"] == longest and row["method"] != "full-l1"]
    return {
        words: by_seed(row for row in rows if row["tried"] == words) for words in dict.fromkeys(map(say_tried, rows))
    }


def say_tried(row: Row) -> str:
    return str(row["tried"])


def find_best(found: dict[str, BySeed], limit: str) -> str | None:
    """The best of the others under a limit, by its mean; who is limited in both is so in parameters."""
    fits = [words for words in found if say_limit(words) == limit or limit == "parameters"]
    rivals = [words for words in fits if not words.startswith(("find", "full"))]
    return max(rivals, key=lambda words: statistics.fmean(map(score, found[words].values())), default=None)


def say_limit(words: str) -> str:
    if words.startswith("full"):
        return ""
    return "parameters" if "limit=parameters" in words.split() else "both"


def tabulate_find(task: str) -> str:
    """Every way to a network of this size, what it cost in all, and the difference to Firefly's finder trained on."""
    found = list_found(task)
    if not found:
        return EMPTY
    order = {way: number for number, way in enumerate(WAYS)}
    lines = []
    for words, rows in sorted(found.items(), key=lambda one: (say_limit(one[0]), order[one[0].split()[0]])):
        values, digits = [abs(score(row)) for row in rows.values()], count_digits(rows)
        ours = next((found[w] for w in found if w.startswith("find-on") and say_limit(w) == say_limit(words)), {})
        gap = "" if words.startswith("find-on") else describe_gap(list_gaps(rows, ours, score), digits)
        flops, all_of_it = mean(rows.values(), "flops"), mean(rows.values(), "train_flops")
        spent = f"{100 * mean(rows.values(), 'finding_flops') / all_of_it:.0f} %"
        epochs = " + ".join(map(str, next(iter(rows.values()))["epochs"]))
        name = WAYS[words.split()[0]]
        size = [f"{mean(rows.values(), 'parameters') / 1e3:,.0f} k", f"{flops / 1e6:.1f}"]
        lines.append(
            [
                name,
                say_limit(words),
                *size,
                describe(values, digits),
                gap,
                f"{all_of_it / 1e12:.3g}",
                spent,
                shorten(epochs),
                str(len(rows)),
            ]
        )
    heads = [
        "",
        "limited",
        "parameters",
        "MFLOPs",
        "accuracy" if digits == 2 else "loss",
        "against Firefly, trained on",
    ]
    return lay_out([*heads, "TFLOPs in all", "of them before the last training", "epochs", "seeds"], lines)


def count_digits(rows: BySeed) -> int:
    """After the point: of a loss more than of per cent."""
    return 3 if score(next(iter(rows.values()))) < 0 else 2


def shorten(epochs: str) -> str:
    """Many single epochs as their number."""
    parts = epochs.split(" + ")
    return epochs if len(parts) < 4 else f"{len(parts) - 1} x 1 + {parts[-1]}"


def claim_find(task: str) -> str:
    """Against the best of the others: is it ahead, and at what share of pruning's cost?"""
    found = list_found(task)
    lines = []
    for words, rows in found.items():
        best = find_best(found, say_limit(words)) if words.startswith("find") else None
        if best is None:
            continue
        gaps = list_gaps(rows, found[best], score)
        verdict = (
            ("ahead of" if statistics.fmean(gaps) > 0 else "behind") if is_clear(gaps) else "not clearly apart from"
        )
        cost = mean(rows.values(), "train_flops") / mean(found[best].values(), "train_flops")
        limit = "parameters" if say_limit(words) == "parameters" else "parameters and FLOPs"
        lines.append(
            f"- {WAYS[words.split()[0]]}, {limit} limited: {verdict} the best of the others, "
            f"{WAYS[best.split()[0]]} ({describe_gap(gaps, count_digits(rows))}), "
            f"for {100 * cost:.0f} % of its training FLOPs"
        )
    return "\n".join(lines) or EMPTY


PIECES: dict[str, Callable[..., str]] = {
    "pays-resnet20": tabulate_resnet,
    "pays-changes": tabulate_changes,
    "pays-rates": tabulate_rates,
    "pays-recipes": count_recipes,
    "find": tabulate_find,
    "find-claims": claim_find,
}
