"""Which models grow, for `tables.py`: the rows of `zoo_sweep.py` by package, and why neurons are pinned."""

import statistics
from collections import Counter
from collections.abc import Callable, Sequence

from tables_text import EMPTY, Row, lay_out, read

OUTCOMES = ("grew", "zero gains", "nothing free", "too slow", "export failed", "does not run", "wrong")
LOOKED_AT = ("grew", "zero gains")  # traced, grown and checked to the end


def tabulate_zoo() -> str:
    """Outcomes and the share of free neurons by package."""
    rows = read("zoo")
    if not rows:
        return EMPTY
    packages = sorted({row["package"] for row in rows})
    groups = {name: [row for row in rows if row["package"] == name] for name in packages} | {"all": list(rows)}
    shown = [one for one in OUTCOMES if one in ("grew", "wrong") or any(row["outcome"] == one for row in rows)]
    lines = []
    for name, mine in groups.items():
        counts = Counter(row["outcome"] for row in mine)
        lines.append([name, str(len(mine)), *(str(counts[one]) for one in shown), *describe(mine)])
    return lay_out(["", "models", *shown, "free neurons", "trace, median"], lines)


def tell_grown() -> str:
    """How many of how many grew."""
    rows = read("zoo")
    return f"{sum(row['outcome'] == 'grew' for row in rows)} of {len(rows)}"


def describe(rows: Sequence[Row]) -> list[str]:
    """The share of their neurons that may grow, and how long finding them takes."""
    grown = [row for row in rows if row["outcome"] in LOOKED_AT]
    free, all_of_them = (sum(row[key] for row in grown) for key in ("free_neurons", "neurons"))
    seconds = [row["trace_seconds"] for row in rows if "trace_seconds" in row]
    return [f"{free / max(all_of_them, 1):.1%}", f"{statistics.median(seconds):.1f} s"]


def tabulate_pinned(most: str = "10") -> str:
    """The most frequent reasons, by neurons."""
    rows = read("zoo")
    neurons, models = Counter[str](), Counter[str]()
    for row in rows:
        kinds = Counter[str]()
        for reason, count in row.get("pinned", {}).items():
            kinds[shorten(reason)] += count
        neurons.update(kinds)
        models.update(kinds.keys())
    total = sum(row.get("neurons", 0) for row in rows)
    lines = [[reason, f"{n / total:.2%}", str(models[reason])] for reason, n in neurons.most_common(int(most))]
    return lay_out(["pinned, since", "neurons", "models"], lines)


def shorten(reason: str) -> str:
    """Without the names of layers and buffers."""
    words = reason.split()
    if "normalises" in words and "in" in words:
        return " ".join([*words[: words.index("in")], "normalises over it"])
    return "a buffer has an entry for each neuron" if reason.startswith("the buffer") else reason


def list_others() -> str:
    """Those that did not grow, with the reason."""
    found = [row for row in read("zoo") if row["outcome"] != "grew"]
    lines = [f"- {row['package']} {row['model']}: {row['outcome']}. {tell(row)}".rstrip() for row in found]
    return "\n".join(lines) or "None."


def tell(row: Row) -> str:
    return row.get("note", "").partition(". ")[0][:160]


PIECES: dict[str, Callable[..., str]] = {
    "zoo": tabulate_zoo,
    "zoo-grew": tell_grown,
    "zoo-pinned": tabulate_pinned,
    "zoo-others": list_others,
}
