"""`fit`: train a classifier, fast, with growth, early stop, and exact resume (Alg. 1, step 1; Sec. 3, app. B.2).

The loop over epochs is here; the steps of an epoch are in `engine.py`, the data in `resident.py`, the recipe in
`recipe.py` and the folder of a run in `resume.py`.
"""

from __future__ import annotations

import copy
import math
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from firefly.errors import FireflyError
from firefly.ranks.talk import decide
from firefly.ranks.wrap import bare
from firefly.surgery.guard import unbroken
from firefly.training.average import make_average
from firefly.training.capture import identify, keep, put_back
from firefly.training.engine import Engine
from firefly.training.growing import Grower, GrowOn, check_grower, grow_captured, tell_grower
from firefly.training.history import Epoch, History, Progress, should_stop
from firefly.training.joining import begin, check_share, choose_seed, join_scores, take_part, take_share
from firefly.training.lock import Lock, hold
from firefly.training.optimizer import check_optimizer, copy_state, make_optimizer, restore_state, tell_groups
from firefly.training.recipe import Recipe, read_recipe, settle, tell
from firefly.training.resident import Batches, Resident, draw, fingerprint, mix, upload
from firefly.training.resume import Json, Pending, Trained, load_run, save_run
from firefly.training.score import check_labels, evaluate

EachEpoch = Callable[[int, History, nn.Module], Any]


def fit(
    model: nn.Module,
    data: Any,
    epochs: int | None = None,
    *,
    recipe: Recipe | None = None,
    test: Any = None,
    optimizer: Optimizer | None = None,
    grower: Grower | None = None,
    grow_on: GrowOn = None,
    each_epoch: EachEpoch | None = None,
    checkpoint: Any = None,
    progress: bool = True,
    **how: Any,
) -> History:
    """Train `model` in place and return what happened.

    How it is trained says a `Recipe`, given as `recipe=`, or in the same words here: `fit(model, data, 100, lr=0.05)`.

    - `data`, `test`: an object with `images` (N, C, H, W) uint8, `labels` and perhaps `mean` and `std`, or a pair of
      tensors; inputs that are not uint8 are used as they are.
    - `optimizer`: your own instead of SGD; its learning rates follow the schedule and are as before afterwards.
      Gradients that the model has are dropped, as at the beginning of every step.
    - `grower`: a `firefly.Firefly` or an object like it, asked after every epoch but the last, with the training loss
      as its metric. Only its own growths change it. On a GPU step one is captured, as the steps of training are.
    - `grow_on`: what it grows on, if not the epoch's batches: data as above, or a function from the number of the epoch
      to batches.
    - `each_epoch`: `each_epoch(epoch, history, model)` before every epoch (the first is 0), with the history so far;
      no further one is trained if it returns True. A value that the model reads and that changes from epoch to epoch,
      such as the rate of drop-path, must be a buffer that is written in place (`model.rate.fill_(0.2)`): a captured
      step sees no other change. What it does must depend on its arguments alone, since a run that is taken up asks it
      anew.
    - `checkpoint`: a folder. A run found there is continued exactly; Ctrl-C leaves one. It is locked meanwhile.
    - `progress`: show how far it is, on stderr.

    On several ranks (`torchrun`) each takes its part of every batch, and the first one keeps the folder.
    """
    model, recipe = bare(model), settle(read_recipe(recipe, epochs, how))
    check_share(recipe.batch)
    check_objects(model, optimizer, each_epoch)
    if grower is not None:
        check_grower(grower, model, ema=recipe.ema is not None, kept=checkpoint is not None)
    place = torch.device(recipe.device or "cpu")
    layout: dict[str, Any] = {"channels_last": recipe.channels_last}
    train = layout | {"augment": recipe.augment, "cutout": recipe.cutout}
    resident = upload(data, place, **train)
    check_batch(resident, recipe.batch, "data")
    held = None if test is None else upload(test, place, like=data, name="test", **layout)
    if held is not None:
        check_labels(held)
    if grow_on is not None and not callable(grow_on):
        grow_on = upload(grow_on, place, like=data, name="grow_on", **train)
        check_batch(grow_on, recipe.batch, "grow_on")
    model.to(place)
    average = None if recipe.ema is None else make_average(model)
    trained = Trained(model, optimizer or make_optimizer(model, recipe), grower, average)
    told = recipe.to_dict() | {"images": len(resident), "optimizer": tell_groups(trained.optimizer)}
    if checkpoint is not None:
        told |= {"data": fingerprint(resident), "grower": tell_grower(grower)}
        told |= {"grow_on": fingerprint(grow_on) if isinstance(grow_on, Resident) else tell(grow_on)}
        told |= {} if held is None else {"test": fingerprint(held)}  # one may also be added later
    with ExitStack() as stack:
        lock = None if checkpoint is None else stack.enter_context(hold(checkpoint))
        begun: tuple[History, Pending] = (History(), "nothing") if lock is None else load_run(lock, told, trained)
        begin([model, *([] if average is None else [average])], {"fit": told | {"device": place.type}})
        engine = Engine(model, resident, trained.optimizer, recipe, average)
        stack.callback(engine.release)
        line = Progress(recipe.epochs, engine.steps, progress)
        stack.callback(line.close)
        stack.enter_context(torch.random.fork_rng([place] if place.type == "cuda" else []))
        tables = lru_cache(maxsize=4)(lambda data, epoch: take_part(draw(data, recipe.batch, recipe.seed, epoch)))
        share = None if held is None else take_share(held)
        job = Job(recipe, trained, engine, share, grow_on, each_epoch, lock, told, line, tables)
        return replace(run(job, *begun), average=average)


