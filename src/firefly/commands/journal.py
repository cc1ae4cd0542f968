"""The journal of a run: `history.jsonl`, a line for each epoch and each growth, and perhaps TensorBoard's files."""

from __future__ import annotations

import json
import re
from dataclasses import asdict
from pathlib import Path
from typing import Any

from firefly import checkpoint
from firefly.commands.loop import Work
from firefly.integrations.tensorboard import log_epoch, log_growth, make_writer, read
from firefly.report.svg import spell_time
from firefly.training.history import Epoch, History
from firefly.training.resume import check_recipe, read_run

NAME = "history.jsonl"
OURS = re.compile(r"fit\.lock|fit\.json.*|epoch-\d+(-[0-9a-f]{8})?|history\.jsonl|tensorboard|report\.html|model\..*")
Row = dict[str, Any]


def is_ours(name: str) -> bool:
    """Whether a file of this name may be part of a run."""
    return OURS.fullmatch(name) is not None


class Journal:
    """Writes what happens as it happens; lines of epochs that a killed process did not keep are taken back first."""

    def __init__(self, folder: Path, work: Work, history: History, tensorboard: bool) -> None:
        self.work = work
        rows = list_rows(history, work.grower.history, work.grower.anatomy.flops())
        (folder / NAME).write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
        self.file = (folder / NAME).open("a", encoding="utf-8")
        self.writer = make_writer(folder / "tensorboard", len(history)) if tensorboard else None

    def tell(self, history: History) -> None:
        """Of the last epoch, and of the growth after it."""
        grown = history[-1].grown
        growths = self.work.grower.history[-1:] if grown else []
        flops = growths[0]["flops"][0] if grown else self.work.grower.anatomy.flops()
        for row in list_rows(History(history.epochs[-1:]), growths, flops):
            self.file.write(json.dumps(row) + "\n")
            if self.writer is not None:
                log_row(self.writer, row)
        self.file.flush()
        if grown:
            print(f"growth {len(self.work.grower.history)}, after epoch {len(history)}: {read(growths[0])}", flush=True)

    def close(self) -> None:
        self.file.close()
        if self.writer is not None:
            self.writer.close()


def list_rows(history: History, growths: list[Row], flops: int) -> list[Row]:
    """The lines of these epochs and growths, in order; `flops` are those of the model as it is, or was before them."""
    rows: list[Row] = []
    waiting = iter(growths)
    now = growths[0]["flops"][0] if growths else flops
    for epoch in history.epochs:
        rows.append({"event": "epoch", **asdict(epoch), "flops": now})
        growth = next(waiting, None) if epoch.grown else None
        if growth is not None:
            rows.append({"event": "growth", "epoch": epoch.epoch, **growth})
            now = growth["flops"][1]
    return rows


def log_row(writer: Any, row: Row) -> None:
    (log_growth if row["event"] == "growth" else log_epoch)(writer, row, row["epoch"])


def load_latest(out: Path, work: Work, fixed: tuple[str, ...], told: Row) -> str:
    """Give the model the weights of the run in the folder, which stays as it is; say where that stands."""
    content = read_run(out)
    assert content is not None
    check_recipe(out, content["recipe"], told, fixed)
    checkpoint.load(out / content["checkpoint"], work.model, optimizer=work.optimizer, grower=work.grower)
    return f"after epoch {len(content['history'])} of {out}"


def conclude(out: Path, work: Work, history: History) -> str:
    """What came out, and what to do with it."""
    anatomy, last = work.grower.anatomy, history[-1]
    start = work.grower.history[0]["parameters"][0] if work.grower.history else anatomy.parameters()
    growths = len(work.grower.history)
    said = f"{anatomy.parameters():,} parameters ({start:,} at the start), {growths} growth{'s' * (growths != 1)}"
    growing = sum(sum(growth["seconds"].values()) for growth in work.grower.history)
    took = f"{spell_time(history.seconds)} of training, {spell_time(growing)} of growing"
    return f"{said}; {measure(last)}; {took}\nnow: firefly show {out}"


def measure(last: Epoch) -> str:
    if last.test_accuracy is not None:
        return f"test accuracy {last.test_accuracy:.2%}"
    return f"training loss {last.loss:.4f}" if last.test_loss is None else f"test loss {last.test_loss:.4f}"
