"""Growth inside Lightning's `Trainer.fit`: one callback; optimiser, schedule, averages and checkpoints go on.

    trainer = Trainer(callbacks=[FireflyCallback(budget=firefly.Parameters(fraction=0.3), schedule=firefly.Every(10))])
    trainer.fit(module, loader)
    module = load_from_checkpoint(Net, "last.ckpt")

A growth that is due at the end of an epoch comes at the start of the next one, so none comes that no training follows.
Every checkpoint of the module carries its architecture; whoever loads it rebuilds a small module before the state comes
(`ckpt_path=` by itself, `load_from_checkpoint` of this file in place of the module's own). Takes the callbacks and
trainers of `lightning` and of `pytorch_lightning`.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from importlib import import_module
from itertools import islice
from typing import Any

import torch
from torch import Tensor, nn

from firefly.checkpoint import architecture, rebuild
from firefly.descent import Firefly
from firefly.errors import FireflyError
from firefly.growth import Growth
from firefly.integrations.watching import (
    check_averages,
    check_schedule,
    find_averages,
    find_inner_averages,
    find_network,
    is_all,
    leave_no_trace,
    metrics_kept,
    read_apart,
    silent,
    summarise,
)
from firefly.ranks.wrap import rewrap

KEY = "firefly"  # of the architecture in a checkpoint
SHARDED = ("FSDPStrategy", "DeepSpeedStrategy", "ModelParallelStrategy")


def find_callback_class() -> Any:
    """The Callback of the Lightning that is in use: the one imported already, or the first that is installed."""
    names = ("lightning.pytorch", "pytorch_lightning")
    for name in sorted(names, key=lambda name: name not in sys.modules):
        try:
            return import_module(name).Callback
        except ImportError:
            continue
    raise ImportError("Lightning is not installed: pip install 'firefly-descent[lightning]'")


class FireflyCallback(find_callback_class()):  # type: ignore[misc]
    """Grows the module's network on a schedule. Its options are those of `firefly.Firefly`, and these.

    Args:
        unit: what the schedule counts, "epoch" or "step"
        monitor: the logged metric that `Plateau` looks at; with unit="step" it is asked once after each validation
        network: the path of the submodule that grows; None finds the one that the training step runs
        also: the paths of others of the same architecture that grow along, such as a teacher; averages are found
        example: what it takes; None takes what the training step gives it
        loss: `loss(module, batch)`; None takes what `training_step` returns
        batches: to grow on; None takes the trainer's own

    `callback.history` holds every growth as plain JSON, `callback.grower` the `firefly.Firefly`.
    """

    def __init__(
        self,
        *,
        unit: str = "epoch",
        monitor: str | None = None,
        network: str | None = None,
        also: Iterable[str] = (),
        example: Any = None,
        loss: Callable[[Any, Any], Tensor] | None = None,
        batches: Iterable[Any] | None = None,
        **options: Any,
    ) -> None:
        self.grower = Firefly(nn.Linear(1, 1), None, **options)  # refuses wrong options now
        check_schedule(self.grower.schedule, unit, monitor)
        self.unit, self.monitor, self.loss, self.batches = unit, monitor, loss, batches
        self.network, self.also, self.example = network, tuple(also), example
        self.fresh = False  # whether a validation has come since
        self.asked = -1  # the last epoch or step that the schedule was asked about
        self.metric: float | None = None  # as it was logged last, also before the run was resumed
        self.trainer: Any = None

    @property
    def history(self) -> list[dict[str, Any]]:
        return self.grower.history

    @property
    def state_key(self) -> str:
        """In a checkpoint; of several callbacks each names the network that it grows."""
        return "FireflyCallback" if self.network is None else f"FireflyCallback {self.network}"

    def setup(self, trainer: Any, pl_module: Any, stage: str) -> None:
        self.trainer, self.asked, self.metric = trainer, -1, None
        carry_architecture(pl_module)
        strategy = trainer.strategy
        if stage == "fit" and type(strategy).__name__ in SHARDED:
            raise FireflyError(f"{type(strategy).__name__} shards the module, which cannot grow so: use strategy='ddp'")
        if stage == "fit" and "MultiProcessing" in type(getattr(strategy, "launcher", None)).__name__:
            raise FireflyError(
                "processes that Trainer.fit spawns cannot give a grown module back: use strategy='ddp', which starts "
                "the script anew for each device"
            )

    def on_train_epoch_start(self, trainer: Any, pl_module: Any) -> None:
        if self.unit == "epoch":
            numbers = self._tell(self._ask(trainer.current_epoch - 1, trainer, pl_module))
            numbers["firefly/parameters"] = float(sum(p.numel() for p in pl_module.parameters()))
            pl_module.log_dict(numbers, batch_size=1)

    def on_train_batch_start(self, trainer: Any, pl_module: Any, batch: Any, batch_idx: int) -> None:
        """By steps; by epochs only in a run that is resumed at the end of one, whose next one has no start."""
        time = trainer.global_step if self.unit == "step" else trainer.current_epoch
        growth = self._ask(time - 1, trainer, pl_module)
        if growth is not None:
            numbers = self._tell(growth) | {"firefly/parameters": float(growth.parameters[1])}
            for logger in trainer.loggers:
                logger.log_metrics(numbers, trainer.global_step)

    def _tell(self, growth: Growth | None) -> dict[str, float]:
        """What is logged of a growth."""
        start = "firefly" if self.network is None else f"firefly/{self.network}"
        return {f"{start}/{name}": float(value) for name, value in summarise(growth).items()}

    def on_validation_end(self, trainer: Any, pl_module: Any) -> None:
        self.fresh = self.fresh or not trainer.sanity_checking

    def _ask(self, time: int, trainer: Any, module: Any) -> Growth | None:
        """Grow if it is time; none comes twice when a run is resumed."""
        if time <= self.asked or (self.unit == "step" and self.monitor is not None and not self.fresh):
            return None
        self.fresh = False
        self.asked = time
        metric = self._read_metric()
        if self.monitor is not None and metric is None:
            if trainer.ckpt_path and not trainer.callback_metrics:  # a resumed run that looked at another one
                return None
            known = ", ".join(sorted(trainer.callback_metrics)) or "none"
            raise FireflyError(f"monitor={self.monitor!r} was not logged; the logged metrics: {known}")
        return self._grow(trainer, module) if self.grower.due(time, metric) else None

    def _read_metric(self) -> float | None:
        logged = {} if self.trainer is None or self.trainer.sanity_checking else self.trainer.callback_metrics
        if self.monitor in logged:
            self.metric = float(logged[self.monitor])
        return self.metric

    def _grow(self, trainer: Any, module: Any) -> Growth:
        batches = Loaded(trainer, module) if self.batches is None else self.batches
        with (
            torch.random.fork_rng(devices=[]),
            torch.compiler.set_stance("force_eager"),  # a compiled step knows the module's own tensors
            silent(module, "log", "log_dict"),
            metrics_kept(module),
        ):
            loss = step_loss if self.loss is None else self.loss
            path = self._find_network(module, loss, batches)
            compute = leave_no_trace(loss, path)
            self.grower.model = network = module.get_submodule(path)
            wholes = [module, *find_averages(trainer.callbacks, module)]
            also = [one.get_submodule(path) for one in wholes[1:]]
            also += [one.get_submodule(other) for one in wholes for other in self.also]
            check_averages(find_inner_averages(module), path)
            also += [average for one in wholes for average in find_inner_averages(one).get(path, ())]
            growth = self.grower.grow(
                lambda _, batch: compute(module, batch), batches, find_optimizer(trainer.optimizers, network), also=also
            )
        rewrap(trainer.strategy.model)
        return growth

    def _find_network(self, module: Any, loss: Any, batches: Iterable[Any]) -> str:
        """The path of what grows; its example is written down."""
        path, example = self.network or "", self.example
        if example is None:
            batch = next(iter(batches))
            found, example = find_network(module, lambda: loss(module, batch), self.network)
            for part in find_inner_averages(module) if self.network is None else ():
                if is_all(module.get_submodule(part), module.get_submodule(found)):  # what is averaged is what grows
                    found, example = find_network(module, lambda: loss(module, batch), part)
            path = found
        self.grower.example = example
        return path

    def state_dict(self) -> dict[str, Any]:
        own = {"asked": self.asked, "fresh": self.fresh, "metric": {self.monitor: self._read_metric()}}
        return own | self.grower.state_dict() | {"kind": type(self.grower.schedule).__name__}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Go on from there; a schedule of another kind than the run had begins anew."""
        self.asked, self.fresh = state_dict["asked"], state_dict["fresh"]
        self.metric = state_dict["metric"].get(self.monitor)
        self.grower.history = list(state_dict["history"])
        if type(self.grower.schedule).__name__ == state_dict["kind"]:
            self.grower.schedule.load_state_dict(state_dict["schedule"])