@dataclass(frozen=True, eq=False)
class Job:
    """A training as `fit` was asked for it."""

    recipe: Recipe
    trained: Trained
    engine: Engine
    test: Resident | None
    grow_on: GrowOn
    each_epoch: EachEpoch | None
    lock: Lock | None
    told: Json  # the recipe, as the folder keeps it
    line: Progress
    draw: Callable[[Resident, int], Tensor]  # the batches of an epoch; the last few are remembered


def run(job: Job, history: History, pending: Pending) -> History:
    """Epoch after epoch, from where the history ends. Saving may take a twentieth of the time.

    Before a growth the epoch is kept: whoever is stopped in a growth loses that growth and no more.
    """
    saved, cost = time.perf_counter(), 0.0
    over = is_over(job, history)
    if not over and pending != "nothing":  # it was stopped before it had grown
        job.engine.prepare()
        if pending == "growth" or is_due(job, history):
            history = grow(job, history)
        save(job, history)
    while not over:
        job.engine.prepare()
        with kept_on_interrupt(job, history):
            if job.each_epoch is not None and decide(job.each_epoch(len(history), history, job.trained.model) is True):
                save(job, history)
                break
            longer = history.add(train_epoch(job, len(history)))
            over = is_over(job, longer)
            due = not over and is_due(job, longer)
            if due:
                save(job, longer, "growth")
        history = grow(job, longer) if due else longer
        job.line.show_epoch(history[-1], history.accuracy, over)
        if over or due or time.perf_counter() - saved >= 20 * cost:
            start = time.perf_counter()
            save(job, history, "question" if over else "nothing")
            saved = time.perf_counter()
            cost = saved - start
    return history


