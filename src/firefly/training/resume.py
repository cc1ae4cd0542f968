"""Stop anywhere, go on exactly: the folder in which `fit` keeps a run.

`fit.json` holds the epochs done, the recipe and the history, and names the checkpoint folder beside it that belongs to
them (`firefly.load` reads it too). Replacing that one small file is the only moment that counts, so whoever is killed
at any time finds the weights and the history of the same epoch.
"""

import json
import os
import shutil
from pathlib import Path
from typing import Any

from torch import nn
from torch.optim import Optimizer

from firefly.errors import FireflyError
from firefly.training.history import History
from firefly.training.recipe import Grower

Folder = str | os.PathLike[str]


def save_run(
    folder: Folder,
    history: History,
    recipe: dict[str, Any],
    model: nn.Module,
    optimizer: Optimizer,
    grower: Grower | None,
) -> None:
    """Keep the state after the last epoch of `history`."""
    from firefly import checkpoint

    root = Path(folder)
    current = root / f"epoch-{len(history)}"
    checkpoint.save(current, model, optimizer=optimizer, grower=grower)
    content = {"checkpoint": current.name, "recipe": recipe, "history": history.to_dict()}
    temporary = root / "fit.json.tmp"
    with temporary.open("w") as file:
        json.dump(content, file, indent=1)
        file.flush()
        os.fsync(file.fileno())
    os.replace(temporary, root / "fit.json")
    for old in root.glob("epoch-*"):
        if old != current:
            shutil.rmtree(old, ignore_errors=True)


def load_run(
    folder: Folder, recipe: dict[str, Any], model: nn.Module, optimizer: Optimizer, grower: Grower | None
) -> History:
    """Bring model, optimiser and grower to where the run in `folder` stopped; an empty history if there is none."""
    from firefly import checkpoint

    path = Path(folder) / "fit.json"
    if not path.exists():
        return History()
    try:
        content = json.loads(path.read_text())
        name, made, history = content["checkpoint"], content["recipe"], History.from_dict(content["history"])
    except (ValueError, KeyError, TypeError) as error:
        raise FireflyError(f"{path} is damaged ({error}): delete the folder to start again") from error
    for key, value in json.loads(json.dumps(recipe)).items():
        if made.get(key) != value:
            raise FireflyError(
                f"the run in {folder} was made with {key}={made.get(key)!r}, this call has {value!r}: use the same, to "
                "go on exactly, or another folder, to start anew"
            )
    checkpoint.load(path.parent / Path(name).name, model, optimizer=optimizer, grower=grower)
    return history
