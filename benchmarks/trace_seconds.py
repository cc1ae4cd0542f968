"""Seconds in which `trace` finds the widths of a large model: CPU time of one thread, three models.

    python benchmarks/trace_seconds.py --out results/trace-seconds.jsonl
    python benchmarks/trace_seconds.py --models vgg19 --profile          (where the time goes)

`search` is a network as cell search grows it (Sec. 3.3 of the paper, and DARTS): five cells, each with 14 edges, each
edge with four operations. Every operation ends in a convolution with neurons of its own, a ReLU, and a linear
transform that reads them: 280 widths. Not counted, but told as `loading_seconds`: what torch imports at the first
export of a process.
"""

import argparse
import cProfile
import pstats
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import firefly
from firefly.experiments.rows import append
from firefly.vision import models

OPERATIONS = ((3, 1), (5, 1), (3, 2), (5, 2))  # kernel, dilation: two separable and two dilated convolutions


def operation(channels: int, hidden: int, kernel: int, dilation: int) -> nn.Module:
    """A depthwise convolution, then one that makes the operation's own neurons, then the transform that reads them."""
    padding = dilation * (kernel - 1) // 2
    return nn.Sequential(
        nn.ReLU(),
        nn.Conv2d(channels, channels, kernel, padding=padding, dilation=dilation, groups=channels, bias=False),
        nn.Conv2d(channels, hidden, 1, bias=False),
        nn.BatchNorm2d(hidden),
        nn.ReLU(),
        nn.Conv2d(hidden, channels, 1, bias=False),
    )


class Cell(nn.Module):
    """Four nodes; each is the sum over all nodes before it of four operations, weighed by a softmax."""

    def __init__(self, channels: int, hidden: int) -> None:
        super().__init__()
        self.before = nn.Conv2d(4 * channels, channels, 1)
        self.last = nn.Conv2d(4 * channels, channels, 1)
        self.edges = nn.ModuleList(
            nn.ModuleList(operation(channels, hidden, *kind) for kind in OPERATIONS) for _ in range(14)
        )
        self.alphas = nn.Parameter(torch.zeros(14, len(OPERATIONS)))

    def forward(self, before: Tensor, last: Tensor) -> Tensor:
        nodes = [self.before(before), self.last(last)]
        edges = zip(self.edges, self.alphas.softmax(-1))
        for _ in range(4):
            mixed = []
            for node, (operations, weights) in zip(list(nodes), edges):
                mixed.append(sum(weight * run(node) for weight, run in zip(weights, operations)))
            nodes.append(sum(mixed))  # type: ignore[arg-type]
        return torch.cat(nodes[2:], 1)


class Search(nn.Module):
    def __init__(self, cells: int = 5, channels: int = 8, hidden: int = 4, classes: int = 10) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 4 * channels, 3, padding=1)
        self.cells = nn.ModuleList(Cell(channels, hidden) for _ in range(cells))
        self.head = nn.Linear(4 * channels, classes)

    def forward(self, x: Tensor) -> Tensor:
        before = last = self.stem(x)
        for cell in self.cells:
            before, last = last, cell(before, last)
        out: Tensor = self.head(last.mean((2, 3)))
        return out


def make_gpt2() -> tuple[nn.Module, Any]:
    from transformers import GPT2Config, GPT2LMHeadModel

    return GPT2LMHeadModel(GPT2Config()).eval(), {"input_ids": torch.randint(0, 50257, (2, 16))}


MODELS: dict[str, Callable[[], tuple[nn.Module, Any]]] = {
    "vgg19": lambda: (models.vgg19(widths="full"), torch.randn(2, 3, 32, 32)),
    "search": lambda: (Search(), torch.randn(2, 3, 16, 16)),
    "gpt2": make_gpt2,
}


def measure(name: str, profile: bool = False) -> dict[str, Any]:
    torch.manual_seed(0)
    model, example = MODELS[name]()
    profiler = cProfile.Profile()
    start = time.process_time()
    anatomy = profiler.runcall(firefly.trace, model, example) if profile else firefly.trace(model, example)
    seconds = time.process_time() - start
    if profile:
        pstats.Stats(profiler).sort_stats("cumulative").print_stats(40)
    return {
        "benchmark": "trace_seconds",
        "model": name,
        "parameters": anatomy.parameters(),
        "widths": len(anatomy),
        "growable": len(anatomy.growable()),
        "seconds": round(seconds, 2),
        "device": "cpu, one thread",
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--models", nargs="+", choices=list(MODELS), default=list(MODELS))
    parser.add_argument("--out", type=Path, help="a file to append the rows to")
    parser.add_argument("--profile", action="store_true")
    options = parser.parse_args()
    torch.set_num_threads(1)
    start = time.process_time()
    firefly.trace(nn.Sequential(nn.Linear(2, 3), nn.Linear(3, 2)), torch.randn(2, 2))
    loading = round(time.process_time() - start, 2)
    for name in options.models:
        row = measure(name, options.profile) | {"loading_seconds": loading}
        print(row)
        if options.out:
            append(options.out, row)


if __name__ == "__main__":
    main()
