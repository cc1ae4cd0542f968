"""Growth in TensorBoard: what a network became, what each growth added and what it was worth.

>>> from torch.utils.tensorboard import SummaryWriter
>>> writer = SummaryWriter("runs/mine")
>>> log_growth(writer, grower.grow(loss, batches, optimizer), step)

Any object with `add_scalar` and `add_text` will do for a writer.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from firefly.errors import FireflyError
from firefly.growth import Growth

LOSSES = ("loss_before", "loss_overgrown", "loss_after", "predicted", "output_change")


def make_writer(folder: str | Path, step: int = 0) -> Any:
    """A SummaryWriter that goes on at this step: what an interrupted run wrote beyond it is hidden."""
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError as error:
        raise FireflyError("TensorBoard is not installed: pip install 'firefly-descent[tensorboard]'") from error
    return SummaryWriter(str(folder), purge_step=step + 1 if step else None)


def log_growth(writer: Any, growth: Growth | Mapping[str, Any], step: int) -> None:
    """Write one growth: sizes, losses, neurons and gain by kind, every width, and the table as text."""
    row = growth.to_dict() if isinstance(growth, Growth) else growth
    for name in ("parameters", "flops"):
        writer.add_scalar(f"network/{name}", row[name][1], step)
    for name in LOSSES:
        writer.add_scalar(f"growth/{name}", row[name], step)
    for kind in dict.fromkeys(kind for kinds in row["added"].values() for kind in kinds):
        neurons = sum(kinds.get(kind, 0) for kinds in row["added"].values())
        writer.add_scalar(f"growth/neurons_{kind}", neurons, step)
        writer.add_scalar(f"growth/gain_{kind}", sum(gains.get(kind, 0.0) for gains in row["gains"].values()), step)
    for name, (_, after) in row["widths"].items():
        writer.add_scalar(f"width/{name or 'output'}", after, step)
    writer.add_text("growth", indent(str(growth if isinstance(growth, Growth) else read(row))), step)


def log_epoch(writer: Any, row: Mapping[str, Any], step: int) -> None:
    """Write the numbers of an epoch, a dict such as a line of `history.jsonl`; what is None is left out."""
    for name in ("loss", "lr", "seconds", "test_accuracy", "test_loss"):
        if row.get(name) is not None:
            writer.add_scalar(f"training/{name}", row[name], step)
    for name in ("parameters", "flops"):
        if row.get(name) is not None:
            writer.add_scalar(f"network/{name}", row[name], step)


def read(row: Mapping[str, Any]) -> Growth:
    """A growth out of its `to_dict()`."""
    return Growth(**{key: value for key, value in row.items() if key in Growth.__dataclass_fields__})


def indent(text: str) -> str:
    """As Markdown keeps it: a table of plain text."""
    return "".join(f"    {line}\n" for line in text.splitlines())
