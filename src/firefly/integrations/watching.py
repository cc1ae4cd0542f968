"""What a trainer's step does, found by looking on: which network it runs on what, without a trace left behind."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import nn
from torch.optim.swa_utils import AveragedModel

from firefly.anatomy.examples import Call
from firefly.errors import FireflyError
from firefly.growth import Growth
from firefly.schedule import Plateau, Schedule
from firefly.surgery.swap import clone_buffers, swapped


def read_apart(loader: Any) -> Iterator[Any]:
    """The batches of a loader, while others read it: workers that persist go on with the pass that they are in."""
    return loader._get_iterator() if getattr(loader, "persistent_workers", False) else iter(loader)


def check_schedule(schedule: Schedule, unit: str, monitor: str | None) -> None:
    """Refuse what no trainer can answer."""
    if unit not in ("epoch", "step"):
        raise FireflyError(f"unit={unit!r}: the schedule counts every 'epoch' or every 'step'")
    if isinstance(schedule, Plateau) and monitor is None:
        raise FireflyError(f"{schedule!r} looks at a metric: name the one that is logged, such as monitor='val_loss'")


def find_network(module: nn.Module, step: Callable[[], Any], wanted: str | None = None) -> tuple[str, Call]:
    """The path of the one network in the module that a step runs, "" for the module itself, and its arguments.

    wanted: the path of a network, if several are run
    """
    calls: list[tuple[str, Call]] = []
    inside: list[nn.Module] = []

    def note(path: str) -> Callable[..., None]:
        def enter(one: nn.Module, args: Any, kwargs: Any) -> None:
            if path == wanted or (wanted is None and not inside):
                calls.append((path, Call("forward", *args, **kwargs)))
            inside.append(one)

        return enter

    def leave(one: nn.Module, args: Any, kwargs: Any, output: Any) -> None:
        inside.pop()

    with ExitStack() as hooks, torch.no_grad(), swapped(module, clone_buffers(module)), attributes_kept(module):
        for path, one in module.named_modules():
            if next(one.parameters(), None) is not None:
                hooks.callback(one.register_forward_pre_hook(note(path), with_kwargs=True).remove)
                hooks.callback(one.register_forward_hook(leave, with_kwargs=True, always_call=True).remove)
        step()
    paths = list(dict.fromkeys(path for path, _ in calls))
    if len(paths) != 1:
        runs = f"several networks ({', '.join(paths)})" if paths else f"no network {wanted or ''}".rstrip()
        raise FireflyError(
            f"the training step of {type(module).__name__} runs {runs}: name the one that shall grow, network=..., or "
            "write a forward that runs all that shall grow and call it in the step, self(x)"
        )
    return calls[0]


def find_averages(holders: Any, module: nn.Module) -> list[nn.Module]:
    """The averages of the module's weights that these objects hold, such as the callbacks of a trainer."""
    held = [value for holder in holders for value in vars(holder).values() if isinstance(value, nn.Module)]
    inner = [one.module if isinstance(one, AveragedModel) else one for one in held]
    return [one for one in inner if type(one) is type(module) and one is not module]


def find_inner_averages(module: nn.Module) -> dict[str, list[nn.Module]]:
    """The averages that are parts of the module themselves, by the path of what they may average."""
    averages = [one.module for one in module.modules() if isinstance(one, AveragedModel)]
    inside = {id(part) for average in averages for part in average.modules()}
    others = {path: get_form(part) for path, part in module.named_modules() if id(part) not in inside}
    found = {path: [one for one in averages if get_form(one) == form] for path, form in others.items()}
    return {path: some for path, some in found.items() if some}


def get_form(module: nn.Module) -> Any:
    return type(module), tuple(p.shape for p in module.parameters())


def is_all(part: nn.Module, whole: nn.Module) -> bool:
    """Whether the part has all parameters of the whole, averages aside."""
    averages = [one for one in whole.modules() if isinstance(one, AveragedModel)]
    aside = {id(p) for one in (part, *averages) for p in one.parameters()}
    return all(id(p) in aside for p in whole.parameters())


def check_averages(averages: Iterable[str], network: str) -> None:
    """Refuse averages of a part of the network, which could not follow it."""
    for path in averages:
        if path != network and (not network or path.startswith(f"{network}.")):
            raise FireflyError(
                f"the module holds an average of {path} alone, which grows as a part of {network or 'the module'}: "
                f"average all of it, or grow that part, network={path!r}"
            )


def leave_no_trace(loss: Callable[[Any, Any], Any], network: str) -> Callable[[Any, Any], Any]:
    """The same loss, but a step leaves buffers outside the network and what it notes on the module as they were."""
    inside = f"{network}." if network else ""

    def compute(module: nn.Module, batch: Any) -> Any:
        others = {name: one.clone() for name, one in module.named_buffers() if not name.startswith(inside)}
        with swapped(module, others), attributes_kept(module):
            return loss(module, batch)

    return compute


@contextmanager
def attributes_kept(module: nn.Module) -> Iterator[None]:
    """The module's attributes are afterwards what they were, and its lists hold what they held."""
    own, lists = dict(vars(module)), [(one, list(one)) for one in vars(module).values() if type(one) is list]
    try:
        yield
    finally:
        vars(module).update(own)
        for one, items in lists:
            one[:] = items


@contextmanager
def silent(owner: Any, *names: str) -> Iterator[None]:
    """Inside, these methods of the owner do nothing."""
    for name in names:
        setattr(owner, name, lambda *args, **kwargs: None)
    try:
        yield
    finally:
        for name in names:
            delattr(owner, name)


@contextmanager
def metrics_kept(module: nn.Module) -> Iterator[None]:
    """What the module's torchmetrics have counted is afterwards as it was."""
    metrics = [one for one in module.modules() if hasattr(one, "metric_state")]
    kept = [(one, copy.deepcopy({k: v for k, v in vars(one).items() if is_state(k, one)})) for one in metrics]
    try:
        yield
    finally:
        for one, state in kept:
            vars(one).update(state)


def is_state(name: str, metric: Any) -> bool:
    return name in metric.metric_state or name in ("_update_count", "_computed", "_forward_cache", "_cache")


def summarise(growth: Growth | None) -> dict[str, float]:
    """The numbers of a growth to log, none if there was none."""
    if growth is None:
        return {}
    losses = {"loss_before": growth.loss_before, "loss_after": growth.loss_after, "predicted": growth.predicted}
    return {"neurons": growth.neurons, **losses, "seconds": sum(growth.seconds.values())}
