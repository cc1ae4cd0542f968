"""The pictures of docs/how-it-works.md, drawn from models that are traced and grown here.

    python benchmarks/how_figures.py          writes docs/figures/how-widths.svg, how-candidates.svg and how-gains.svg

Seconds on one CPU thread. The last digits of the last two may differ from machine to machine.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import firefly
from firefly.growth import Growth
from firefly.method import Method
from firefly.neighborhood.overgrown import OverGrown
from firefly.report import svg
from firefly.report.page import Picture
from firefly.stages.scores import Gains, integrate
from firefly.tensors import make_plan
from firefly.vision import digits

FIGURES = Path(__file__).parents[1] / "docs" / "figures"
CELL = 14.0
LOWER = 200.0  # where the reading weights begin
EXISTING, SPLIT, NEW = "bar s7", "bar s1", "bar s0"


def draw_grid(x: float, y: float, cells: Sequence[Sequence[tuple[str, float]]]) -> list[str]:
    """Squares in rows, each with its kind and its strength."""
    placed = ((i, j, cell) for i, row in enumerate(cells) for j, cell in enumerate(row))
    return [svg.draw_bar(x + CELL * j, y + CELL * i, CELL - 1, CELL - 1, *cell) for i, j, cell in placed]


def draw_legend(x: float, y: float, lines: dict[str, str]) -> list[str]:
    parts = []
    for k, (text, kind) in enumerate(lines.items()):
        parts += [svg.draw_bar(x, y + 18 * k - 10, 11, 11, kind), svg.write_text(x + 17, y + 18 * k, text)]
    return parts


# ---- one neuron, several tensors -------------------------------------------------------------------------------------


class Block(nn.Module):
    """A residual block between a stem and a head, small enough to draw."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.a, self.norm = nn.Conv2d(2, 5, 1), nn.Conv2d(5, 4, 3, padding=1), nn.BatchNorm2d(4)
        self.b, self.head = nn.Conv2d(4, 5, 3, padding=1), nn.Linear(5, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        x = x + self.b(torch.relu(self.norm(self.a(x))))
        out: Tensor = self.head(x.mean((2, 3)))
        return out


def draw_widths() -> str:
    """All parameters of the block; of each width one neuron is coloured, wherever it lies."""
    anatomy = firefly.trace(Block(), torch.randn(2, 2, 6, 6))
    marked = {
        width.name: (k + 1, f"bar s{k}") for k, width in enumerate(anatomy.growable())
    }  # which neuron, its colour
    parts: list[str] = []
    x = 4.0
    for module, group in by_module(anatomy).items():
        start = x
        for dims in group:
            rows, columns = dims[0][0], dims[1][0] if len(dims) > 1 else None
            cells = [[("old", 0.4)] * (columns.size if columns else 1) for _ in range(rows.size)]
            if rows.width in marked:
                cells[marked[rows.width][0]] = [(marked[rows.width][1], 1.0)] * len(cells[0])
            if columns and columns.width in marked:
                for row in cells:
                    row[marked[columns.width][0]] = (marked[columns.width][1], 1.0)
            parts += draw_grid(x, 22, cells)
            x += CELL * len(cells[0]) + 5
        parts.append(svg.write_text((start + x) / 2 - 2, 14, module, "quiet", "middle"))
        x += 14
    lines = {f"one of the {anatomy[name].size} neurons of width {name}": kind for name, (_, kind) in marked.items()}
    return svg.wrap([*parts, *draw_legend(4, 118, lines)], 145, x)


def by_module(anatomy: firefly.Anatomy) -> dict[str, list[Any]]:
    """{module: the dimensions of its parameters}."""
    found: dict[str, list[Any]] = {}
    for layout in anatomy.layouts.values():
        if layout.parameter:
            found.setdefault(layout.name.rpartition(".")[0], []).append(layout.dims)
    return found


# ---- a growth, watched -----------------------------------------------------------------------------------------------


def watch(seen: dict[str, Any]) -> Method:
    """Firefly's own method; it notes the gains, and the tensors with all candidates in them."""

    def score(over: OverGrown, loss: Any, batches: list[Any], path: str) -> Gains:
        seen["gains"] = integrate(over, loss, batches, path)
        seen["slots"] = {name: roster.slot for name, roster in over.rosters.items()}
        plans = {n: make_plan(lay, over.rosters, over.rosters, torch.device("cpu")) for n, lay in over.layouts.items()}
        seen["overgrown"] = {name: over.grown(name, plans[name], over.epsilon).detach() for name in over.delta}
        seen["sizes"] = over.anatomy.sizes()
        return seen["gains"]

    return Method(score=score)


def list_chosen(growth: Growth, sizes: dict[str, int], name: str) -> dict[int, str]:
    """{slot: its colour} of the candidates that a width got."""
    chosen = growth.chosen.get(name, {})
    return dict.fromkeys(chosen.get("split", []), SPLIT) | {sizes[name] + k: NEW for k in chosen.get("new", [])}


def draw_candidates() -> str:
    """The two weights of a small network: as they were, with all candidates, as they are."""
    torch.manual_seed(3)
    x = torch.randn(512, 5)
    y = torch.tanh(x @ torch.randn(5, 6)) @ torch.randn(6, 3)
    model = nn.Sequential(nn.Linear(5, 4, bias=False), nn.Tanh(), nn.Linear(4, 3, bias=False))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.02)
    batches = list(zip(x.split(64), y.split(64)))

    def loss(model: nn.Module, batch: Any) -> Tensor:
        return nn.functional.mse_loss(model(batch[0]), batch[1])

    for batch in batches * 25:
        optimizer.zero_grad()
        loss(model, batch).backward()
        optimizer.step()
    before = [model[k].weight.detach().clone() for k in (0, 2)]
    seen: dict[str, Any] = {}
    kinds = [firefly.Split(0.6), firefly.New(3, epsilon=0.3)]
    how = {"neighborhood": kinds, "budget": firefly.Neurons(3), "method": watch(seen), "optimizer": optimizer}
    growth = firefly.grow(model, loss, batches, example=x[:2], **how)
    slots, chosen = seen["slots"]["0"], list_chosen(growth, seen["sizes"], "0")
    order = slots.argsort(stable=True)
    middle = [seen["overgrown"]["0.weight"][order], seen["overgrown"]["2.weight"][:, order]]
    after = [model[k].weight.detach() for k in (0, 2)]
    names = {
        "before": (before, list(range(4))),
        "with all candidates": (middle, slots[order].tolist()),
        "after": (after, list_after(chosen, 4)),
    }
    parts: list[str] = []
    x_at = 4.0
    for title, (weights, owners) in names.items():
        everyone = {slot: SPLIT if slot < 4 else NEW for slot in owners}
        shown = {"before": {}, "after": chosen}.get(title, everyone)
        colours = [shown.get(slot, EXISTING) for slot in owners]
        parts += draw_pair(x_at, title, weights, colours)
        x_at += CELL * max(6, len(owners) + 1) + 26
    for k, words in enumerate(("a row makes", "a neuron")):
        parts.append(svg.write_text(4, 24 + CELL * 4 + 16 + 14 * k, words, "quiet"))
    parts.append(svg.write_text(4, LOWER - 6, "a column reads it", "quiet"))
    lines = {"a neuron as it was": EXISTING, "the two halves of a split": SPLIT, "a brand-new neuron": NEW}
    return svg.wrap([*parts, *draw_legend(4, 268, lines)], 312, x_at)