def train_epoch(job: Job, epoch: int) -> Epoch:
    """One epoch and its evaluation; the next epoch's batches are drawn while the GPU works."""
    engine, recipe = job.engine, job.recipe
    torch.manual_seed(choose_seed(recipe.seed, epoch))  # for dropout
    rate = float(engine.optimizer.param_groups[0]["lr"]) * engine.list_factors(epoch)[0]
    start = time.perf_counter()
    mean = engine.train(epoch, job.draw(engine.data, epoch), lambda step: job.line.show_step(epoch + 1, step))
    job.draw(engine.data, epoch + 1)
    loss = float(mean)
    seconds = time.perf_counter() - start
    if not math.isfinite(loss):
        raise FireflyError(
            f"the training loss became {loss} in epoch {epoch + 1}, at lr={rate:.3g}: lower lr, or check data and loss"
        )
    parameters = sum(parameter.numel() for parameter in engine.model.parameters())
    row = Epoch(epoch + 1, loss, rate, seconds, parameters)
    if job.test is not None and ((epoch + 1) % recipe.evaluate_every == 0 or epoch + 1 == recipe.epochs):
        shown = engine.model if engine.average is None else engine.average
        score = join_scores(evaluate(shown, job.test, precision=engine.precision, loss=recipe.loss), len(job.test))
        row = replace(row, test_accuracy=score.accuracy, test_loss=score.loss)
    return row


def is_due(job: Job, history: History) -> bool:
    """Ask the grower after an epoch."""
    grower = job.trained.grower
    return grower is not None and decide(bool(grower.due(len(history) - 1, history[-1].loss)))


def grow(job: Job, history: History) -> History:
    """Let the grower grow after an epoch; the history says so."""
    trained, epoch = job.trained, len(history) - 1
    assert trained.grower is not None
    with kept_on_interrupt(job, history, "growth"):
        torch.manual_seed(mix(job.recipe.seed, epoch))
        trained.model.train()
        batches, graph = find_batches(job, epoch), job.engine.graph
        grow_captured(trained.grower, job.engine.loss, batches, trained.optimizer, trained.average, graph=graph)
    return history.mark_grown()


def find_batches(job: Job, epoch: int) -> Iterable[Any]:
    """What a growth after this epoch looks at."""
    if callable(job.grow_on):
        found: Iterable[Any] = job.grow_on(epoch)
        return found
    data = job.engine.data if job.grow_on is None else job.grow_on
    return Batches(data, job.draw(data, epoch))


def is_over(job: Job, history: History) -> bool:
    return len(history) >= job.recipe.epochs or (len(history) > 0 and decide(should_stop(job.recipe.stop, history)))


def save(job: Job, history: History, pending: Pending = "nothing") -> None:
    if job.lock is not None:
        save_run(job.lock, job.trained, history, job.told, pending)


@contextmanager
def kept_on_interrupt(job: Job, history: History, pending: Pending = "nothing") -> Iterator[None]:
    """With a folder to keep the run in, what is interrupted, an epoch or a growth, is undone and its start saved."""
    if job.lock is None or not job.lock.writes:
        yield
        return
    engine, grower = job.engine, job.trained.grower
    kept, identity = keep(engine.list_model()), identify(engine.list_model())
    state = copy_state(engine.optimizer)
    grown = None if grower is None else copy.deepcopy(grower.state_dict())
    try:
        yield
    except KeyboardInterrupt:
        if identity == identify(engine.list_model()):  # else it has just grown, and an older checkpoint must do
            with unbroken():
                put_back(kept)
                restore_state(engine.optimizer, state)
                if grower is not None and grown is not None:
                    grower.load_state_dict(grown)
                save(job, history, pending)
        raise


def check_objects(model: Any, optimizer: Any, each_epoch: Any) -> None:
    """Refuse what is no model, optimiser or function."""
    if not isinstance(model, nn.Module):
        raise FireflyError(f"the model must be an nn.Module, not {type(model).__name__}")
    if optimizer is not None:
        check_optimizer(optimizer, model)
    if each_epoch is not None and not callable(each_epoch):
        raise FireflyError(f"each_epoch={each_epoch!r}: give a function of (epoch, history, model)")


def check_batch(data: Resident, batch: int, name: str) -> None:
    if batch > len(data):
        raise FireflyError(f"batch={batch} is more than the {len(data)} images of {name}: use a smaller batch")
