"""Attack Firefly: interrupt it, kill it, hand it altered files; nothing may be torn, lost, or fail without words.

    python benchmarks/campaign.py                                           (a quarter of an hour on one core)
    python benchmarks/campaign.py --only interrupts=60 --only kills=10      (a smoke test)

Each attack runs in a process of its own and gives one line of results/campaign.jsonl.
"""

import argparse
import importlib
import json
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict
from importlib import metadata
from pathlib import Path
from typing import Any

import torch

from firefly.experiments.rows import append

ATTACKS = {"interrupts": 500, "kills": 200, "checkpoints": 300, "archives": 100}  # of `attacks`, and how often each
KINDS = {"changed": "models changed", "lost": "runs lost", "raw": "raw exceptions"}


def attack(name: str, count: int, seed: int) -> dict[str, Any]:
    """One line of the results."""
    torch.set_num_threads(1)
    begun = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        tally = importlib.import_module(f"attacks.{name}").attack(count, Path(folder), seed)
    return {
        "benchmark": "campaign",
        "attack": name,
        **asdict(tally),
        "seed": seed,
        "seconds": round(time.perf_counter() - begun, 1),
        "firefly": metadata.version("firefly-descent"),
        "torch": torch.__version__,
    }


def run_attack(name: str, count: int, seed: int) -> dict[str, Any]:
    """The same in a process of its own, which an interrupt may abort; that is a run lost."""
    command = [sys.executable, __file__, "--attack", f"{name}={count}", "--seed", str(seed)]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True)
    if done.returncode:
        return {
            "attack": name,
            "tried": count,
            "changed": 0,
            "lost": 1,
            "raw": 0,
            "notes": [f"died: {done.returncode}"],
        }
    row: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return row


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", action="append", metavar="ATTACK=COUNT", help=f"of {', '.join(ATTACKS)}")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, help="append the lines here, such as results/campaign.jsonl")
    parser.add_argument("--attack", metavar="ATTACK=COUNT", help="in this process; prints its line")
    options = parser.parse_args()
    if options.attack:
        name, _, count = options.attack.partition("=")
        print(json.dumps(attack(name, int(count), options.seed)))
        return
    chosen = dict(one.split("=") for one in options.only) if options.only else ATTACKS
    rows = []
    for name, count in chosen.items():
        rows.append(run_attack(name, int(count), options.seed))
        told = ", ".join(f"{rows[-1][kind]} {words}" for kind, words in KINDS.items())
        print(f"{rows[-1]['tried']} {name}: {told}", *rows[-1]["notes"], sep="\n    ", flush=True)
    if options.out:
        append(options.out, *rows)
    print(", ".join(f"{sum(row[kind] for row in rows)} {words}" for kind, words in KINDS.items()))


if __name__ == "__main__":
    main()
