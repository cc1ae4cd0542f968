"""The folder of a run, read: by `firefly grow`, by `fit(checkpoint=...)`, or a checkpoint of `firefly.save`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import nn

from firefly import checkpoint
from firefly.checkpoint.archive import check_json
from firefly.commands.addresses import make_model
from firefly.commands.journal import list_rows
from firefly.errors import FireflyError
from firefly.training.history import History
from firefly.training.resume import read_run

Json = dict[str, Any]


@dataclass(frozen=True)
class Run:
    """What a folder tells without the model's code."""

    folder: Path
    checkpoint: Path  # the folder of the weights
    content: Json  # of its checkpoint.json: the architecture
    recipe: Json  # empty for a checkpoint by itself
    history: History
    growths: list[Json]  # with the epoch after which each came, where that is known

    @property
    def name(self) -> str:
        return self.folder.resolve().name

    @property
    def flops(self) -> int | None:
        return int(self.growths[-1]["flops"][1]) if self.growths else self.recipe.get("flops")

    @property
    def parameters(self) -> int:
        return int(self.content["parameters"])

    def list_epochs(self) -> list[Json]:
        """A row per epoch, with the FLOPs of the network in it, 0 where those are not known."""
        rows = list_rows(self.history, self.growths, self.recipe.get("flops") or 0)
        return [row for row in rows if row["event"] == "epoch"]


def open_run(folder: Path) -> Run:
    """The run in a folder; refused in words if there is none."""
    if "\0" in str(folder) or not folder.is_dir():
        raise FireflyError(f"{str(folder)!r:.80} is no folder: give that of a run, as firefly grow --out writes it")
    run = read_run(folder)
    place = folder if run is None else folder / run["checkpoint"]
    path = place / "checkpoint.json"
    if not path.is_file():
        raise FireflyError(f"{folder} holds no run: give a folder of firefly grow, fit(checkpoint=...) or firefly.save")
    content = check_json(path, path.read_bytes())
    if "shapes" not in content:
        raise FireflyError(f"{path} was written by Firefly 0.1: load it and save it again to see it here")
    history = History() if run is None else run["history"]
    grown = [row.epoch for row in history.epochs if row.grown]
    growths = list((content.get("grower") or {}).get("history") or content["history"])
    if len(grown) == len(growths):
        growths = [{**growth, "epoch": epoch} for growth, epoch in zip(growths, grown)]
    return Run(folder, place, content, {} if run is None else run["recipe"], history, growths)


def load_model(run: Run, address: str | None) -> nn.Module:
    """The grown model of a run, on the CPU, made by the function that the run names, or by this one."""
    maker = address or run.recipe.get("model")
    if not maker:
        raise FireflyError(f"{run.folder} does not say what makes its model: give --model MODULE:FUNCTION")
    return checkpoint.load(run.checkpoint, make_model(maker)).eval()
