"""The tables of cell search, for `tables.py`."""

from collections.abc import Callable

import nas_noise
import nas_probe
from tables_text import EMPTY, describe, lay_out, read

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
    rows = read("nas-noise")
    heads = ["trained", "epochs of step one", "the winner has the most", "same weights: kappa", "correlation"]
    lines = [line for line in nas_noise.tabulate(rows) if line[2] != "summed gain"]  # no better than these
    return lay_out([*heads, "other weights: kappa", "correlation"], lines) if rows else EMPTY


PIECES: dict[str, Callable[..., str]] = {"nas-probe": tabulate_probe, "nas-noise": tabulate_noise}
