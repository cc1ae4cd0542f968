"""One HTML page about a run that needs nothing beside it: pictures inside, tables, light and dark."""

from __future__ import annotations

import base64
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from typing import Any

Row = Mapping[str, Any]

STYLE = """
:root { color-scheme: light dark; --ink: #1d1d1f; --faint: #66666e; --line: #dcdce0; --paper: #fff; --band: #f6f6f8 }
@media (prefers-color-scheme: dark) {
  :root { --ink: #e9e9ed; --faint: #a0a0aa; --line: #3a3a42; --paper: #17171a; --band: #202025 }
}
body { font: 16px/1.55 system-ui, "Segoe UI", Roboto, "Helvetica Neue", sans-serif; color: var(--ink);
  background: var(--paper); max-width: 54rem; margin: 0 auto; padding: 2.5rem 1.25rem 4rem }
h1 { font-size: 1.9rem; line-height: 1.2; margin: 0 0 1rem }
h2 { font-size: 1.3rem; margin: 2.6rem 0 .8rem }
h3 { font-size: 1rem; margin: 1.8rem 0 .4rem }
p { margin: .6rem 0 }
figure { margin: 1.4rem 0 }
figure img { width: 100%; height: auto; display: block; background: #fff; border: 1px solid var(--line);
  border-radius: 10px; padding: .6rem; box-sizing: border-box }
figcaption, .note { color: var(--faint); font-size: .9rem; margin-top: .5rem }
.wide { overflow-x: auto }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; font-size: .93rem }
th, td { padding: .3rem .9rem; text-align: right; border-bottom: 1px solid var(--line); white-space: nowrap }
th { font-weight: 600; background: var(--band) }
th.left, td.left { text-align: left }
table.prose td { white-space: normal; vertical-align: top }
"""

EXPLAIN = """<p>A width is the neurons (channels) of a layer together with all that must grow with them. At each growth
every neuron offers to split in two, and every width offers brand-new neurons; all are tried at once in one over-grown
network, and those with the largest <em>gain</em>, the predicted decrease of the training loss, stay.</p>"""

PAGE = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width">
<title>{title}</title>
<style>{style}</style>
</head>
<body>
{body}
</body>
</html>
"""


@dataclass(frozen=True)
class Picture:
    """A picture, what its file is called and what it shows."""

    name: str
    png: bytes
    caption: str


def render(
    title: str,
    text: str,
    pictures: Sequence[Picture],
    growths: Sequence[Row],
    points: Sequence[Row],
    settings: Mapping[str, Any],
    metric: str,
) -> str:
    """The whole page."""
    parts = [f"<h1>{escape(title)}</h1>", *paragraphs(text), *map(show_picture, pictures[:1])]
    if points:
        parts += ["<h2>The networks</h2>", show_points(points, metric)]
    if growths:
        parts += ["<h2>How it grew</h2>", *map(show_picture, pictures[1:])]
        parts += [EXPLAIN, *(show_growth(number, growth) for number, growth in enumerate(growths, start=1))]
    else:
        parts += map(show_picture, pictures[1:])
    if settings:
        parts += ["<h2>Settings</h2>", show_settings(settings)]
    return PAGE.format(title=escape(title), style=STYLE, body="\n".join(parts))


def paragraphs(text: str) -> list[str]:
    return [f"<p>{escape(part.strip())}</p>" for part in text.split("\n\n") if part.strip()]


def show_picture(picture: Picture) -> str:
    code = base64.b64encode(picture.png).decode()
    caption = escape(picture.caption)
    image = f'<img alt="{caption}" src="data:image/png;base64,{code}">'
    return f"<figure>{image}<figcaption>{caption}</figcaption></figure>"


def show_points(points: Sequence[Row], metric: str) -> str:
    errors = any("error" in point for point in points)
    head = ["series", "network", "parameters", metric.replace("_", " "), *(["± standard error"] if errors else [])]
    order = list(dict.fromkeys(point["series"] for point in points))
    rows = []
    for point in sorted(points, key=lambda point: (order.index(point["series"]), point["parameters"])):
        row = [point["series"], point.get("label", ""), f"{point['parameters']:,}", form(point[metric], metric)]
        rows.append(row + ([form(point["error"], metric) if "error" in point else ""] if errors else []))
    return table(head, rows, left=2)


def form(value: float, metric: str) -> str:
    return f"{value:.2%}" if "accuracy" in metric else f"{value:.4g}"


def show_growth(number: int, growth: Row) -> str:
    """One growth as `print(growth)` tells it."""
    when = f", after epoch {growth['epoch']}" if "epoch" in growth else ""
    before, after = growth["parameters"]
    more = sum(sum(kinds.values()) for kinds in growth["added"].values())
    rows = []
    asleep = sum(not new for _, new in growth["widths"].values())
    for name, (old, new) in growth["widths"].items():
        if not new:
            continue
        kinds = growth["added"].get(name, {})
        gain = sum(growth.get("gains", {}).get(name, {}).values())
        born = [f"+{kinds[kind]}" if kinds.get(kind) else "" for kind in ("split", "new")]
        rows.append([name, f"{old:,}" if old else "new layer", *born, f"{new:,}", f"{gain:.2g}" if kinds else ""])
    parts = [
        f"<h3>Growth {number}{when}: {more:,} more neurons, {before:,} → {after:,} parameters</h3>",
        table(["width", "before", "split", "new", "after", "gain"], rows),
        f'<p class="note">{escape(describe_losses(growth))}</p>',
        *([f'<p class="note">Dormant layers left: {asleep}.</p>'] if asleep else []),
        *(f'<p class="note">{escape(str(note))}</p>' for note in growth.get("notes", ())),
    ]
    return "\n".join(parts)


def describe_losses(growth: Row) -> str:
    text = f"Training loss {growth['loss_before']:.4f}"
    if "loss_overgrown" in growth:
        text += f", over-grown {growth['loss_overgrown']:.4f}"
    text += f", grown {growth['loss_after']:.4f}"
    if "predicted" in growth:
        text += f" (predicted {growth['loss_before'] - growth['predicted']:.4f})"
    return f"{text}; {sum(growth.get('seconds', {}).values()):.1f} s." if growth.get("seconds") else f"{text}."


def show_settings(settings: Mapping[str, Any]) -> str:
    rows = [[name.replace("_", " "), value] for name, value in settings.items()]
    return table(["setting", "value"], rows, left=2).replace("<table>", '<table class="prose">')


def table(head: Iterable[str], rows: Iterable[Iterable[Any]], left: int = 1) -> str:
    """A table whose first columns are text, the others numbers."""

    def line(cells: Iterable[Any], tag: str) -> str:
        parts = ((' class="left"' if n < left else "", escape(str(cell))) for n, cell in enumerate(cells))
        return "<tr>" + "".join(f"<{tag}{kind}>{cell}</{tag}>" for kind, cell in parts) + "</tr>"

    body = "\n".join(line(row, "td") for row in rows)
    return f'<div class="wide"><table>\n<thead>{line(head, "th")}</thead>\n<tbody>\n{body}\n</tbody></table></div>'
