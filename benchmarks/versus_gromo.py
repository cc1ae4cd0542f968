"""One growth of the same MLP by Firefly and by gromo (PyPI), side by side in one run.

784-64-64-10, 20,000 samples, batch 128, +16 neurons: gromo's own size and way of growing (statistics of all layers
over all data, best layer, line search). Both start from the same weights after one epoch of training. Times are CPU
seconds of one thread, in units of a plain PyTorch epoch of the same network; losses are over all 20,000 samples.

    pip install gromo && python benchmarks/versus_gromo.py --repeats 5
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import firefly
from firefly.experiments.rows import append

HIDDEN, ADDED, SAMPLES, BATCH = 64, 16, 20_000, 128


def make_data(seed: int) -> tuple[Tensor, Tensor]:
    """Ten noisy classes that a narrow network fits only in part: labels from a random two-layer teacher."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(SAMPLES, 784, generator=generator)
    teacher = torch.randn(784, 48, generator=generator) / 28, torch.randn(48, 10, generator=generator)
    return x, (torch.tanh(3 * x @ teacher[0]) @ teacher[1]).argmax(1)


def loss(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
    return F.cross_entropy(model(batch[0]), batch[1])


def train_epoch(model: nn.Module, batches: list[Any], optimizer: torch.optim.Optimizer) -> None:
    for batch in batches:
        optimizer.zero_grad()
        loss(model, batch).backward()
        optimizer.step()


@torch.no_grad()
def mean_loss(model: nn.Module, batches: list[Any]) -> float:
    return sum(loss(model, batch).item() * len(batch[1]) for batch in batches) / SAMPLES


def cpu_seconds(work: Callable[[], Any]) -> float:
    start = time.process_time()
    work()
    return time.process_time() - start


def plain_mlp() -> nn.Sequential:
    return nn.Sequential(nn.Linear(784, HIDDEN), nn.ReLU(), nn.Linear(HIDDEN, HIDDEN), nn.ReLU(), nn.Linear(HIDDEN, 10))


def grow_by_firefly(model: nn.Module, batches: list[Any], steps: int) -> firefly.Growth:
    return firefly.grow(
        model,
        loss,
        batches,
        example=batches[0][0][:2],
        neighborhood=[firefly.Split(), firefly.New(ADDED, epsilon=1.0)],
        budget=firefly.Neurons(ADDED),
        steps=steps,
        lr=0.1,
        evaluate_on=4,
    )


def grow_by_gromo(model: Any, loader: Any, device: torch.device) -> None:
    from gromo.utils.training_utils import compute_statistics, evaluate_model

    model.set_growing_layers()
    compute_statistics(model, loader, loss_function=nn.CrossEntropyLoss(reduction="sum"), device=device)
    model.compute_optimal_updates(maximum_added_neurons=ADDED)
    model.reset_computation()
    model.select_best_update()
    best, best_loss = 0.0, float("inf")
    for scale in (0.0, 0.1, 0.5, 1.0):
        model.set_scaling_factor(scale)
        value = evaluate_model(model, loader, nn.CrossEntropyLoss(), use_extended_model=True, device=device)[0]
        if value < best_loss:
            best, best_loss = scale, value
    model.set_scaling_factor(best)
    model.apply_change()


def make_peer(source: nn.Sequential, device: torch.device) -> Any:
    """gromo's network of the same size, with the plain network's weights."""
    from gromo.containers.growing_mlp import GrowingMLP

    peer = GrowingMLP(784, 10, hidden_size=HIDDEN, number_hidden_layers=2, activation=nn.ReLU(), device=device)
    mine = [layer for layer in source if isinstance(layer, nn.Linear)]
    for layer, module in zip(mine, peer.layers, strict=True):
        module.layer.load_state_dict(layer.state_dict())
    return peer


def warm_up() -> None:
    """One small growth of each: the first pays for imports, torch.export and the first decompositions."""
    x, y = torch.randn(256, 784), torch.randint(0, 10, (256,))
    grow_by_gromo(
        make_peer(plain_mlp(), torch.device("cpu")), DataLoader(TensorDataset(x, y), 128), torch.device("cpu")
    )
    grow_by_firefly(plain_mlp(), [(x, y)], 1)


def measure(seed: int, steps: int) -> dict[str, float]:
    torch.manual_seed(seed)
    x, y = make_data(seed)
    batches = list(zip(x.split(BATCH), y.split(BATCH)))
    model = plain_mlp()
    train_epoch(model, batches, torch.optim.Adam(model.parameters(), lr=1e-3))
    device = torch.device("cpu")
    peer = make_peer(model, device)
    clone = plain_mlp()
    optimizer = torch.optim.Adam(clone.parameters(), lr=1e-3)
    epoch = statistics.median(cpu_seconds(lambda: train_epoch(clone, batches, optimizer)) for _ in range(3))
    loader = DataLoader(TensorDataset(x, y), batch_size=BATCH)
    row = {"epoch": epoch, "before": mean_loss(model, batches)}
    row["gromo_before"] = mean_loss(peer, batches)
    row["gromo"] = cpu_seconds(lambda: grow_by_gromo(peer, loader, device)) / epoch
    row["gromo_after"] = mean_loss(peer, batches)
    row["firefly"] = cpu_seconds(lambda: grow_by_firefly(model, batches, steps)) / epoch
    row["firefly_after"] = mean_loss(model, batches)
    return row


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--steps", type=int, default=40, help="steps of Firefly's step one")
    parser.add_argument("--out", help="append one JSON line per repeat to this file")
    args = parser.parse_args()
    torch.set_num_threads(1)
    warm_up()
    rows = [measure(seed, args.steps) for seed in range(args.repeats)]
    median = {key: statistics.median(row[key] for row in rows) for key in rows[0]}
    print(f"plain epoch {median['epoch']:.3f} CPU s; medians of {args.repeats}, steps {args.steps}")
    print(f"{'':8}  {'epochs':>7}  {'loss before':>11}  {'loss after':>10}")
    for name in ("gromo", "firefly"):
        print(f"{name:8}  {median[name]:7.2f}  {median['before']:11.4f}  {median[name + '_after']:10.4f}")
    if args.out:
        shared = {"experiment": "versus-gromo", "steps": args.steps, "device": "cpu, one thread"}
        shared |= {"torch": torch.__version__, "gromo_version": version("gromo")}
        append(Path(args.out), *({**shared, "seed": seed, **row} for seed, row in enumerate(rows)))


if __name__ == "__main__":
    main()
