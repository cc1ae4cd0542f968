"""`fit`: train a classifier, fast, with growth, early stop, and exact resume (Alg. 1, step 1; Sec. 3, app. B.2).

The loop over epochs is here; the steps of an epoch are in `engine.py`, the data in `resident.py`, the recipe in
`recipe.py` and the folder of a run in `resume.py`.
"""

import copy
import math
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.utils._pytree import tree_map

from firefly.descent import Firefly
from firefly.errors import FireflyError
from firefly.training.capture import captured, identify, keep, put_back
from firefly.training.engine import Engine
from firefly.training.history import Epoch, History, Progress, Stop, check_stop, should_stop
from firefly.training.precision import check_precision
from firefly.training.recipe import Grower, Loss, Schedule, list_factors, list_state, make_loss, make_optimizer
from firefly.training.resident import Batches, Resident, draw, mix, upload
from firefly.training.resume import Folder, load_run, save_run
from firefly.training.score import Score, evaluate


def fit(
    model: nn.Module,
    data: Any,
    epochs: int,
    *,
    test: Any = None,
    batch: int = 128,
    lr: float = 0.1,
    schedule: Schedule = "cosine",
    momentum: float = 0.9,
    nesterov: bool = True,
    weight_decay: float = 5e-4,
    optimizer: Optimizer | None = None,
    loss: Loss | None = None,
    label_smoothing: float = 0.0,
    augment: bool | str = True,
    precision: str | None = None,
    channels_last: bool | None = None,
    device: torch.device | str | None = None,
    graph: bool | None = None,
    compile: bool | dict[str, Any] = False,
    tune: bool = False,
    seed: int = 0,
    grower: Grower | None = None,
    stop: Stop = None,
    evaluate_every: int = 1,
    checkpoint: Folder | None = None,
    progress: bool = True,
) -> History:
    """Train `model` in place for `epochs` and return what happened.

    - `data`, `test`: an object with `images` (N, C, H, W) uint8, `labels` and perhaps `mean` and `std`, or a pair of
      tensors; inputs that are not uint8 are used as they are. The last batch of an epoch is dropped if not full.
    - `augment`: crops of images padded by 4 pixels, and mirroring; "crop" without mirroring; or False.
    - `optimizer`: your own instead of SGD with `lr`, `momentum`, `nesterov`, `weight_decay`; its learning rates follow
      the schedule and are as before afterwards.
    - `schedule`: "cosine" (to 0), "step" (a tenth after half and after three quarters), "constant", or a function from
      the time in epochs to a factor of the learning rate; it is asked at every step.
    - `loss`: `loss(model, (inputs, labels))`, a scalar; cross entropy with `label_smoothing` if None.
    - `precision`: "bf16" (arithmetic; the weights stay float32; the default on a GPU) or "float32".
    - `channels_last`: the memory layout of images and weights; by default on a GPU in bf16.
    - `device`: by default the GPU if there is one. `graph`: capture the step as a CUDA graph; by default wherever
      possible. `compile`: True, or options for `torch.compile`. `tune`: let cuDNN try its algorithms. The last two
      take seconds to a minute, again after each growth, and pay in long runs.
    - `grower`: a `firefly.Firefly`, asked after every epoch but the last, with the training loss as its metric.
    - `stop`: a number of evaluations without a better one, or a function of the `History`.
    - `checkpoint`: a folder. A run found there is continued exactly; Ctrl-C leaves one.
    - `seed`: of batches, crops and dropout; the same on every device. The initial weights are the model's.
    """
    check_numbers(epochs=epochs, batch=batch, evaluate_every=evaluate_every)
    check_stop(stop)
    place = find_device(device)
    precision = check_precision(precision, place)
    if channels_last is None:
        channels_last = place.type == "cuda" and precision == "bf16"
    resident = upload(data, place, augment=augment, channels_last=channels_last)
    held = None if test is None else upload(test, place, channels_last=channels_last, like=data, name="test")
    if batch > len(resident):
        raise FireflyError(f"batch={batch} is more than the {len(resident)} images there are: use a smaller batch")
    model.to(place)
    if grower is not None:
        grower.example = tree_map(lambda part: part.to(place) if isinstance(part, Tensor) else part, grower.example)
    list_factors(schedule, 0, epochs, 1)  # an unknown schedule is refused at once
    own = loss or make_loss(label_smoothing)
    optimizer = optimizer or make_optimizer(model, lr, momentum, nesterov, weight_decay)
    named = schedule if isinstance(schedule, str) else "a function"
    recipe = {"epochs": epochs, "batch": batch, "schedule": named, "augment": augment, "precision": precision}
    recipe |= {"seed": seed, "label_smoothing": label_smoothing, "images": len(resident)}
    recipe |= {"optimizer": [describe(group) for group in optimizer.param_groups]}
    history = History()
    if checkpoint is not None:
        history = load_run(checkpoint, recipe, model, optimizer, grower)
    engine = Engine(
        model,
        resident,
        optimizer,
        own,
        batch=batch,
        precision=precision,
        channels_last=channels_last and len(resident.lines) > 0,
        graph=graph,
        compile=compile,
        tune=tune,
    )
    if isinstance(grower, Firefly) and engine.graph:
        grower.options["method"] = captured(grower.options.get("method"))
    line = Progress(epochs, engine.steps, progress)
    job = Job(engine, held, loss, grower, schedule, epochs, batch, seed, evaluate_every, stop, checkpoint, recipe, line)
    with torch.random.fork_rng([place] if place.type == "cuda" else []):
        try:
            return run(job, history)
        finally:
            line.close()
            engine.release()


