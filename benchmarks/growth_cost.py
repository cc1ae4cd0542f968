"""What one growth costs: seconds, plain training epochs, and peak memory, over sizes up to a 100 M-parameter GPT.

Each case runs in a process of its own, so that its peak memory is its own: first plain training steps, then one whole
growth (trace, step one, scores, commit), then the step of the over-grown network alone. An epoch is `--epoch` steps.

    python benchmarks/growth_cost.py                      all cases, one thread, several minutes
    python benchmarks/growth_cost.py --cases vgg-split    one of them
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import firefly
from firefly.experiments.rows import append
from firefly.neighborhood.overgrown import OverGrown
from firefly.stages.step_one import Steps, descend


class Block(nn.Module):
    """A GPT-style block: causal attention and an MLP, each behind a layer norm."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.q, self.k, self.v = (nn.Linear(width, width) for _ in range(3))
        self.out = nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        batch, time, _ = x.shape
        h = self.norm1(x)
        q, k, v = (f(h).view(batch, time, self.heads, -1).transpose(1, 2) for f in (self.q, self.k, self.v))
        attended = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(attended.transpose(1, 2).reshape(batch, time, -1))
        return x + self.down(F.gelu(self.up(self.norm2(x))))


class GPT(nn.Module):
    def __init__(self, width: int, depth: int, heads: int, vocabulary: int) -> None:
        super().__init__()
        self.embed, self.place = nn.Embedding(vocabulary, width), nn.Embedding(128, width)
        self.blocks = nn.ModuleList(Block(width, heads) for _ in range(depth))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, vocabulary, bias=False)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embed(tokens) + self.place(torch.arange(tokens.shape[1], device=tokens.device))
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


def vgg(*widths: int) -> nn.Sequential:
    layers: list[nn.Module] = []
    channels = 3
    for k, width in enumerate(widths):
        layers += [nn.Conv2d(channels, width, 3, padding=1, bias=False), nn.BatchNorm2d(width), nn.ReLU()]
        layers += [nn.MaxPool2d(2)] if k % 2 else []
        channels = width
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, 10))


def images(batch: int) -> tuple[Tensor, Tensor]:
    return torch.randn(batch, 3, 32, 32), torch.randint(0, 10, (batch,))


def tokens(batch: int, time: int = 64) -> tuple[Tensor, Tensor]:
    x = torch.randint(0, 1000, (batch, time))
    return x, x


def loss(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
    return F.cross_entropy(model(batch[0]).flatten(0, -2), batch[1].flatten())


SPLIT, BOTH = (firefly.Split(),), (firefly.Split(), firefly.New(16))
CASES: dict[str, tuple[Callable[[], nn.Module], Callable[[], Any], tuple[Any, ...]]] = {
    "vgg-split": (lambda: vgg(32, 32, 64, 64, 128, 128), lambda: images(128), SPLIT),
    "vgg-both": (lambda: vgg(32, 32, 64, 64, 128, 128), lambda: images(128), BOTH),
    "mlp": (
        lambda: nn.Sequential(nn.Linear(784, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10)),
        lambda: (torch.randn(128, 784), torch.randint(0, 10, (128,))),
        BOTH,
    ),
    "gpt-1m": (lambda: GPT(128, 4, 4, 1000), lambda: tokens(2), BOTH),
    "gpt-8m": (lambda: GPT(320, 6, 5, 1000), lambda: tokens(2), BOTH),
    "gpt-30m": (lambda: GPT(576, 7, 9, 1000), lambda: tokens(2), BOTH),
    "gpt-100m": (lambda: GPT(896, 10, 14, 1000), lambda: tokens(2), BOTH),
}


def peak() -> float:
    """Peak resident memory so far, MiB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def seconds(work: Callable[[], Any], repeats: int) -> float:
    work()
    found = []
    for _ in range(repeats):
        start = time.process_time()
        work()
        found.append(time.process_time() - start)
    return statistics.median(found)


def measure(name: str, stage: str, epoch: int, steps: int) -> dict[str, Any]:
    """One stage of one case: a plain step, an over-grown step, or a whole growth."""
    make, draw, neighborhood = CASES[name]
    torch.manual_seed(0)
    model, batch = make(), draw()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-4)

    def plain() -> None:
        optimizer.zero_grad()
        loss(model, batch).backward()
        optimizer.step()

    example = batch[0][:2]
    plain()
    idle = peak()
    if stage == "plain":
        return {"plain_s": seconds(plain, 3), "plain_mib": peak()}
    if stage == "step":
        anatomy = firefly.trace(model, example)
        names = [width.name for width in anatomy.growable()]
        over = OverGrown(model, anatomy, names, neighborhood, torch.Generator().manual_seed(0))
        five = Steps(5, 1e-3, lambda *_: None)
        return {"step_s": seconds(lambda: descend(over, loss, [batch], five), 2) / 5, "step_mib": peak()}
    start = time.process_time()
    options: dict[str, Any] = {"neighborhood": neighborhood, "budget": firefly.Neurons(fraction=0.05)}
    growth = firefly.grow(model, loss, [batch] * 8, example=example, optimizer=optimizer, steps=steps, **options)
    took = time.process_time() - start
    row = {"growth_s": took, "growth_mib": peak(), "idle_mib": idle, "parameters": growth.parameters[0]}
    return {**row, "stages": {key: round(value, 2) for key, value in growth.seconds.items()}}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", nargs="+", choices=list(CASES), default=list(CASES))
    parser.add_argument("--epoch", type=int, default=390, help="plain steps in an epoch")
    parser.add_argument("--steps", type=int, default=100, help="steps of step one")
    parser.add_argument("--out", help="append JSON lines to this file")
    parser.add_argument("--stage", help=argparse.SUPPRESS)
    args = parser.parse_args()
    torch.set_num_threads(1)
    if args.stage:
        print(json.dumps(measure(args.cases[0], args.stage, args.epoch, args.steps)))
        return
    heads = f"{'plain step':>10} {'over-grown':>10} {'growth':>8} {'epochs':>6}   peak memory"
    print(f"{'case':10} {'parameters':>11} {heads}")
    for name in args.cases:
        row: dict[str, Any] = {"experiment": "growth-cost", "case": name, "steps": args.steps, "epoch": args.epoch}
        for stage in ("plain", "step", "growth"):
            command = [sys.executable, __file__, "--cases", name, "--stage", stage, "--steps", str(args.steps)]
            done = subprocess.run(command, capture_output=True, text=True, check=True, env={**os.environ})
            row |= json.loads(done.stdout.strip().splitlines()[-1])
        row |= {"device": platform.processor() or platform.machine(), "torch": torch.__version__}
        print(
            f"{name:10} {row['parameters']:11,} {row['plain_s']:8.3f} s {row['step_s'] / row['plain_s']:9.2f}x "
            f"{row['growth_s']:6.1f} s {row['growth_s'] / row['plain_s'] / args.epoch:6.2f}   "
            f"{row['plain_mib']:.0f} MiB plain, {row['step_mib']:.0f} step, {row['growth_mib']:.0f} growth",
            flush=True,
        )
        if args.out:
            append(Path(args.out), row)


if __name__ == "__main__":
    main()
