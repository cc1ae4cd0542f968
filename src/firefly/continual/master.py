"""Master: a network that learns task after task and forgets nothing (Sec. 2.4, Algorithm 2).

It holds all neurons ever born and, for every task, the ordered lists of those it uses, with norms and a head of its
own. The network of a task is a gather of the master's tensors along those lists: the same values and shapes for ever,
hence the same answers, bit for bit.

>>> master = Master(make, example, "run/")       # make(classes) builds the small network; the folder is optional
>>> master.learn("digits", train, valid, classes=10)
>>> model = master.network("digits")             # a plain nn.Module
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from firefly.anatomy.widths import length
from firefly.continual import learning, store
from firefly.continual.blueprint import Layouts, Make, draw_head, list_tensors, read_blueprint
from firefly.continual.lock import Held, is_still
from firefly.continual.ownership import Lists, Task, Tensors, count_born, enlarge, find_heard, find_own, find_places
from firefly.continual.picking import Pick
from firefly.continual.until import Until
from firefly.descent import BUDGET
from firefly.errors import FireflyError
from firefly.neighborhood.kinds import Kind
from firefly.stages.budget import Budget
from firefly.tensors import Layout
from firefly.training.recipe import Recipe

NOBODY: Mapping[str, int] = {}
RECIPE = Recipe(60, batch=64, lr=0.05, augment=False)  # of a task, if nobody says another one


class Master:
    """All tasks learnt so far, in one network.

    Args:
        make: `make(classes)` builds the small network; only its head may depend on the number of classes.
        example: what its forward takes.
        folder: where it is kept, one folder a task; a master found there is taken up. None keeps it in memory.
    """

    def __init__(self, make: Make, example: Any, folder: str | os.PathLike[str] | None = None) -> None:
        self.blueprint = read_blueprint(make, example)
        self.folder = None if folder is None else Path(folder)
        self.born = dict.fromkeys(self.blueprint.sizes, 0)  # neurons so far, per width
        self.tasks: dict[str, Task] = {}
        self.tensors: Tensors = {}  # the entries that tasks own, and each follower as the last task left it
        for name, tensor in list_tensors(self.blueprint.build(2)).items():
            if name in self.layouts:
                shape = [length(runs, self.born) for runs in self.layouts[name].dims]
                self.tensors[name] = torch.zeros(shape, dtype=tensor.dtype)
        if self.folder is not None:
            store.open_folder(self.folder, self.blueprint.describe())
            for task in store.read_tasks(self.folder):
                self._take(task)

    def __len__(self) -> int:
        return len(self.tasks)

    def __iter__(self) -> Iterator[str]:
        """The names of the tasks, in the order in which they were learnt."""
        return iter(self.tasks)

    def __contains__(self, name: object) -> bool:
        return name in self.tasks

    def __repr__(self) -> str:
        return f"Master({len(self)} tasks, {sum(self.born.values())} neurons, {self.parameters:,} parameters)"

    def learn(
        self,
        name: str,
        train: Any,
        valid: Any = None,
        *,
        classes: int,
        recipe: Recipe = RECIPE,
        first: Recipe | None = None,
        pick: str | Pick = "all",
        neighborhood: Kind | Iterable[Kind] | None = None,
        budget: Budget = BUDGET,
        growths: int | None = None,
        until: float | Until | None = None,
        listen: bool = True,
        seed: int = 0,
        progress: bool = True,
        optimizer: Callable[[Any], Optimizer] | None = None,
        **growing: Any,
    ) -> Task:
        """Learn one more task (Algorithm 2). In a folder, a learning that was interrupted goes on where it was.

        Args:
            name: of the task.
            train: data as `firefly.training.fit` takes it, with labels 0 ... classes - 1.
            valid: the same, to measure on; None holds a tenth of the training images out, False none of them.
            classes: how many.
            recipe: how the network is trained, at first and after every growth (60 epochs at a rate of 0.05, in batches
                of 64, nothing augmented); `first`: another one for at first.
            pick: which of the locked neurons the task begins with: "all", "none" (a small network of its own), "mask"
                (a binary mask, trained), or a `Pick(...)` with options.
            neighborhood: how it grows; None for `Split` and `New` in a network of its own, `Unlock` and `New` in one
                that begins with locked neurons.
            budget: of each growth.
            growths: at most so many; None for 1, or for 10 if `until` says when to stop.
            until: do not grow on when the held-out accuracy is reached, or as `Until(...)` says.
            listen: whether locked neurons may listen to brand-new ones, by entries that belong to the new task.
            seed: of first weights, masks and growths. progress: show how far a training is, on stderr.
            optimizer: a function that makes one of the parameters, such as `torch.optim.AdamW`; None for SGD.
            growing: further options of `firefly.grow`: steps, lr, evaluate_on, rank, path, method.

        Returns:
            The task, as it will be for ever.
        """
        lesson = learning.Lesson(
            name=name,
            classes=classes,
            recipe=recipe,
            first=first,
            pick=pick,
            neighborhood=neighborhood,
            budget=budget,
            growths=growths,
            until=until,
            listen=listen,
            seed=seed,
            growing=growing,
            progress=progress,
            optimizer=optimizer,
        )
        return learning.learn(self, lesson, train, valid)

    @property
    def layouts(self) -> Layouts:
        """Of the tensors that the master has one of."""
        return {**self.blueprint.shared, **self.blueprint.followers}

    @property
    def parameters(self) -> int:
        """The union of all that any task uses: entries that are owned, and what is private."""
        return sum(self.count(name) for name in self.tasks)

    def count(self, name: str) -> int:
        """What a task added to the master: the parameters it owns, and those that are private to it."""
        task = self[name]
        private = (tensor for key, tensor in task.private.items() if key in self.blueprint.parameters)
        return sum(tensor.numel() for tensor in (*task.owned.values(), *private))

    def __getitem__(self, name: str) -> Task:
        if name not in self.tasks:
            known = ", ".join(map(repr, self.tasks)) or "none yet"
            raise FireflyError(f"no task {name!r} was learnt; there are {known}: master.learn({name!r}, ...) first")
        return self.tasks[name]

    # ---- networks ----------------------------------------------------------------------------------------------------

    def network(self, name: str) -> nn.Module:
        """The network of a task, a plain module on the CPU in eval mode. It is a copy: do with it what you like."""
        task = self[name]
        tensors = self.gather(task.lists) | {key: tensor.clone() for key, tensor in task.private.items()}
        return self.rebuild(task.classes, task.lists, tensors).eval()

    def begin(self, classes: int, lists: Lists | None = None, seed: int = 0) -> tuple[nn.Module, Lists]:
        """Where a new task begins: these neurons with a fresh head, or without lists a small network of its own."""
        small = list_tensors(self.blueprint.build(classes, seed))
        if lists is None:
            lists = {
                name: torch.arange(self.born[name], self.born[name] + n) for name, n in self.blueprint.sizes.items()
            }
            return self.rebuild(classes, lists, {name: tensor.detach() for name, tensor in small.items()}), lists
        generator, sizes = torch.Generator().manual_seed(seed), {name: len(numbers) for name, numbers in lists.items()}
        tensors = self.gather(lists, self.layouts)
        head = {name: draw_head(lay, small[name], sizes, generator) for name, lay in self.blueprint.head.items()}
        others = {name: small[name].detach() for name in self.blueprint.others}
        return self.rebuild(classes, lists, tensors | head | others), lists

    def gather(self, lists: Lists, layouts: Layouts | None = None) -> Tensors:
        """The master's tensors along these lists; those that tasks share, if no others are named."""
        layouts = self.blueprint.shared if layouts is None else layouts
        return {name: self.tensors[name][find_places(lay, lists, self.born)] for name, lay in layouts.items()}

    def rebuild(self, classes: int, lists: Lists, tensors: Mapping[str, Tensor]) -> nn.Module:
        """A network of these lists with these tensors."""
        model = self.blueprint.build(classes)
        return self.blueprint.resize(model, tensors, {name: len(numbers) for name, numbers in lists.items()})

    # ---- tasks -------------------------------------------------------------------------------------------------------

    def hold(self, model: nn.Module, lists: Lists, unheard: Mapping[str, int] = NOBODY) -> list[Held]:
        """Which entries of a new task's network are free, and what those of older tasks are."""
        known = {name: torch.where(numbers < self.born[name], numbers, 0) for name, numbers in lists.items()}
        parameters, found = dict(model.named_parameters()), []
        for name, layout in self.blueprint.shared.items():
            free = self.find_own(layout, lists, unheard)
            if not bool(free.all()):
                kept = self.tensors[name][find_places(layout, known, self.born)]
                kept = torch.where(self.find_own(layout, lists), 0, kept) if unheard else kept
                found.append(Held(parameters[name], free, kept))
        return found

    def find_own(self, layout: Layout, lists: Lists, unheard: Mapping[str, int] = NOBODY) -> Tensor:
        """Which entries a new task with these lists would own and use."""
        own = find_own(layout, lists, [task.lists for task in self.tasks.values()])
        return own & find_heard(layout, lists, self.born, unheard)

    def add(self, name: str, classes: int, lists: Lists, model: nn.Module, told: dict[str, Any]) -> Task:
        """Keep a task that was learnt: on disk first, then here."""
        if name in self:
            raise FireflyError(f"task {name!r} was learnt already, and stays as it is: give the new one another name")
        tensors = {key: tensor.detach().cpu() for key, tensor in list_tensors(model.cpu()).items()}
        unheard = told.get("unheard", NOBODY)
        moved = [one for one in self.hold(model, lists, unheard) if not is_still(one)]
        if moved:
            raise FireflyError(f"task {name!r} changed {len(moved)} weights of older tasks: it is not kept; train anew")
        owned = {}
        for key, layout in self.blueprint.shared.items():
            own = self.find_own(layout, lists, unheard)
            owned[key] = tensors[key][own.expand(tensors[key].shape)]
        private = {key: tensors[key].contiguous() for key in self.blueprint.private}
        task = Task(name, classes, dict(lists), owned, private, told)
        if self.folder is not None:
            store.write_task(self.folder, len(self) + 1, task)
        self._take(task)
        return task

    def _take(self, task: Task) -> None:
        """Put what a task owns into the master's tensors."""
        born = {name: max(self.born[name], count_born(numbers)) for name, numbers in task.lists.items()}
        larger = {}
        for name, layout in self.layouts.items():
            larger[name] = enlarge(self.tensors[name], layout, self.born, born)
            places = find_places(layout, task.lists, born)
            if name in task.owned:
                part = larger[name][places]
                part[self.find_own(layout, task.lists, task.unheard).expand(part.shape)] = task.owned[name]
            else:
                part = task.private[name]
            larger[name][places] = part
        self.tensors, self.born = larger, born
        self.tasks[task.name] = task
