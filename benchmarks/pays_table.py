"""The rows of `growth_pays.py` as a table: means over seeds, and differences paired by seed with their standard error.

python benchmarks/pays_table.py results/growth-pays.jsonl resnet20-cifar10 --against "short epochs=30"
python benchmarks/pays_table.py results/growth-pays.jsonl resnet-fashion --against "fixed epochs=8" --with lr=0.01
"""

import argparse
import json
import math
import statistics
from pathlib import Path
from typing import Any

Rows = dict[int, dict[str, Any]]  # by seed


def gather(path: Path, task: str, words: list[str]) -> dict[str, Rows]:
    """The rows of a task whose recipes hold all these words, which are left out of their names."""
    found: dict[str, Rows] = {}
    for line in path.read_text().splitlines():
        row = json.loads(line)
        told = row["tried"].split()
        if row["task"] == task and set(words) <= set(told):
            found.setdefault(" ".join(word for word in told if word not in words), {})[row["seed"]] = row
    return found


def compare(rows: Rows, base: Rows) -> str:
    """The mean difference of accuracy in points, paired by seed, and its standard error."""
    both = sorted(rows.keys() & base.keys())
    gaps = [100 * (rows[seed]["held_accuracy"] - base[seed]["held_accuracy"]) for seed in both]
    if rows is base or not gaps:
        return ""
    error = f" ± {statistics.stdev(gaps) / math.sqrt(len(gaps)):.2f}" if len(gaps) > 1 else ""
    return f"{statistics.mean(gaps):+.2f}{error}"


def mean(rows: Rows, key: str) -> float:
    return statistics.mean(row[key] for row in rows.values())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("rows", type=Path)
    parser.add_argument("task")
    parser.add_argument("--against", default="short", help="what the others are compared with")
    parser.add_argument("--with", dest="words", nargs="+", default=[], help="words that the recipes have in common")
    parser.add_argument("--without", nargs="+", default=[], help="words that no recipe has")
    how = parser.parse_args()
    found = gather(how.rows, how.task, how.words)
    found = {name: rows for name, rows in found.items() if not set(how.without) & set(name.split())}
    print(
        f"| | accuracy | against {how.against} | loss | training loss | TFLOPs | growing | seeds |\n" + "|---" * 8 + "|"
    )
    for name, rows in sorted(found.items(), key=lambda item: -mean(item[1], "held_accuracy")):
        flops, growing = mean(rows, "train_flops"), mean(rows, "growth_flops")
        print(
            f"| {name} | {mean(rows, 'held_accuracy'):.2%} | {compare(rows, found.get(how.against, {}))} "
            f"| {mean(rows, 'held_loss'):.4f} | {mean(rows, 'train_loss'):.4f} | {flops / 1e12:.3g} "
            f"| {growing / flops:.0%} | {len(rows)} |"
        )


if __name__ == "__main__":
    main()
