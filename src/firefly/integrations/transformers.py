"""Growth inside the Hugging Face `Trainer`: one callback; optimiser, schedule and checkpoints go on.

    trainer = Trainer(model, args, train_dataset=data)
    trainer.add_callback(FireflyCallback(trainer, budget=firefly.Parameters(fraction=0.3), schedule=firefly.Every(1)))
    trainer.train()                                    # resume_from_checkpoint= with a small model, as it was at first
    model = from_pretrained(GPT2LMHeadModel, folder)   # what save_pretrained wrote, here or by the trainer

Checkpoints carry the architecture in the model's state (`carry_architecture`), so that a resumed trainer and
`load_best_model_at_end` rebuild the model before the weights come. The config says the grown sizes where it can, and
plain `from_pretrained` loads the model then; where it cannot, `from_pretrained` of this file does (`configs.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from firefly.checkpoint import rebuild
from firefly.checkpoint.architecture import list_growths
from firefly.checkpoint.model import CARRIED
from firefly.descent import Firefly
from firefly.errors import FireflyError
from firefly.integrations.configs import KEY, carry_architecture, find_tied, update_config
from firefly.integrations.watching import attributes_kept, check_schedule, find_network, read_apart, silent, summarise
from firefly.ranks.wrap import rewrap
from firefly.stages.budget import Tied

try:
    from transformers import AutoConfig, TrainerCallback
    from transformers.trainer_utils import has_length
except ModuleNotFoundError as error:
    raise ImportError("transformers is not installed: pip install 'firefly-descent[transformers]'") from error

LABELS = {"labels", "label", "label_ids", "start_positions", "end_positions"}
PLACE = {"revision", "subfolder", "cache_dir", "token", "local_files_only", "force_download", "proxies"}  # of a config
ROWS = 4  # of a batch that the example has at most


class FireflyCallback(TrainerCallback):
    """Grows the trainer's model on a schedule. Its options are those of `firefly.Firefly`, and these.

    Args:
        unit: what the schedule counts, "epoch" or "step"
        monitor: the logged metric that `Plateau` looks at, such as "eval_loss"; it is asked once for each value
        tied: grow only what the config has words for, equal in all layers; plain `from_pretrained` loads the model then
        example: what the model takes; None takes it from a batch
        loss: `loss(model, batch)`; None takes the trainer's own
        batches: to grow on; None takes the trainer's own

    `callback.history` holds every growth as plain JSON, `callback.grower` the `firefly.Firefly`.
    """

    def __init__(
        self,
        trainer: Any,
        *,
        unit: str = "epoch",
        monitor: str | None = None,
        tied: bool = False,
        example: Any = None,
        loss: Callable[[Any, Any], Tensor] | None = None,
        batches: Iterable[Any] | None = None,
        **options: Any,
    ) -> None:
        if trainer.is_fsdp_enabled or trainer.is_deepspeed_enabled:
            raise FireflyError(
                "a model that FSDP or DeepSpeed shards cannot grow inside the Trainer: use DDP, torchrun"
            )
        self.trainer, self.unit, self.monitor, self.tied = trainer, unit, monitor, tied
        self.loss, self.batches, self.seen = loss, batches, 0
        self.grower = Firefly(carry_architecture(trainer.model), example, **options)
        check_schedule(self.grower.schedule, unit, monitor)

    @property
    def history(self) -> list[dict[str, Any]]:
        return self.grower.history

    def on_train_begin(self, args: Any, state: Any, control: Any, **given: Any) -> None:
        """A resumed run goes on with the schedule where it was."""
        if self.unit == "epoch" and not has_length(given["train_dataloader"]):
            raise FireflyError(
                "the training data have no length, so the trainer counts no epochs: let the schedule count steps, "
                "unit='step'"
            )
        self.seen = 0
        if KEY in state.stateful_callbacks:
            saved = state.stateful_callbacks[KEY]
            self.seen = saved["seen"] if saved["monitor"] == self.monitor else 0
            if saved["kind"] == type(self.grower.schedule).__name__:  # one of another kind begins anew
                self.grower.schedule.load_state_dict(saved["schedule"])

    def on_epoch_begin(self, args: Any, state: Any, control: Any, **given: Any) -> None:
        """What is due at the end of an epoch comes now; not when a run is resumed in the middle of one."""
        if self.unit == "epoch" and state.epoch and state.epoch == int(state.epoch):
            self._ask(int(state.epoch) - 1, **given)

    def on_step_end(self, args: Any, state: Any, control: Any, **given: Any) -> None:
        if self.unit == "step" and state.global_step < state.max_steps:
            self._ask(state.global_step - 1, **given)

    def _ask(self, time: int, model: Any, optimizer: Any, train_dataloader: Any, **rest: Any) -> None:
        values = self._list_metrics()
        if self.monitor is not None and len(values) == self.seen:
            return
        due = self.grower.due(time, values[-1] if values else None)
        self.seen = len(values)
        schedule = self.grower.schedule
        state = {"seen": self.seen, "monitor": self.monitor, "kind": type(schedule).__name__}
        self.trainer.state.stateful_callbacks[KEY] = state | {"schedule": schedule.state_dict()}
        if due:
            carry_architecture(model).train()  # an evaluation may have come before
            batches = self.batches
            if batches is None:
                set_epoch(train_dataloader, int(self.trainer.state.epoch or 0))
                batches = Loaded(self.trainer, train_dataloader)
            with torch.random.fork_rng(devices=[]), silent(self.trainer, "log"):
                torch.manual_seed(self.grower.seed + time + 1)  # a loader that shuffles does so alike in a resumed run
                self._prepare(model, batches)
                growth = self.grower.grow(self._compute_loss, batches, getattr(optimizer, "optimizer", optimizer))
            rewrap(self.trainer.model_wrapped)
            if hasattr(model, "config"):
                update_config(model)
            numbers = {f"firefly/{name}": float(value) for name, value in summarise(growth).items()}
            self.trainer.log(numbers | {"firefly/parameters": growth.parameters[1]})

    def _list_metrics(self) -> list[float]:
        """Every value of the metric that was logged."""
        return [float(row[self.monitor]) for row in self.trainer.state.log_history if self.monitor in row]

    def on_evaluate(self, args: Any, state: Any, control: Any, metrics: Any = None, **given: Any) -> None:
        if self.monitor is not None and self.monitor.startswith("eval_") and self.monitor not in metrics:
            known = ", ".join(sorted(metrics))
            raise FireflyError(f"monitor={self.monitor!r} is no metric of the evaluation; it has: {known}")

    def _compute_loss(self, model: Any, batch: Any) -> Tensor:
        if self.loss is not None:
            return self.loss(model, batch)
        with attributes_kept(self.trainer):
            found: Tensor = self.trainer.compute_loss(model, dict(batch) if isinstance(batch, Mapping) else batch)
        return found

    def _prepare(self, model: Any, batches: Iterable[Any]) -> None:
        """What the grower still lacks: the example, and what is tied."""
        grower = self.grower
        grower.model = model
        if len(grower.history) < len(past := list_growths(model)):  # a resumed run
            grower.history = past
        if grower.example is None:
            batch = next(iter(batches))
            path, call = find_network(model, lambda: self._compute_loss(model, batch))
            grower.example = make_example(model, call.kwargs) if not path and not call.args else call
        if self.tied:
            self.tied = False
            groups = find_tied(model, grower.anatomy)
            if not groups:
                raise FireflyError(f"the config of {type(model).__name__} has no words for any width: leave out tied=")
            grower.budget &= Tied(*groups)
            grower.widths = keep_widths(grower.widths, {name for group in groups for name in group})


def keep_widths(widths: Any, names: set[str]) -> Any:
    """Of the widths that were asked for those with these names."""
    if widths is None or callable(widths):
        return lambda width: width.name in names and (widths is None or widths(width))
    return [name for name in ([widths] if isinstance(widths, str) else widths) if name in names]


def make_example(model: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """What the model takes for a few rows of these inputs when it need not compute a loss."""
    example = {name: value for name, value in inputs.items() if name not in LABELS}
    labels = inputs.get("labels")
    if getattr(getattr(model, "config", None), "is_encoder_decoder", False) and isinstance(labels, Tensor):
        shift = getattr(model, "prepare_decoder_input_ids_from_labels", lambda labels: labels.clamp(min=0))
        example.setdefault("decoder_input_ids", shift(labels))
    tensors = [value for value in example.values() if isinstance(value, Tensor) and value.ndim]
    if len({len(tensor) for tensor in tensors}) == 1:
        example = {
            n: value[:ROWS] if isinstance(value, Tensor) and value.ndim else value for n, value in example.items()
        }
    return example


class Loaded:
    """The training batches where the model is, as a training step gets them."""

    def __init__(self, trainer: Any, loader: Any) -> None:
        self.trainer, self.loader = trainer, getattr(loader, "base_dataloader", loader)  # no count of its steps

    def __iter__(self) -> Iterator[Any]:
        for batch in read_apart(self.loader):
            yield self.trainer._prepare_inputs(batch)


def set_epoch(loader: Any, epoch: int) -> None:
    """Let the loader shuffle as in this epoch, also in a run that was resumed in it."""
    inner: Any = getattr(getattr(loader, "batch_sampler", None), "batch_sampler", None)
    for one in (loader, inner):
        if hasattr(one, "set_epoch"):
            one.set_epoch(epoch)


def from_pretrained(kind: Any, folder: Any, **options: Any) -> Any:
    """`kind.from_pretrained(folder, ...)` for a model that may have grown: it is rebuilt before the weights come."""
    if isinstance(kind, nn.Module) or not hasattr(kind, "from_pretrained"):
        raise FireflyError(f"from_pretrained takes the class of the model first, then the folder, not {kind!r:.80}")
    kind = find_kind(kind, folder, options)

    class Grown(kind):
        def __init__(self, config: Any, *args: Any, **kwargs: Any) -> None:
            super().__init__(config, *args, **kwargs)
            if getattr(config, KEY, None) is not None:
                rebuild(self, fit_base(getattr(config, KEY), self), strict=False)

    for name in ("__name__", "__qualname__", "__module__"):  # by which transformers finds how it stores the weights
        setattr(Grown, name, getattr(kind, name))
    Grown._keys_to_ignore_on_load_unexpected = [*(kind._keys_to_ignore_on_load_unexpected or ()), CARRIED]
    try:
        found = Grown.from_pretrained(folder, **options)
    except RuntimeError as error:
        if "mismatch" not in str(error):
            raise
        raise FireflyError(
            f"{folder} holds weights of other sizes than its config says: its model grew, or came by firefly.load, and "
            "was saved without firefly.integrations.configs.update_config(model) before"
        ) from error
    model = found[0] if isinstance(found, tuple) else found  # with output_loading_info
    model.__class__ = kind
    return found


def find_kind(kind: Any, folder: Any, options: Mapping[str, Any]) -> Any:
    """The class of the model; an AutoModel stands for one of several."""
    kinds = getattr(kind, "_model_mapping", None)
    if kinds is None:
        return kind
    config = options.get("config") or AutoConfig.from_pretrained(folder, **{n: options[n] for n in PLACE & {*options}})
    found = kinds[type(config)]
    several = found if isinstance(found, (tuple, list)) else (found,)
    return next((one for one in several if one.__name__ in (config.architectures or ())), several[0])


def fit_base(saved: Mapping[str, Any], model: Any) -> Mapping[str, Any]:
    """The architecture by this model's names: it may be the bare body of what was saved, or put a head around it."""
    base = model.base_model_prefix
    has, had = hasattr(model, base), base in saved["attributes"]
    if has == had:
        return saved

    def rename(name: str) -> str:
        return f"{base}.{name}".rstrip(".") if has else name.removeprefix(base).removeprefix(".")

    def pick(named: Mapping[str, Any]) -> dict[str, Any]:
        return {rename(name): value for name, value in named.items() if has or f"{name}.".startswith(f"{base}.")}

    history = [growth | {key: pick(growth[key]) for key in ("added", "widths", "gains")} for growth in saved["history"]]
    deeper = [layer | {"path": path} for layer in saved["deeper"] for path in pick({layer["path"]: None})]
    named = {key: pick(saved[key]) for key in ("shapes", "attributes")}
    return {**saved, **named, "history": history, "deeper": deeper}