@dataclass(frozen=True, eq=False)
class Job:
    """A training as `fit` was asked for it."""

    engine: Engine
    test: Resident | None
    loss: Loss | None
    grower: Grower | None
    schedule: Schedule
    epochs: int
    batch: int
    seed: int
    evaluate_every: int
    stop: Stop
    checkpoint: Folder | None
    recipe: dict[str, Any]
    progress: Progress

    def draw(self, epoch: int) -> Tensor:
        return draw(self.engine.data, self.batch, self.seed, epoch)


def run(job: Job, history: History) -> History:
    """Epoch after epoch, from where the history ends. Saving may take a twentieth of the time."""
    saved, cost = time.perf_counter(), 0.0
    table = job.draw(len(history))
    over = is_over(job, history)
    while not over:
        job.engine.prepare()
        with kept_on_interrupt(job, history):
            row, following = train_epoch(job, len(history), table)
            over = is_over(job, history.add(row))
            if not over and job.grower is not None and job.grower.due(len(history), row.loss):
                job.grower.grow(job.engine.loss, Batches(job.engine.data, table), job.engine.optimizer)
                row = replace(row, grown=True)
        history, table = history.add(row), following
        job.progress.show_epoch(row, history.accuracy)
        if job.checkpoint is not None and (over or row.grown or time.perf_counter() - saved >= 20 * cost):
            start = time.perf_counter()
            save(job, history)
            saved = time.perf_counter()
            cost = saved - start
    return history


def train_epoch(job: Job, epoch: int, table: Tensor) -> tuple[Epoch, Tensor]:
    """One epoch and its evaluation; also the next epoch's batches, drawn while the GPU works."""
    engine = job.engine
    torch.manual_seed(mix(job.seed, epoch))  # for dropout
    factors = list_factors(job.schedule, epoch, job.epochs, engine.steps)
    rate = float(engine.optimizer.param_groups[0]["lr"]) * factors[0]
    start = time.perf_counter()
    mean = engine.train(table, factors, lambda step: job.progress.show_step(epoch + 1, step))
    following = job.draw(epoch + 1)
    loss = float(mean)
    seconds = time.perf_counter() - start
    if not math.isfinite(loss):
        raise FireflyError(
            f"the training loss became {loss} in epoch {epoch + 1}, at lr={rate:.3g}: lower lr, or check data and loss"
        )
    parameters = sum(parameter.numel() for parameter in engine.model.parameters())
    row = Epoch(epoch + 1, loss, rate, seconds, parameters)
    if job.test is not None and ((epoch + 1) % job.evaluate_every == 0 or epoch + 1 == job.epochs):
        score: Score = evaluate(engine.model, job.test, precision=engine.precision, loss=job.loss)
        row = replace(row, test_accuracy=score.accuracy, test_loss=score.loss)
    return row, following


def is_over(job: Job, history: History) -> bool:
    return len(history) >= job.epochs or (len(history) > 0 and should_stop(job.stop, history))


def save(job: Job, history: History) -> None:
    assert job.checkpoint is not None
    save_run(job.checkpoint, history, job.recipe, job.engine.model, job.engine.optimizer, job.grower)


@contextmanager
def kept_on_interrupt(job: Job, history: History) -> Iterator[None]:
    """With a folder to keep the run in, an interrupted epoch is undone and the state at its start saved."""
    if job.checkpoint is None:
        yield
        return
    engine = job.engine
    kept, identity = keep([*engine.list_model(), *list_state(engine.optimizer)]), identify(engine.list_model())
    grower = copy.deepcopy(job.grower.state_dict()) if job.grower is not None else None
    try:
        yield
    except KeyboardInterrupt:
        if identity == identify(engine.list_model()):  # else a growth was under way, and an older checkpoint must do
            put_back(kept, list_state(engine.optimizer))
            if job.grower is not None and grower is not None:
                job.grower.load_state_dict(grower)
            save(job, history)
        raise


def describe(group: dict[str, Any]) -> dict[str, Any]:
    """What a parameter group says of its recipe, and not of its device."""
    told = {key: value for key, value in group.items() if key in ("momentum", "nesterov", "weight_decay", "betas")}
    return {"lr": float(group["lr"])} | told


def check_numbers(**numbers: int) -> None:
    for name, value in numbers.items():
        if not isinstance(value, int) or isinstance(value, bool) or value < 1:
            raise FireflyError(f"{name}={value!r}: give a whole number from 1 up")


def find_device(device: torch.device | str | None) -> torch.device:
    """The device to train on; a GPU with its number."""
    place = torch.device(device or ("cuda" if torch.cuda.is_available() else "cpu"))
    if place.type == "cuda" and not torch.cuda.is_available():
        raise FireflyError(f"device={place}, but torch finds no GPU: use device='cpu'")
    if place.type == "cuda" and place.index is None:
        return torch.device("cuda", torch.cuda.current_device())
    return place