# ---- what a growth needs of the trainer ------------------------------------------------------------------------------


class Loaded:
    """The training batches where the module is and in the trainer's precision, as a training step gets them."""

    def __init__(self, trainer: Any, module: Any) -> None:
        self.trainer, self.module, self.loader = trainer, module, trainer.train_dataloader
        if isinstance(self.loader, (dict, list, tuple)) or not isinstance(self.loader, Iterable):
            kind = type(self.loader).__name__
            raise FireflyError(
                f"the training data are a {kind}: give FireflyCallback(batches=...), as the step takes them"
            )

    def __iter__(self) -> Iterator[Any]:
        count = self.trainer.num_training_batches
        for batch in islice(read_apart(self.loader), None if count == float("inf") else int(count)):
            batch = self.trainer.precision_plugin.convert_input(batch)
            batch = self.module._on_before_batch_transfer(batch, dataloader_idx=0)
            yield self.trainer.strategy.batch_to_device(batch, dataloader_idx=0)


def step_loss(module: Any, batch: Any) -> Tensor:
    """The loss that the module's training step returns."""
    names = inspect.signature(module.training_step).parameters
    if not module.automatic_optimization or "dataloader_iter" in names:
        raise FireflyError(
            "a training step that optimises or takes batches by itself cannot be asked for its loss: give "
            "FireflyCallback(loss=...), a loss(module, batch)"
        )
    several = len(names) > 1
    found = module.training_step(batch, 0) if several else module.training_step(batch)
    found = found["loss"] if isinstance(found, Mapping) else found
    if not isinstance(found, Tensor):
        raise FireflyError(f"training_step returned {type(found).__name__}, not a loss: give FireflyCallback(loss=...)")
    return found


