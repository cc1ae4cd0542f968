"""Continual learning inside Avalanche: a `SupervisedPlugin` that keeps a `firefly.continual.Master` (Sec. 2.4).

    master = Master(make, torch.zeros(2, 3, 32, 32), "run/")
    plugin = FireflyPlugin(master, budget=firefly.Parameters(50_000))
    strategy = Naive(model=make(2), optimizer=SGD(...), train_epochs=40, plugins=[plugin], ...)
    for experience in benchmark.train_stream:
        strategy.train(experience)
        strategy.eval(benchmark.test_stream)     # every task by its own network: nothing is forgotten

The strategy trains as ever. The plugin gives it the network of each new task, holds what older tasks own, grows in the
middle, and keeps the task when its training is over. Tasks are told apart by their labels, so the benchmark needs them
(`return_task_id=True`, and `class_ids_from_zero_in_each_exp=True` so that heads are as small as they can be). A task
of which nothing was learnt yet is answered by a fresh head.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator
from itertools import islice
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from firefly.continual import Master
from firefly.continual.growing import grow_pupil
from firefly.continual.lesson import Lesson, Pupil
from firefly.continual.lock import lock
from firefly.descent import BUDGET, STEPS
from firefly.errors import FireflyError
from firefly.neighborhood.kinds import Kind
from firefly.stages.budget import Budget
from firefly.training import Recipe

try:
    from avalanche.core import SupervisedPlugin
except ImportError:  # its hooks are found by name, whatever the class
    SupervisedPlugin = object


class FireflyPlugin(SupervisedPlugin):
    """Learns every task of the strategy's stream in one master.

    Args:
        master: a `firefly.continual.Master`; tasks that it holds already can be evaluated at once.
        grow_after: the epochs after which the network grows; None for once, after half of them.
        pick: "all" begins a task with all older neurons, "none" with a small network of its own.
        loss: `loss(model, batch)` for growths; None takes the strategy's criterion.

    The others are those of `Master.learn`.
    """

    def __init__(
        self,
        master: Master,
        *,
        grow_after: Collection[int] | None = None,
        pick: str = "all",
        neighborhood: Kind | Iterable[Kind] | None = None,
        budget: Budget = BUDGET,
        listen: bool = True,
        loss: Callable[[nn.Module, Any], Tensor] | None = None,
        seed: int = 0,
        **growing: Any,
    ) -> None:
        super().__init__()
        if pick not in ("all", "none"):
            raise FireflyError(f"pick={pick!r}: here it is 'all' or 'none'; a mask is trained by Master.learn")
        self.master, self.grow_after, self.loss = master, grow_after, loss
        self.how: Any = {"pick": pick, "neighborhood": neighborhood, "budget": budget, "listen": listen, "seed": seed}
        self.growing = growing
        self.lesson = self._prepare("a task", 2)  # refuses wrong options now
        self.pupil: Pupil | None = None  # of the task that is being learnt
        self.handle: Any = None

    def _prepare(self, name: str, classes: int) -> Lesson:
        still: Any = {"recipe": Recipe(1), "first": None, "growths": None, "until": None, "progress": False}
        return Lesson(name=name, classes=classes, growing=self.growing, **self.how, **still)

    # ---- training ----------------------------------------------------------------------------------------------------

    def before_training_exp(self, strategy: Any, *_: Any, **__: Any) -> None:
        """The network of the new task takes the place of the strategy's, and what older ones own is held."""
        name, classes = name_task(strategy.experience), count_classes(strategy.experience)
        if name in self.master:
            raise FireflyError(
                f"{name!r} was learnt already, and stays as it is: every experience needs a task label of its own; "
                "make the benchmark with return_task_id=True"
            )
        self.lesson = self._prepare(name, classes)
        if self.pupil is not None:  # of a training that was interrupted
            self.handle.remove()
        self.pupil = Pupil(*self._begin(classes, self.how["pick"]))
        self._install(strategy)

    def before_training_epoch(self, strategy: Any, *_: Any, **__: Any) -> None:
        if self.pupil is not None and self.pupil.epochs["training"] in self._list_epochs(strategy):
            self._grow(strategy, self.pupil)

    def after_training_epoch(self, strategy: Any, *_: Any, **__: Any) -> None:
        if self.pupil is not None:
            self.pupil.epochs["training"] += 1

    def after_training_exp(self, strategy: Any, *_: Any, **__: Any) -> None:
        """Keep the task; the strategy goes on with a copy of its network."""
        if self.pupil is None:
            return
        self.handle.remove()
        pupil, name = self.pupil, self.lesson.name
        unheard = pupil.find_unheard(self.lesson.listen)
        told = {"accuracy": measure(strategy), "accuracy_of": "training images", "rounds": [], "epochs": pupil.epochs}
        told |= {"growths": pupil.growths, "lesson": self.lesson.tell(), **({"unheard": unheard} if unheard else {})}
        self.master.add(name, self.lesson.classes, pupil.lists, pupil.model, told)
        self.pupil = None
        put_model(strategy, self.master.network(name))

    def _list_epochs(self, strategy: Any) -> Collection[int]:
        return (strategy.train_epochs // 2,) if self.grow_after is None else self.grow_after

    def _grow(self, strategy: Any, pupil: Pupil) -> None:
        self.handle.remove()
        loss = self.loss or (lambda model, batch: find_loss(strategy)(model(batch[0]), batch[1]))
        steps = self.growing.get("steps", STEPS)
        batches = list(islice(read_batches(strategy), steps + self.growing.get("evaluate_on", 8)))
        grow_pupil(self.master, self.lesson, pupil, loss, batches)
        pupil.epochs["step one"] += steps / len(strategy.dataloader)
        self._install(strategy)

    def _install(self, strategy: Any) -> None:
        """The task's network, with an optimiser that leaves alone what older tasks own."""
        if self.pupil is not None:
            put_model(strategy, self.pupil.model.train())
            unheard = self.pupil.find_unheard(self.lesson.listen)
            self.handle = lock(strategy.optimizer, self.master.hold(self.pupil.model, self.pupil.lists, unheard))

    def _begin(self, classes: int, pick: str = "all") -> tuple[nn.Module, Any]:
        everyone = {name: torch.arange(size) for name, size in self.master.born.items()}
        return self.master.begin(classes, everyone if len(self.master) and pick == "all" else None, self.how["seed"])

    # ---- evaluation --------------------------------------------------------------------------------------------------

    def before_eval(self, strategy: Any, *_: Any, **__: Any) -> None:
        self.trained = strategy.model

    def before_eval_exp(self, strategy: Any, *_: Any, **__: Any) -> None:
        """Every task is answered by its own network."""
        name = name_task(strategy.experience)
        if name in self.master:
            model = self.master.network(name)
        elif self.pupil is not None and name == self.lesson.name:
            model = self.pupil.model
        else:
            model, _lists = self._begin(count_classes(strategy.experience))
        strategy.model = model.to(strategy.device).eval()

    def after_eval(self, strategy: Any, *_: Any, **__: Any) -> None:
        strategy.model = self.trained


def name_task(experience: Any) -> str:
    """By its task label, or by its number in the stream where there are none."""
    label = getattr(experience, "task_label", None)
    return f"task {getattr(experience, 'current_experience', 0) if label is None else label}"


def count_classes(experience: Any) -> int:
    """So many answers that every label of the experience is one of them."""
    known = getattr(experience, "classes_in_this_experience", None)
    return max(2, 1 + max(int(label) for label in (experience.dataset.targets if known is None else known)))


def put_model(strategy: Any, model: nn.Module) -> None:
    """Let the strategy train this network: its optimiser holds these parameters, and remembers nothing."""
    groups = strategy.optimizer.param_groups
    if len(groups) != 1:
        raise FireflyError(f"the optimiser has {len(groups)} parameter groups: a growing network needs exactly one")
    strategy.model = model.to(strategy.device)
    groups[0]["params"] = [parameter for parameter in model.parameters() if parameter.requires_grad]
    strategy.optimizer.state.clear()
    strategy.optimized_param_id = dict(model.named_parameters())  # what Avalanche believes the optimiser to hold


def find_loss(strategy: Any) -> Callable[[Tensor, Tensor], Tensor]:
    found: Callable[[Tensor, Tensor], Tensor] = getattr(strategy, "_criterion", functional.cross_entropy)
    return found


def read_batches(strategy: Any) -> Iterator[list[Tensor]]:
    """The batches of the experience, on the strategy's device."""
    for batch in strategy.dataloader:
        yield [part.to(strategy.device) for part in batch]


@torch.no_grad()
def measure(strategy: Any) -> float:
    """The accuracy on the images that were trained on: the plugin sees no others."""
    model, right, seen = strategy.model.eval(), 0, 0
    for images, labels, *_ in read_batches(strategy):
        right += int((model(images).argmax(1) == labels).sum())
        seen += len(labels)
    return right / max(seen, 1)
