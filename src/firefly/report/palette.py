"""One label and one colour for each method and each series, in every figure and on every page.

Colours are those of Okabe and Ito, which people with any colour vision can tell apart, and darker or lighter kin of
them where there are more methods than those; on dark paper they are lighter.
"""

from collections.abc import Iterable

LABELS = {
    "firefly": "Firefly",
    "firefly-split": "Firefly (split only)",
    "firefly-new": "Firefly (new only)",
    "firefly-deeper": "Firefly (wider and deeper)",
    "firefly-1-new": "Firefly (m' = 1)",
    "firefly-2-new": "Firefly (m' = 2)",
    "firefly-10-new": "Firefly (m' = 10)",
    "firefly-unlock": "Firefly (unlock only)",
    "firefly-mask": "Firefly (picked by mask)",
    "firefly-all": "Firefly (all picked)",
    "firefly-none": "Firefly (none picked)",
    "firefly-deaf": "Firefly (new ones unheard)",
    "firefly-random": "Firefly (chosen at random)",
    "splitting": "Splitting (exact)",
    "fast-splitting": "Splitting (fast)",
    "net2net": "Net2Net",
    "nash": "NASH",
    "race": "Firefly (best kind of three)",
    "autogrow": "AutoGrow",
    "uniform": "uniform",
    "random": "random",
    "random-search": "RandSearch (split+new)",
    "random-search-split": "RandSearch (split)",
    "gradmax": "GradMax",
    "scratch": "Firefly's widths from scratch",
    "fixed": "fixed 12-12-12-12",
    "full": "full network",
    "start": "start",
    "individual": "a network per task",
    "equal": "a network per task, equal size",
    "last": "each from the last, equal size",
    "frozen": "frozen after the first task",
    "cpg": "CPG (prune, pick, grow)",
    "ewc": "EWC",
    "fine-tune": "fine-tuning",
    "joint": "all tasks at once",
    "firefly-asleep": "Firefly (asleep at first)",
    "firefly-operation": "Firefly (by operation)",
    "permuted": "the same, permuted",
    "plain": "SepConv and identity",
    "darts": "DARTS (second order)",
    "search": "search",
}
FRONT = "#D55E00"  # Firefly, and the series a page is about
COLOURS = {
    "firefly": FRONT,
    "firefly-split": "#E69F00",
    "firefly-new": "#8C3B00",
    "firefly-deeper": "#B8860B",
    "firefly-1-new": "#F2A65A",
    "firefly-2-new": "#A65E2E",
    "firefly-10-new": "#5C2A00",
    "firefly-unlock": "#F0B27A",
    "firefly-mask": "#C2185B",
    "firefly-all": "#7A1F3D",
    "firefly-none": "#D98880",
    "firefly-deaf": "#7D6608",
    "firefly-random": "#A9A9A9",
    "splitting": "#0072B2",
    "fast-splitting": "#56B4E9",
    "net2net": "#009E73",
    "nash": "#CC79A7",
    "race": "#D4A017",
    "autogrow": "#7B4B94",
    "uniform": "#5F7D2E",
    "random": "#999999",
    "random-search": "#00695C",
    "random-search-split": "#4DB6AC",
    "gradmax": "#3F51B5",
    "scratch": "#444444",
    "fixed": "#222222",
    "full": "#000000",
    "start": "#666666",
    "individual": "#111111",
    "equal": "#555555",
    "last": "#8D8D8D",
    "frozen": "#2E86C1",
    "cpg": "#B03A8C",
    "ewc": "#1B4F9C",
    "fine-tune": "#00A087",
    "joint": "#6A3D9A",
    "firefly-asleep": "#C99700",
    "firefly-operation": "#7A3E12",
    "permuted": "#4FA3C7",
    "plain": "#6B8E23",
    "darts": "#005A8C",
    "search": "#7F7F7F",
}
OTHERS = ("#0072B2", "#009E73", "#CC79A7", "#56B4E9", "#E69F00", "#7B4B94", "#999999")
ON_DARK = ("#5BB4F0", "#3CCBA0", "#E59CC6", "#8FD0F5", "#F0BC4A", "#B48AD0", "#B5B5B5")  # the same, lighter
FRONT_ON_DARK = "#FF8B3D"


def name_method(method: str) -> str:
    """What a method is called in tables and figures; an unknown one as it is written."""
    return LABELS.get(method, method)


def find_colour(method: str) -> str:
    """The colour of a method; an unknown one has the same in every figure, too."""
    return COLOURS.get(method) or OTHERS[sum(map(ord, method)) % len(OTHERS)]


def number_series(names: Iterable[str]) -> dict[str, int]:
    """The place of each series of a page among its colours, the first in front; the same in all of its pictures."""
    known = enumerate(dict.fromkeys(names))
    return {name: 1 + (number - 1) % len(OTHERS) if number else 0 for number, name in known}
