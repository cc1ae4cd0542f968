"""What is to be learnt, and how: all of it checked at once, and kept as JSON so that a learning can be taken up."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from inspect import signature
from typing import Any

from torch import nn
from torch.optim import Optimizer

from firefly.continual.ownership import Lists
from firefly.continual.picking import Pick, read_pick
from firefly.continual.until import Until, read_until
from firefly.descent import grow
from firefly.errors import FireflyError
from firefly.method import check_options, find_method
from firefly.neighborhood.kinds import Kind, Unlock, read_neighborhood
from firefly.stages.budget import Budget
from firefly.training.recipe import Recipe, is_whole, tell

OPTIONS = ("steps", "lr", "evaluate_on", "rank", "path", "method")  # of a growth, which are handed on


@dataclass(frozen=True)
class Lesson:
    """What is to be learnt, and how; the words are explained in `Master.learn`."""

    name: str
    classes: int
    recipe: Recipe
    first: Recipe | None
    pick: str | Pick
    neighborhood: Kind | Iterable[Kind] | None
    budget: Budget
    growths: int | None
    until: float | Until | None
    listen: bool
    seed: int
    growing: Mapping[str, Any]
    progress: bool
    optimizer: Callable[[Any], Optimizer] | None = None

    def __post_init__(self) -> None:
        if not (isinstance(self.name, str) and self.name.strip()):
            raise FireflyError(f"name={self.name!r}: a task needs a name, a text")
        if not is_whole(self.classes, 2):
            raise FireflyError(f"task {self.name!r}: classes={self.classes!r}: give a whole number from 2 up")
        if self.growths is not None and not is_whole(self.growths, 0):
            raise FireflyError(f"task {self.name!r}: growths={self.growths!r}: give a whole number from 0 up, or None")
        if not isinstance(self.listen, bool):
            raise FireflyError(f"task {self.name!r}: listen={self.listen!r}: give True or False")
        for recipe in (self.recipe, self.first or self.recipe):
            if not isinstance(recipe, Recipe):
                raise FireflyError(f"recipe is a {type(recipe).__name__}: give a firefly.training.Recipe")
        if self.optimizer is not None and (not callable(self.optimizer) or isinstance(self.optimizer, Optimizer)):
            raise FireflyError(
                f"task {self.name!r}: optimizer is {type(self.optimizer).__name__}: give a function from parameters to "
                "an optimiser, such as torch.optim.AdamW; every training has one of its own"
            )
        for word in self.growing:
            if word not in OPTIONS:
                raise FireflyError(
                    f"task {self.name!r}: {word} cannot be given here; of a growth {', '.join(OPTIONS)} can"
                )
        how = {word: signature(grow).parameters[word].default for word in OPTIONS} | dict(self.growing)
        find_method(how.pop("method"))
        check_options(budget=self.budget, seed=self.seed, **how)
        read_until(self.until), read_pick(self.pick)
        if self.neighborhood is not None:
            read_neighborhood(self.neighborhood)

    def check_kinds(self, locked: bool) -> None:
        """Refuse to move what older tasks own, if there is any."""
        kinds = [] if self.neighborhood is None or not locked else read_neighborhood(self.neighborhood)
        moves = [kind for kind in kinds if kind.becomes and not isinstance(kind, Unlock)]
        if moves and self.most:
            raise FireflyError(
                f"task {self.name!r}: {moves[0].name!r} would change neurons of older tasks: "
                "use Unlock(...) and New(...)"
            )

    @property
    def most(self) -> int:
        """Growths."""
        return self.growths if self.growths is not None else 1 if self.until is None else 10

    def tell(self) -> dict[str, Any]:
        """As plain JSON: what a learning must be taken up with, to go on exactly."""
        recipes = {name: one and one.to_dict() for name, one in (("recipe", self.recipe), ("first", self.first))}
        for one in recipes.values():
            for word in ("device", "channels_last", "graph", "compile", "tune"):  # where and how fast
                _ = one and one.pop(word)
        kinds = None if self.neighborhood is None else [repr(k) for k in read_neighborhood(self.neighborhood)]
        told = {"budget": repr(self.budget), "growths": self.most, "until": repr(read_until(self.until))}
        told |= {"pick": repr(read_pick(self.pick)), "neighborhood": kinds, "seed": self.seed}
        named = {"method": find_method(self.growing["method"]).name} if "method" in self.growing else {}
        told |= {"growing": tell({**self.growing, **named})}
        told |= {} if self.optimizer is None else {"optimizer": tell(self.optimizer)}
        return {**recipes, **told, **({} if self.listen else {"listen": False})}


@dataclass
class Pupil:
    """The task while it is being learnt."""

    model: nn.Module
    lists: Lists
    rounds: list[dict[str, Any]] = field(default_factory=list)  # trainings; each but the first follows a growth
    growths: list[dict[str, Any]] = field(default_factory=list)
    epochs: dict[str, float] = field(default_factory=lambda: {"mask": 0.0, "step one": 0.0, "training": 0.0})

    @property
    def sizes(self) -> dict[str, int]:
        return {name: len(numbers) for name, numbers in self.lists.items()}

    def find_unheard(self, listen: bool) -> dict[str, int]:
        """How many neurons locked ones may not listen to, if not to brand-new ones: the last in each list."""
        born: dict[str, int] = {}
        for growth in () if listen else self.growths:
            for name, kinds in growth["added"].items():
                born[name] = born.get(name, 0) + kinds.get("new", 0)
        return born
