"""A small run to attack, a hash of all that an operation on it could touch, and a tally of what came of an attack."""

import hashlib
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import firefly


@dataclass
class Tally:
    """What came of an attack."""

    tried: int = 0
    changed: int = 0  # models that are neither as before nor as after
    lost: int = 0  # runs that cannot go on, or end otherwise than undisturbed
    raw: int = 0  # exceptions that are no FireflyError
    outcomes: dict[str, int] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)

    def count(self, outcome: str) -> None:
        self.tried += 1
        self.outcomes[outcome] = self.outcomes.get(outcome, 0) + 1

    def blame(self, kind: str, note: str) -> None:
        """One more of `changed`, `lost` or `raw`."""
        setattr(self, kind, getattr(self, kind) + 1)
        self.notes.append(f"{kind}: {note}"[:300])


@dataclass
class Run:
    model: nn.Module
    optimizer: torch.optim.Optimizer
    grower: firefly.Firefly


def make_run() -> Run:
    torch.manual_seed(0)
    layers = [nn.Conv2d(1, 3, 3), nn.BatchNorm2d(3), nn.ReLU(), nn.Flatten(), nn.Linear(48, 5), nn.ReLU()]
    model = nn.Sequential(*layers, nn.Linear(5, 2))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    kinds = [firefly.Split(), firefly.New(2)]
    grower = firefly.Firefly(model, example(), neighborhood=kinds, budget=firefly.Neurons(2), steps=3, evaluate_on=2)
    return Run(model, optimizer, grower)


def make_large() -> Run:
    """One that was trained, deepened, grown and trained on."""
    run = make_run()
    train(run)
    firefly.deepen(run.model, example(), optimizer=run.optimizer)
    run.grower.grow(loss, batches(), run.optimizer)
    train(run)
    return run


def example() -> Tensor:
    return torch.ones(2, 1, 6, 6)


def batches() -> list[tuple[Tensor, Tensor]]:
    generator = torch.Generator().manual_seed(1)
    images = [torch.randn(16, 1, 6, 6, generator=generator) for _ in range(4)]
    return [(one, (one[:, 0, :3].mean((1, 2)) > 0).long()) for one in images]


def loss(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
    return nn.functional.cross_entropy(model(batch[0]), batch[1])


def train(run: Run) -> None:
    """An epoch with noise, so that the random state counts."""
    for images, labels in batches():
        run.optimizer.zero_grad()
        loss(run.model, (images + 0.1 * torch.randn(images.shape), labels)).backward()
        run.optimizer.step()


def save(folder: Path, run: Run) -> None:
    firefly.save(folder, run.model, optimizer=run.optimizer, grower=run.grower)


def load(folder: Path, run: Run) -> Run:
    firefly.load(folder, run.model, optimizer=run.optimizer, grower=run.grower, rng=True)
    return run


def fingerprint(run: Run) -> tuple[tuple[str, str], ...]:
    """Hashes of tensors, sizes, hooks, optimiser, history and random state."""
    modes: dict[str, Any] = {"gradients are on": torch.is_grad_enabled(), "random state": read(torch.get_rng_state())}
    modes["schedule"] = run.grower.schedule.state_dict()
    modes["history"] = [{**growth, "seconds": None} for growth in run.grower.history]
    for path, module in run.model.named_modules():
        plain = {k: v for k, v in vars(module).items() if isinstance(v, (bool, int, float, str, tuple))}
        modes[f"sizes of {path}"] = sorted(plain.items())
        modes[f"hooks of {path}"] = len(module._forward_hooks), len(module._forward_pre_hooks)
    tensors = run.model.state_dict(keep_vars=True)
    modes |= {name: (t.requires_grad, read(t), read(t.grad)) for name, t in tensors.items()}
    names = {id(tensor): name for name, tensor in tensors.items()}
    for place, group in enumerate(run.optimizer.param_groups):
        modes[f"group {place}"] = [names.get(id(p), "not of the model") for p in group["params"]], group["lr"]
        state = [{k: read(v) for k, v in run.optimizer.state.get(p, {}).items()} for p in group["params"]]
        modes[f"state of group {place}"] = state, len(run.optimizer.state)
    return tuple((name, hashlib.sha256(repr(part).encode()).hexdigest()) for name, part in modes.items())


def read(value: Any) -> Any:
    return (tuple(value.shape), value.detach().numpy().tobytes()) if isinstance(value, Tensor) else value
