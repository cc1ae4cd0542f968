"""One network's life in an experiment: trained, grown, trained, ...; every stop can be taken up again.

A *line* is a method with a seed. Its step 0 is the start network, the same for all methods of a seed; every further
step grows it and trains it for a round. At the sizes that a table reports it is trained on, longer, as a copy. Each
training keeps itself in a folder (`fit(checkpoint=...)`), each finished step is a row of the results: whatever is there
is not done again, and a line that was stopped in the middle of an epoch goes on from the last one.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from hashlib import sha256
from pathlib import Path
from shutil import rmtree
from typing import Any, Self

import torch
from torch import Tensor, nn

import firefly
from firefly.anatomy.widths import Anatomy
from firefly.errors import FireflyError
from firefly.experiments.notes import is_begun, is_late, latest, read_epochs, read_note, write_note
from firefly.experiments.rows import Row, accuracy, append, brief, count, count_flops, hardware, list_channels
from firefly.experiments.setting import START, Setting, World
from firefly.stages.budget import Budget
from firefly.surgery.residual import find_layers
from firefly.training import History, evaluate, fit
from firefly.training.joining import take_part
from firefly.training.precision import autocast, check_precision
from firefly.training.resident import Batches, draw, upload


@dataclass(frozen=True)
class State:
    """A network after a round."""

    model: nn.Module
    optimizer: torch.optim.Optimizer
    history: History
    before: int = 0  # epochs that it was trained for in earlier rounds

    @property
    def epochs(self) -> int:
        """That it was trained for in all."""
        return self.before + len(self.history)


Grow = Callable[["Line", nn.Module, torch.optim.Optimizer, Budget, int], "Grown"]


@dataclass(frozen=True)
class Grown:
    """What a growth was, and what it cost beside its own seconds."""

    growth: firefly.Growth
    epochs: float = 0.0  # trainings of children, in epochs of the whole data


@dataclass
class Line:
    """One network on its way."""

    method: str
    seed: int
    setting: Setting
    world: World
    grow: Grow | None = None
    anatomy: Anatomy | None = None  # of the network as it is, once a growth has traced it

    # ---- a training ----------------------------------------------------------------------------------------------

    def train(
        self, model: nn.Module, folder: Path, epochs: int, seed: int, optimizer: torch.optim.Optimizer
    ) -> History:
        return fit(
            model,
            self.world.train,
            epochs,
            test=self.world.test,
            optimizer=optimizer,
            batch=self.setting.batch,
            augment=self.world.augment,
            seed=1000 * self.seed + seed,
            evaluate_every=epochs,
            checkpoint=folder,
            device=self.world.place.device,
            progress=False,
        )

    def train_long(self, model: nn.Module, folder: Path, epochs: int, seed: int) -> State:
        """The training of a network that the table reports, from here on."""
        optimizer = self.make_optimizer(model, self.setting.long_lr)
        return State(model, optimizer, self.train(model, folder, epochs, seed, optimizer))

    def make_optimizer(self, model: nn.Module, lr: float | None = None) -> torch.optim.SGD:
        how = self.setting
        return torch.optim.SGD(model.parameters(), lr or how.lr, 0.9, nesterov=True, weight_decay=how.weight_decay)

    def make_start(self) -> nn.Module:
        torch.manual_seed(self.seed)
        return self.world.make(self.world.start).to(self.world.place.device)

    @property
    def start(self) -> Self:
        """The line of the start network, which all methods share."""
        return replace(self, method="start", grow=None)

    def folder(self, step: int | str) -> Path:
        """Where a training is kept; lines of other experiments or settings do not meet, but they share the start."""
        keys = START if self.method == "start" else asdict(self.setting)
        told = json.dumps([self.world.experiment, *(getattr(self.setting, key) for key in keys)])
        return (
            self.world.place.folder / f"{self.method}-{self.seed}-{sha256(told.encode()).hexdigest()[:8]}" / str(step)
        )

    # ---- a growth ------------------------------------------------------------------------------------------------

    def batches(self, step: int) -> Batches:
        """An epoch's batches for a growth, twice as large as those of training; `grow` holds the first ones apart."""
        lines = self.world.place.device.type == "cuda" and check_precision(None, self.world.place.device) == "bf16"
        data = upload(self.world.train, self.world.place.device, augment=self.world.augment, channels_last=lines)
        table = take_part(draw(data, 2 * self.setting.batch, 1000 * self.seed + step, 10_000))
        again = table[: 0 if self.setting.unseen else self.setting.evaluate_on]
        return Batches(data, torch.cat([again, table]))

    def example(self, step: int) -> Tensor:  # a few images, to trace and to deepen the network with
        return self.batches(step)[0][0][:8]

    def trace(self, model: nn.Module, step: int) -> Anatomy:
        """The widths of the network: traced before the first growth, known from then on."""
        self.anatomy = self.anatomy or firefly.trace(model, self.example(step))
        return self.anatomy

    def loss(self, model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
        with autocast(check_precision(None, self.world.place.device), self.world.place.device):
            answers = model(batch[0])
        return nn.functional.cross_entropy(answers.float(), batch[1])

    def budget(self, step: int, present: int) -> Budget:
        how = self.setting
        even = firefly.Multiples(how.multiple)
        if how.budget in ("neurons", "flops"):
            return (firefly.Neurons if how.budget == "neurons" else firefly.Flops)(fraction=how.more) & even
        room = self.room(step, present)
        if room <= 0:
            raise FireflyError(f"size {how.sizes[step - 1]:.2%} of the full network is no more than it has already")
        flops = firefly.Flops(fraction=room / present) & even
        return firefly.Parameters(room) & (flops if how.budget == "both" else even)

    def room(self, step: int, present: int) -> int:
        """Parameters up to the next size."""
        return int(self.setting.sizes[step - 1] * self.world.full) - present

    # ---- the whole line ------------------------------------------------------------------------------------------

    def run(self, done: list[Row]) -> bool:
        """All steps that the results do not hold yet; False if time ran out."""
        mine = {(row["step"], row["final"]) for row in done if (row["method"], row["seed"]) == (self.method, self.seed)}
        state: State | None = None
        for step, final in self.plan(mine):
            if is_late(self.world.place.deadline):
                return False
            if final:
                self.take_long(step)
            else:
                state = self.take_step(state, step, (step, False) not in mine)
        return True

    def plan(self, mine: set[tuple[int, bool]]) -> list[tuple[int, bool]]:
        """What is missing, in order; and the steps on the way there whose networks are gone, to be taken again."""
        every = {(step, False) for step in range(1, len(self.setting.sizes) + 1)}
        missing = sorted({*every, *((step, True) for step in self.reported)} - mine)
        if not missing:
            return []
        (first, final), (last, _) = missing[0], missing[-1]
        kept = max(step for step in range(first + final) if not step or is_begun(self.folder(step)))
        return sorted({*missing, *((step, False) for step in range(kept + 1, last + 1))})

    @property
    def reported(self) -> list[int]:
        """The steps whose networks are trained on."""
        sizes = self.setting.sizes
        return [sizes.index(size) + 1 for size in self.world.report if size in sizes and self.setting.long > 0]

    def resume(self, step: int) -> State:
        """The network after a step: its training is taken up, and over at once if it was done."""
        model = self.make_start()
        optimizer = self.make_optimizer(model)
        line = self if step else self.start
        history = line.train(model, line.folder(step), self.setting.epochs, step, optimizer)
        return State(model, optimizer, history, read_note(line.folder(step))["before"] if step else 0)

    def take_step(self, state: State | None, step: int, write: bool) -> State:
        """Grow and train for a round; a training that was begun is taken up instead."""
        folder = self.folder(step)
        if is_begun(folder):
            state = self.resume(step)
        else:
            before = state or self.resume(step - 1)
            before.model.train()
            optimizer = before.optimizer if self.setting.carry else self.make_optimizer(before.model)
            write_note(folder, before.epochs, self.take_growth(before.model, optimizer, step))
            optimizer = optimizer if self.setting.carry else self.make_optimizer(before.model)
            history = self.train(before.model, folder, self.setting.epochs, step, optimizer)
            state = State(before.model, optimizer, history, before.epochs)
        if write:
            self.write(state, step, False, read_note(folder)["growth"])
        if step > 1:
            rmtree(self.folder(step - 1), ignore_errors=True)
        return state

    def take_growth(self, model: nn.Module, optimizer: Any, step: int) -> Row:
        assert self.grow is not None
        before = evaluate(model, self.world.test).loss
        start = time.perf_counter()
        grown = self.grow(self, model, optimizer, self.budget(step, count(model)), step)
        if self.world.place.device.type == "cuda":
            torch.cuda.synchronize()
        seconds = time.perf_counter() - start
        if self.anatomy is not None:
            self.anatomy = self.anatomy.resized({name: size for name, (_, size) in grown.growth.widths.items()})
        after = evaluate(model, self.world.test).loss
        told = {"growth_seconds": round(seconds, 3), "search_epochs": grown.epochs, "growth": brief(grown.growth)}
        return {**told, "test_loss_grown": (before, after)}

    def take_long(self, step: int) -> None:
        """Train a copy of the network on, for the table."""
        folder, before = self.folder(f"{step}-long"), self.folder(step)
        model = self.make_start()
        if not is_begun(folder):
            firefly.load(latest(before), model)
            write_note(folder, read_note(before)["before"] + len(read_epochs(before)), {})
        state = self.train_long(model, folder, self.setting.long, 100 + step)
        self.write(replace(state, before=read_note(folder)["before"]), step, True, {})
        rmtree(folder, ignore_errors=True)

    def write(self, state: State, step: int, final: bool, told: Row) -> None:
        """One row of the results; `told` goes into it as it is."""
        row = self.make_row(state, step, final) | told
        append(self.world.place.results, row)
        self.world.place.say(
            f"{self.method} {self.seed}, step {step}{' long' if final else ''}: {row.get('structure', '')} "
            f"{row['parameters']:,} parameters ({row['share']:.2%}), {100 * accuracy(row):.2f} %, "
            f"{row['train_seconds']:.0f} s"
            + (f", grown in {told['growth_seconds']:.1f} s" if "growth_seconds" in told else "")
        )

    def make_row(self, state: State, step: int, final: bool) -> Row:
        how, world, model, history = self.setting, self.world, state.model, state.history
        measured = "held_accuracy" if how.held_out else "test_accuracy"
        return {
            "experiment": world.experiment,
            "method": self.method,
            "dataset": world.train.name,
            "seed": self.seed,
            "step": step,
            "final": final,
            "parameters": count(model),
            "flops": count_flops(model, torch.zeros(world.train.images.shape[1:], device=world.place.device)),
            "share": count(model) / world.full,
            measured: history.accuracy,
            "train_loss": history[-1].loss,
            "epochs": state.epochs,
            "train_seconds": round(history.seconds, 2),
            "widths": list_channels(model),
            "layers": {name: layer.make.weight.shape[0] for name, layer in find_layers(model).items()},
            "device": hardware(world.place.device),
            **({"shared": True} if world.place.shared else {}),
            "config": json.loads(json.dumps(asdict(how))),
        }

    def plan_epochs(self, step: int) -> int:
        """How long a network of this step that the table reports is to be trained in all."""
        return self.setting.epochs * (step + 1) + self.setting.long


def run_line(line: Line, done: list[Row]) -> bool:
    """The start network, if there is none yet, then all that is missing of a line; False if time ran out."""
    if is_late(line.world.place.deadline):
        return False
    prepare_start(line, done)
    return line.run(done)


def prepare_start(line: Line, done: list[Row]) -> None:
    """Train the start network of this seed, which all methods grow, if that has not been done."""
    if not any(row["method"] == "start" and row["seed"] == line.seed for row in done):
        state = line.resume(0)
        line.start.write(state, 0, False, {})


def train_whole(line: Line, widths: Any, step: int) -> None:
    """A network that never grows, from random weights, for as long as the grown one of that step."""
    torch.manual_seed(10_000 + line.seed)
    model = line.world.make(widths).to(line.world.place.device)
    line.write(line.train_long(model, line.folder(step), line.plan_epochs(step), 200 + step), step, True, {})
