"""`firefly report RUN...`: the page of one run, or of several side by side."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from firefly.commands.runs import Json, Run, open_run
from firefly.errors import FireflyError
from firefly.report.runs import write_runs

HIDDEN = ("command", "example", "ranges", "batches", "flops", "images")  # of the recipe, which the page does not tell


def report_runs(folders: Sequence[Path], path: Path | None) -> Path:
    """Write the page, into the first run's folder if no other file is named."""
    runs = [open_run(folder) for folder in folders]
    for run in runs:
        if not len(run.history):
            raise FireflyError(f"{run.folder} is a checkpoint without a history: a page needs the folder of a run")
    names = name_runs(runs)
    return write_runs(path or folders[0] / "report.html", [tell_run(run, name) for run, name in zip(runs, names)])


def name_runs(runs: Sequence[Run]) -> list[str]:
    """The names of their folders, or their paths where two have the same name."""
    names = [run.name for run in runs]
    if len(set(names)) < len(names):
        names = [str(run.folder) for run in runs]
    if len(set(names)) < len(names):
        raise FireflyError("the same run is named twice: name each once")
    return names


def tell_run(run: Run, name: str) -> Json:
    """A run as the page takes it; what it was made with by default is left out."""
    told = {
        key: value
        for key, value in run.recipe.items()
        if key not in HIDDEN and value is not None and value is not False
    }
    told = {key: value if isinstance(value, (str, int, float)) else str(value) for key, value in told.items()}
    growths = [growth for growth in run.growths if "epoch" in growth] or run.growths
    return {"name": name, "growths": growths, "epochs": run.list_epochs(), "settings": told}
