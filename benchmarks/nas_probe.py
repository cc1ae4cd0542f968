"""Does growing find the operation that is needed? One edge, and a task that only some of its operations can solve.

    python benchmarks/nas_probe.py --out results/nas-probe.jsonl         two or three minutes on a CPU

Images are noise; in one of two classes a pixel often equals the one `lag` pixels to its left. The network is a 1 x 1
convolution, one edge with the four operations of the search, and the mean over all pixels. A SepConv 3 x 3 reaches
pixels up to 4 apart, both 5 x 5 ones up to 8, and DilConvs see only pixels an even number apart. So at a lag of 3 the
SepConvs can help, at 8 the 5 x 5 ones, the other two cannot, and chance is one half. Told is the share of the new
channels that the able ones got, by the way in which the network was trained and grown.
"""

import argparse
from collections.abc import Callable
from functools import partial
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

import firefly
from firefly.experiments.rows import append
from firefly.method import Method
from firefly.nas.growing import choose
from firefly.nas.template import Operation, Rivals

ABLE = {3: ("sep_conv_3x3", "sep_conv_5x5"), 8: ("sep_conv_5x5", "dil_conv_5x5")}  # by the lag
WAYS: dict[str, dict[str, Any]] = {
    "awake": {"start": 2, "anneal": False, "worth": "neuron"},
    "awake, annealed": {"start": 2, "anneal": True, "worth": "neuron"},
    "awake, annealed, by operation": {"start": 2, "anneal": True, "worth": "operation"},
    "asleep": {"start": 0, "anneal": False, "worth": "neuron"},
    "asleep, annealed": {"start": 0, "anneal": True, "worth": "neuron"},
}
SIDE, BATCH, TRAINING = 16, 64, 15
Batch = tuple[Tensor, Tensor]


def draw(lag: int, generator: torch.Generator) -> Batch:
    """A batch: noise of -1 and 1, in class 1 with copies at the lag."""
    images = torch.randint(0, 2, (BATCH, 1, SIDE, SIDE), generator=generator).float() * 2 - 1
    labels = torch.arange(BATCH) % 2
    for column in range(lag, SIDE):
        copied = (torch.rand(BATCH, 1, SIDE, generator=generator) < 0.7) & (labels == 1)[:, None, None]
        images[..., column] = torch.where(copied, images[..., column - lag], images[..., column])
    return images, labels


class Probe(nn.Module):
    """One edge between a convolution and the mean."""

    def __init__(self, start: int, channels: int = 8) -> None:
        super().__init__()
        self.stem = nn.Conv2d(1, channels, 1)
        self.edge = Rivals(channels, 1, start)
        self.head = nn.Linear(channels, 2)

    def forward(self, images: Tensor) -> Tensor:
        state = self.stem(images)
        return self.head(self.edge(state, functional.relu(state)).mean((2, 3)))


def find_loss(model: nn.Module, batch: Batch) -> Tensor:
    return functional.cross_entropy(model(batch[0]), batch[1])


def train(model: nn.Module, batches: list[Batch], anneal: bool) -> torch.optim.Optimizer:
    """A few steps; their lengths fall to 0 if so asked."""
    optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
    for step, batch in enumerate(batches):
        optimizer.param_groups[0]["lr"] = 0.1 * (1 - step / len(batches)) if anneal else 0.1
        optimizer.zero_grad()
        find_loss(model, batch).backward()
        optimizer.step()
    return optimizer


def probe(lag: int, seed: int, start: int, anneal: bool, worth: str) -> dict[str, int]:
    """The channels that each operation got in one growth by eight."""
    torch.manual_seed(seed)
    generator = torch.Generator().manual_seed(seed)
    model, batches = Probe(start), [draw(lag, generator) for _ in range(60)]
    optimizer = train(model, batches[:TRAINING], anneal)
    names = [name for name, module in model.named_modules() if isinstance(module, Operation)]
    growth = firefly.grow(
        model,
        find_loss,
        batches,
        example=batches[0][0][:4],
        widths=names,
        neighborhood=[firefly.Split(1.0), firefly.New(8, epsilon=0.03)],
        budget=firefly.Neurons(8),
        optimizer=optimizer,
        evaluate_on=16,
        seed=seed,
        method=Method(select=partial(choose, worth=worth, gains={})),
    )
    return {name.rpartition(".")[2]: after - before for name, (before, after) in growth.widths.items()}


def measure(seeds: int, say: Callable[[str], None]) -> list[dict[str, Any]]:
    """A row per growth."""
    rows = []
    for way, how in WAYS.items():
        for lag, able in ABLE.items():
            for seed in range(seeds):
                got = probe(lag, seed, **how)
                share = sum(got[name] for name in able) / max(1, sum(got.values()))
                row = {"benchmark": "nas_probe", "way": way, "lag": lag, "seed": seed, "channels": got, "able": share}
                rows.append(row | {"config": how, "device": "cpu"})
                say(f"{way}, lag {lag}, seed {seed}: {share:.0%} to those that can help; {got}")
    return rows


def table(rows: list[dict[str, Any]]) -> str:
    lines = ["the share of new channels that operations got which can help (chance: 50 %)"]
    for way in dict.fromkeys(row["way"] for row in rows):
        shares = [100 * row["able"] for row in rows if row["way"] == way]
        error = stdev(shares) / len(shares) ** 0.5 if len(shares) > 1 else 0.0
        lines.append(
            f"{way:32}{fmean(shares):6.0f} ± {error:.0f} %   worst {min(shares):.0f} %   ({len(shares)} growths)"
        )
    return "\n".join(lines)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=6, help="so many of every kind (6)")
    parser.add_argument("--out", type=Path, help="append the rows to this file")
    args = parser.parse_args()
    found = measure(args.seeds, lambda text: print(text, flush=True))
    if args.out:
        append(args.out, *found)
    print(table(found))
