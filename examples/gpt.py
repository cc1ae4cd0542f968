"""Grow a small GPT on text that ships with the package: its own source code, character by character.

    python examples/gpt.py                  about a minute on a laptop: grown, and fixed sizes beside it
    python examples/gpt.py --seeds 3 --out results/gpt.jsonl

The network is a plain GPT with narrow hidden layers and one head per block; the residual stream keeps its width. It
grows three times. Beside it are trained: the network that it began as, one of its final size with equal layers, for as
many steps and for as many FLOPs, and the sizes that growth found, from scratch.
"""

import argparse
import copy
import json
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.flop_counter import FlopCounterMode

import firefly

CONTEXT, BATCH, WIDTH, HEAD, BLOCKS = 32, 32, 48, 12, 3


class Attention(nn.Module):
    def __init__(self, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(WIDTH, 3 * heads * HEAD)
        self.out = nn.Linear(heads * HEAD, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        b, t, _ = x.shape
        q, k, v = (z.view(b, t, self.heads, HEAD).transpose(1, 2) for z in self.qkv(x).chunk(3, -1))
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.out(mixed.transpose(1, 2).reshape(b, t, -1))


class Block(nn.Module):
    def __init__(self, heads: int, hidden: int) -> None:
        super().__init__()
        self.norm1, self.norm2, self.attention = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH), Attention(heads)
        self.mlp = nn.Sequential(nn.Linear(WIDTH, hidden), nn.GELU(), nn.Linear(hidden, WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.norm1(x))
        return x + self.mlp(self.norm2(x))


class GPT(nn.Module):
    def __init__(self, letters: int, heads: int = 1, hidden: int = 12) -> None:
        super().__init__()
        self.tokens, self.places = nn.Embedding(letters, WIDTH), nn.Parameter(torch.randn(CONTEXT, WIDTH) / 50)
        self.blocks = nn.Sequential(*(Block(heads, hidden) for _ in range(BLOCKS)))
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, letters)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.head(self.norm(self.blocks(self.tokens(x) + self.places[: x.shape[1]])))
        return out


# ---- text ------------------------------------------------------------------------------------------------------------


def read_text() -> tuple[Tensor, Tensor, int]:
    """The package's source as numbers of letters: for training, held out, and how many letters there are."""
    files = sorted(Path(firefly.__file__).parent.rglob("*.py"))
    texts = ["".join(c for c in file.read_text(encoding="utf-8") if c.isascii()) for file in files]
    letters = {letter: number for number, letter in enumerate(sorted(set("".join(texts))))}
    train, held = ([text for k, text in enumerate(texts) if (k % 10 == 5) == out] for out in (False, True))
    codes = [torch.tensor([letters[letter] for letter in "".join(some)]) for some in (train, held)]
    return codes[0], codes[1], len(letters)


def draw(text: Tensor, count: int, seed: int) -> list[Tensor]:
    """So many batches: pieces of the text, one letter longer than the context."""
    generator = torch.Generator().manual_seed(seed)
    starts = torch.randint(len(text) - CONTEXT - 1, (count, BATCH, 1), generator=generator)
    return list(text[starts + torch.arange(CONTEXT + 1)])


def loss(model: nn.Module, batch: Tensor) -> Tensor:
    return F.cross_entropy(model(batch[:, :-1]).flatten(0, 1), batch[:, 1:].flatten())


# ---- training --------------------------------------------------------------------------------------------------------


def train(model: nn.Module, text: Tensor, steps: int, seed: int, grower: Any = None, at: tuple[int, ...] = ()) -> float:
    """Train with AdamW and one cycle of the rate, and grow before these steps; returns the cost, in 10^12 FLOPs."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3, weight_decay=0.01)
    rate = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda k: min(1.0, (k + 1) / 30) * max(0.0, 1 - k / steps))
    flops, each = 0.0, 0.0
    for step, batch in enumerate(draw(text, steps, seed)):
        if step in at:
            with FlopCounterMode(display=False) as counter:
                print(grower.grow(loss, draw(text, 40, seed + 1000 + step), optimizer))
            flops, each = flops + counter.get_total_flops(), 0.0
        optimizer.zero_grad()
        if each:
            loss(model, batch).backward()
        else:
            with FlopCounterMode(display=False) as counter:
                loss(model, batch).backward()
            each = counter.get_total_flops()
        flops += each
        optimizer.step()
        rate.step()
    return flops / 1e12


@torch.no_grad()
def evaluate(model: nn.Module, text: Tensor) -> float:
    return torch.stack([loss(model, batch) for batch in draw(text, 40, 7)]).mean().item()


def compare(steps: int, seed: int) -> list[dict[str, Any]]:
    """The grown network and those beside it, a row each."""
    text, held, letters = read_text()
    rows = []

    def note(method: str, model: nn.Module, flops: float, steps: int) -> None:
        size = sum(p.numel() for p in model.parameters())
        row = {"benchmark": "gpt", "device": "cpu", "method": method, "seed": seed, "steps": steps, "parameters": size}
        rows.append({**row, "teraflops": round(flops, 4), "held_out_loss": round(evaluate(model, held), 4)})
        print(json.dumps(rows[-1]), flush=True)

    torch.manual_seed(seed)
    small = GPT(letters)
    grown = copy.deepcopy(small)
    budget = firefly.Parameters(fraction=0.6)
    grower = firefly.Firefly(grown, draw(text, 1, 0)[0][:2, :-1], budget=budget, seed=seed, steps=20, evaluate_on=4)
    flops = train(grown, text, steps, seed, grower, (steps // 6, steps // 3, steps // 2))
    note("grown", grown, flops, steps)
    size = sum(p.numel() for p in grown.parameters())
    print(firefly.architecture(grown)["widths"])

    note("small, never grown", small, train(small, text, steps, seed), steps)
    torch.manual_seed(seed)
    even = make_even(letters, size)
    shorter = copy.deepcopy(even)
    full = train(even, text, steps, seed)
    note("equal layers", even, full, steps)
    few = round(steps * flops / full)
    note("equal layers, as many FLOPs", shorter, train(shorter, text, few, seed), few)
    torch.manual_seed(seed)
    again = firefly.rebuild(GPT(letters), firefly.architecture(grown))
    for module in again.modules():
        if isinstance(module, nn.Linear):
            module.reset_parameters()  # to the scale of its new size
    note("the sizes found, from scratch", again, train(again, text, steps, seed), steps)
    return rows


def make_even(letters: int, size: int) -> GPT:
    """Equal layers of about this size: the hidden layer four times as wide as the heads together."""
    for heads in range(1, 32):
        for hidden in range(max(1, 4 * HEAD * (heads - 1)), 4 * HEAD * heads + 1):
            with torch.device("meta"):
                count = sum(p.numel() for p in GPT(letters, heads, hidden).parameters())
            if count >= size:
                return GPT(letters, heads, hidden)
    raise ValueError(f"no network of {size} parameters")


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--out", type=Path)
    given = parser.parse_args(arguments)
    for seed in range(given.seeds):
        rows = compare(given.steps, seed)
        if given.out:
            with given.out.open("a") as file:
                file.writelines(json.dumps(row) + "\n" for row in rows)


if __name__ == "__main__":
    main()
