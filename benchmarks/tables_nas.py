"""The tables of cell search, for `tables.py`."""

from collections.abc import Callable

import nas_noise
import nas_probe
from tables_text import EMPTY, Row, describe, lay_out, read

HOW = ("able ones get, %", "worst, %", "growths")


def tabulate_probe() -> str:
    """The share of new channels that went to the operations which can help."""
    lines = []
    for way in nas_probe.WAYS:
        shares = [100 * row["able"] for row in read("nas-probe") if row["way"] == way]
        if shares:
            lines.append([way, describe(shares, 0), f"{min(shares):.0f}", str(len(shares))])
    return lay_out(["operations begin", *HOW], lines) if lines else EMPTY


def tabulate_noise() -> str:
    """Do two growths of the same weights agree, and those of other weights?"""
    rows = read_noise()
    heads = ["trained", "epochs of step one", "the winner has the most", "same weights: kappa", "correlation"]
    lines = [line for line in nas_noise.tabulate(rows) if line[2] != "summed gain"]  # no better than these
    return lay_out([*heads, "other weights: kappa", "correlation"], lines) if rows else EMPTY


def read_noise(way: str = "") -> list[Row]:
    """The growths that were made twice, of all ways or of one."""
    return [row for row in (*read("nas-noise"), *read("nas-noise-candidates")) if way in ("", row["way"])]


def tabulate_merged(*way: str) -> str:
    """Does it help to take several weights together?"""
    heads = ["by neuron: kappa", "correlation", "by operation: kappa", "correlation"]
    return lay_out(["weights taken together", *heads], nas_noise.tabulate_merged(read_noise(" ".join(way))))


def tabulate_kinds(*way: str) -> str:
    """The channels that operations of a kind get, wherever they stand."""
    kinds = nas_noise.tabulate_kinds(read_noise(" ".join(way)))
    return lay_out(list(kinds), [[f"{value:.1f} ± {error:.1f}" for value, error in kinds.values()]])


PIECES: dict[str, Callable[..., str]] = {
    "nas-probe": tabulate_probe,
    "nas-noise": tabulate_noise,
    "nas-noise-merged": tabulate_merged,
    "nas-noise-kinds": tabulate_kinds,
}