def list_after(chosen: dict[int, str], size: int) -> list[int]:
    """The slots of the grown network's neurons, in its order: those that were, then the second halves and the new."""
    return [*range(size), *sorted(chosen)]


def draw_pair(x: float, title: str, weights: Sequence[Tensor], colours: Sequence[str]) -> list[str]:
    """What makes the neurons, a row each, and what reads them, a column each; strong squares are large weights."""
    parts = [svg.write_text(x, 14, title)]
    rows, columns = weights
    strong = [(weight.abs() / weight.abs().max()).clamp(min=0.08).tolist() for weight in (rows, columns)]
    parts += draw_grid(x, 24, [[(colour, s) for s in row] for colour, row in zip(colours, strong[0])])
    return parts + draw_grid(x, LOWER, [list(zip(colours, row)) for row in strong[1]])


def draw_gains() -> str:
    """What every candidate of a growth is worth, the best first."""
    torch.manual_seed(0)
    images, labels, *_ = digits.load()
    batches = list(zip(images[:3000].split(100), labels[:3000].split(100)))
    model = nn.Sequential(
        *(nn.Conv2d(1, 3, 3, padding=1), nn.BatchNorm2d(3), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Conv2d(3, 3, 3, padding=1), nn.BatchNorm2d(3), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Flatten(), nn.Linear(3 * 9, 10)),
    )
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)

    def loss(model: nn.Module, batch: Any) -> Tensor:
        return nn.functional.cross_entropy(model(batch[0]), batch[1])

    for batch in batches * 4:
        optimizer.zero_grad()
        loss(model, batch).backward()
        optimizer.step()
    seen: dict[str, Any] = {}
    kinds = [firefly.Split(1.0), firefly.New(8, epsilon=0.1)]
    how = {"neighborhood": kinds, "budget": firefly.Neurons(12), "method": watch(seen), "optimizer": optimizer}
    growth = firefly.grow(model, loss, batches, example=images[:2], **how)
    candidates = []
    for name, gains in seen["gains"].items():
        chosen = list_chosen(growth, seen["sizes"], name)
        candidates += [
            (float(gain), NEW if slot >= seen["sizes"][name] else SPLIT, slot in chosen)
            for slot, gain in enumerate(gains)
        ]
    return draw_bars(sorted(candidates, reverse=True), growth)


def draw_bars(candidates: Sequence[tuple[float, str, bool]], growth: Growth) -> str:
    left, right, top, bottom = 52.0, 412.0, 14.0, 190.0
    low = min(0.0, candidates[-1][0])
    up = svg.Axis(low, candidates[0][0] * 1.05, bottom, top)
    parts = [svg.draw_y(up, svg.tick(low, candidates[0][0] * 1.05, 4), left, right, lambda v: f"{v:.3g}")]
    step = (right - left) / len(candidates)
    for k, (gain, kind, chosen) in enumerate(candidates):
        high, base = sorted((up.place(gain), up.place(0.0)))
        parts.append(
            svg.draw_bar(left + step * k, high, step - 1.5, max(base - high, 0.6), kind, 1.0 if chosen else 0.35)
        )
    losses = growth.loss_before, growth.loss_overgrown, growth.loss_after
    said = "loss {:.3f}, over-grown {:.3f}, grown {:.3f}".format(*losses)
    parts += [
        svg.write_text(left, bottom + 20, f"{len(candidates)} candidates, the best first; faint: not taken", "quiet")
    ]
    parts += [svg.write_text(left, bottom + 38, said, "quiet")]
    return svg.wrap([*parts, *draw_legend(right - 150, 34, {"brand-new neurons": NEW, "splits": SPLIT})], bottom + 48)


def main(folder: Path = FIGURES) -> None:
    torch.set_num_threads(1)
    for name, draw in {"how-widths": draw_widths, "how-candidates": draw_candidates, "how-gains": draw_gains}.items():
        path = folder / f"{name}.svg"
        path.write_text(Picture(name, draw(), "").to_file(), encoding="utf-8")
        print(path)


if __name__ == "__main__":
    main()
