"""A run as pictures and one self-contained HTML page. It takes plain data, so every run can have its page.

    history = [{**growth.to_dict(), "epoch": 4}, ...]            # what grew; or `grower.history`
    points = [{"series": "grown", "parameters": 2954, "accuracy": 0.97, "error": 0.004, "label": "after growth 3"}, ...]
    epochs = [{"series": "grown", "epoch": 1, "accuracy": 0.91}, ...]
    firefly.report.write("runs/mine", history, points=points, epochs=epochs, title="My network")

`epoch`, `error` and `label` may be left out. The first series is drawn in front, as the one the page is about. `metric`
names the key that is plotted: "accuracy" and other shares read as per cent, anything else ("loss") as it is.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from firefly.errors import FireflyError
from firefly.report import page, plots

__all__ = ["prepare", "write"]

Row = Mapping[str, Any]


def write(
    folder: str | Path,
    history: Iterable[Row],
    *,
    points: Iterable[Row] = (),
    epochs: Iterable[Row] = (),
    settings: Mapping[str, Any] | None = None,
    text: str = "",
    title: str = "A network grown by Firefly",
    metric: str = "accuracy",
    epoch_metric: str | None = None,
) -> Path:
    """Write `report.html` and its pictures (PNG) into a folder, and return the page's path.

    Args:
        folder: made if it is not there; the page needs none of the other files in it.
        history: one `Growth.to_dict()` per growth, with the "epoch" after which it happened where you know it.
        points: networks, each with "series", "parameters" and the metric: the first picture.
        epochs: the metric at the end of each epoch, with "series" and "epoch": how training went.
        settings: what the run was made with, as a table at the end.
        text: paragraphs for the top of the page, plain text with blank lines between them.
        metric: the key of the points that is plotted, and of the epochs unless `epoch_metric` names another.
    """
    growths, points, epochs = list(history), list(points), list(epochs)
    check_rows("history", growths, ("added", "widths", "parameters", "loss_before", "loss_after"))
    check_rows("points", points, ("series", "parameters", metric))
    check_rows("epochs", epochs, ("series", "epoch", epoch_metric or metric))
    folder = prepare(folder)
    drawn = draw(growths, points, epochs, metric, epoch_metric or metric)
    for picture in drawn:
        (folder / f"{picture.name}.png").write_bytes(picture.png)
    path = folder / "report.html"
    path.write_text(page.render(title, text, drawn, growths, points, settings or {}, metric), encoding="utf-8")
    return path


def prepare(folder: str | Path) -> Path:
    """Make the folder and see that matplotlib is there: before a long run, so that nothing fails after it."""
    plots.check_matplotlib()
    try:
        Path(folder).mkdir(parents=True, exist_ok=True)
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or error
        raise FireflyError(f"cannot make the folder {str(folder)!r}: {why}; give another one") from error
    return Path(folder)


def draw(
    growths: list[Row], points: list[Row], epochs: list[Row], metric: str, epoch_metric: str
) -> list[page.Picture]:
    """The pictures there is data for."""
    drawn = []
    if points:
        caption = f"{spell(metric)} against parameters."
        if "accuracy" in metric:
            caption += " Higher and further left is better."
        if any("error" in point for point in points):
            caption += " The bars are one standard error."
        drawn.append(page.Picture("parameters", plots.draw_points(points, metric), caption))
    if growths:
        caption = "Neurons in each width as the network grew. Widths are named after the layer that makes them."
        drawn.append(page.Picture("widths", plots.draw_widths(growths), caption))
    if plots.deepens(growths):
        caption = "The network before and after, from its input down. New layers stand out; | is a dormant layer."
        drawn.append(page.Picture("network", plots.draw_network(growths), caption))
    if epochs:
        caption = f"{spell(epoch_metric)} at the end of each epoch; a dotted line marks a growth."
        drawn.append(page.Picture("epochs", plots.draw_epochs(epochs, growths, epoch_metric), caption))
    return drawn


def spell(metric: str) -> str:
    return metric.replace("_", " ").capitalize()


def check_rows(name: str, rows: list[Row], keys: tuple[str, ...]) -> None:
    for number, row in enumerate(rows):
        missing = [key for key in keys if key not in row]
        if missing:
            wanted = ", ".join(map(repr, keys))
            raise FireflyError(f"{name}[{number}] has no {missing[0]!r}: each needs {wanted}; see help(firefly.report)")