def find_optimizer(optimizers: list[Any], network: nn.Module) -> Any:
    """The one optimiser that trains the network."""
    own = {id(p) for p in network.parameters()}
    found = [one for one in optimizers if any(id(p) in own for group in one.param_groups for p in group["params"])]
    if len(found) > 1:
        names = ", ".join(type(one).__name__ for one in found)
        raise FireflyError(f"several optimisers train the network ({names}): grow the part of one of them, network=...")
    return found[0] if found else None


# ---- checkpoints -----------------------------------------------------------------------------------------------------


def carry_architecture(module: Any) -> None:
    """From now on checkpoints of this module carry its architecture, and it is rebuilt from those that do."""
    module.on_save_checkpoint = partial(save_architecture, module)
    module.on_load_checkpoint = partial(load_architecture, module)


def save_architecture(module: Any, checkpoint: dict[str, Any]) -> None:
    type(module).on_save_checkpoint(module, checkpoint)
    checkpoint[KEY] = architecture(module)


def load_architecture(module: Any, checkpoint: dict[str, Any]) -> None:
    if KEY in checkpoint:
        callbacks = () if module._trainer is None else module._trainer.callbacks
        for one in (module, *find_averages(callbacks, module)):
            rebuild(one, checkpoint[KEY])
    type(module).on_load_checkpoint(module, checkpoint)


def load_from_checkpoint(kind: Any, path: Any, **options: Any) -> Any:
    """`kind.load_from_checkpoint(path, ...)` for a module that may have grown: it is rebuilt before the state comes."""
    if isinstance(kind, nn.Module) or not hasattr(kind, "load_from_checkpoint"):
        raise FireflyError(f"load_from_checkpoint takes the class of the module first, then the path, not {kind!r:.80}")
    own = vars(kind).get("on_load_checkpoint")
    rest = kind.on_load_checkpoint

    def rebuild_first(module: Any, checkpoint: dict[str, Any]) -> None:
        if KEY in checkpoint:
            rebuild(module, checkpoint[KEY])
        rest(module, checkpoint)

    kind.on_load_checkpoint = rebuild_first
    try:
        return kind.load_from_checkpoint(path, **options)
    finally:
        if own is None:
            del kind.on_load_checkpoint
        else:
            kind.on_load_checkpoint = own
