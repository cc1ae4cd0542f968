"""One HTML page about a run that needs nothing beside it: charts inside, tables, light and dark, large and small."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from typing import Any

from firefly.report import svg
from firefly.report.svg import shorten

Row = Mapping[str, Any]

STYLE = """
:root { color-scheme: light dark; --band: #f6f6f8 }
@media (prefers-color-scheme: dark) { :root { --band: #202025 } }
body { font: 16px/1.55 system-ui, "Segoe UI", Roboto, "Helvetica Neue", sans-serif; color: var(--ink);
  background: var(--paper); max-width: 56rem; margin: 0 auto; padding: 2.5rem 1.25rem 4rem; overflow-wrap: anywhere }
h1 { font-size: 1.9rem; line-height: 1.2; margin: 0 0 1rem }
h2 { font-size: 1.3rem; margin: 2.6rem 0 .8rem }
h3, summary { font-size: 1rem; font-weight: 600; margin: 1.8rem 0 .4rem }
summary { margin: .9rem 0 .4rem; cursor: pointer }
p { margin: .6rem 0; max-width: 46rem }
.charts { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(100%, 23rem), 1fr)); gap: 1.6rem 2rem;
  margin: 1.4rem 0; align-items: start }
figure { margin: 0; max-width: 32rem }
figure svg { width: 100%; height: auto; display: block }
figcaption, .note { color: var(--faint); font-size: .9rem; margin-top: .3rem }
.wide { overflow-x: auto }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; font-size: .93rem }
th, td { padding: .3rem .9rem; text-align: right; border-bottom: 1px solid var(--line); white-space: nowrap }
th { font-weight: 600; background: var(--band) }
th.left, td.left { text-align: left; white-space: normal; min-width: 4rem }
td.group { padding-top: .8rem; font-weight: 600; border-bottom: 0 }
table.prose td { white-space: normal; vertical-align: top }
table.prose td:first-child { overflow-wrap: normal }
@media (max-width: 40rem) {
  body { padding: 1.4rem .9rem 3rem }
  h1 { font-size: 1.5rem }
  table { font-size: .79rem; width: 100% }
  th, td { padding: .3rem .14rem .3rem .3rem; white-space: normal; overflow-wrap: normal }
  th.left, td.left { overflow-wrap: anywhere; min-width: 2.6rem; padding-left: 0 }
  table.names td.left { min-width: 6rem }
  table.prose td { padding-right: .5rem }
}
@media print {
  body { max-width: none; padding: 0; font-size: 11pt }
  .charts { grid-template-columns: 1fr 1fr }
  figure, tr, .note { break-inside: avoid }
  h2, h3, summary { break-after: avoid }
  details::details-content { content-visibility: visible; block-size: auto }
}
"""
FOLD = 40  # rows of growths beyond which each is folded

EXPLAIN = """<p>A width is the neurons (channels) of a layer together with all that must grow with them.{gains}</p>"""
GAINS = """ The <em>gain</em> of a candidate, a neuron that may split in two or a brand-new one, is the decrease of the
loss that it promises. At each growth those with the largest gain stay; where the budget counts parameters or FLOPs,
those with the largest gain for what they cost."""

PAGE = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
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
    """A chart, what its file is called and what it shows."""

    name: str
    svg: str
    caption: str

    def to_file(self) -> str:
        """The chart by itself, with its own style."""
        style = f"<style>{svg.STYLE}svg {{ background: var(--paper) }}</style>"
        return self.svg.replace("<svg ", '<svg xmlns="http://www.w3.org/2000/svg" ', 1).replace(">", f">{style}", 1)


@dataclass(frozen=True)
class Section:
    """How one network grew: charts, and what each growth added; folded where there are several networks, or much."""

    title: str
    pictures: Sequence[Picture]
    growths: Sequence[Row]
    folded: bool = False


def render(
    title: str,
    text: str,
    pictures: Sequence[Picture],
    tables: Sequence[tuple[str, str]],
    sections: Sequence[Section],
    settings: str = "",
) -> str:
    """The whole page: words, the first charts, tables with their titles, then how each network grew."""
    words = paragraphs(text)
    parts = [f"<h1>{escape(title)}</h1>", *words[:2], show_pictures(pictures), *words[2:]]
    for name, content in tables:
        parts += [f"<h2>{escape(name)}</h2>", content]
    gains = any(has_gains(growth) for section in sections for growth in section.growths)
    for number, section in enumerate(sections):
        parts += [f"<h2>{escape(section.title)}</h2>", show_pictures(section.pictures)]
        parts += [EXPLAIN.format(gains=GAINS * gains)] * (number == 0 and bool(section.growths))
        folded = section.folded or sum(len(growth["widths"]) for growth in section.growths) > FOLD
        parts += [show_growth(place, growth, folded) for place, growth in enumerate(section.growths, start=1)]
    if settings:
        parts += ["<h2>Settings</h2>", settings]
    return PAGE.format(title=escape(title), style=svg.STYLE + STYLE, body="\n".join(parts))


def paragraphs(text: str) -> list[str]:
    return [f"<p>{escape(part.strip())}</p>" for part in text.split("\n\n") if part.strip()]


def show_pictures(pictures: Sequence[Picture]) -> str:
    shown = []
    for one in pictures:  # named for those who hear the page
        named = one.svg.replace('role="img"', f'role="img" aria-label="{escape(one.caption)}"', 1)
        shown.append(f"<figure>{named}<figcaption>{escape(one.caption)}</figcaption></figure>")
    return f'<div class="charts">{"".join(shown)}</div>' if shown else ""


def show_points(points: Sequence[Row], metric: str) -> str:
    """The networks by series and size; FLOPs where they are known."""
    flops = any("flops" in point for point in points)
    head = ["network", "parameters", *["FLOPs"] * flops, metric.replace("_", " ")]
    rows: list[list[str]] = []
    for series in dict.fromkeys(str(point["series"]) for point in points):
        rows.append([series])
        mine = [point for point in points if str(point["series"]) == series]
        for point in sorted(mine, key=lambda point: point["parameters"]):
            cells = [point.get("label", ""), f"{point['parameters']:,}"]
            cells += [shorten(point["flops"]) if "flops" in point else ""] * flops
            rows.append([*cells, form(point[metric], metric, point.get("error"))])
    return table(head, rows)


def form(value: float, metric: str, error: float | None = None) -> str:
    """A value with its standard error; shares in per cent."""
    if "accuracy" not in metric:
        return f"{value:#.4g}" + (f" ± {error:.2g}" if error else "")
    return f"{100 * value:.2f}" + (f" ± {100 * error:.2f} %" if error else " %")


def show_growth(number: int, growth: Row, folded: bool = False) -> str:
    """One growth as `print(growth)` tells it, and why these candidates."""
    when = f", after epoch {growth['epoch']}" if "epoch" in growth else ""
    before, after = growth["parameters"]
    more = sum(sum(kinds.values()) for kinds in growth["added"].values())
    offered = list(dict.fromkeys(kind for kinds in growth["added"].values() for kind in kinds))
    asleep = sum(not new for _, new in growth["widths"].values())
    gains = has_gains(growth)
    rows = []
    for name, (old, new) in growth["widths"].items():
        if new:
            kinds = growth["added"].get(name, {})
            gain = sum(growth.get("gains", {}).get(name, {}).values())
            born = [f"+{kinds[kind]:,}" if kinds.get(kind) else "" for kind in offered]
            told = [hold(f"{gain:.2g}") if kinds else ""] * gains
            rows.append([name, f"{old:,}" if old else "new layer", *born, f"{new:,}", *told])
    title = f"Growth {number}{when}: {more:,} more neuron{'s' * (more != 1)}, {before:,} → {after:,} parameters"
    notes = [describe_losses(growth), *describe_choice(growth, more)]
    notes += [f"Dormant layers left: {asleep}."] if asleep else []
    notes += [f"{note[:1].upper()}{note[1:].rstrip('.')}." for note in map(str, growth.get("notes", ()))]
    said = (f'<p class="note">{escape(note)}</p>' for note in notes)
    inside = "\n".join([table(["width", "before", *offered, "after", *["gain"] * gains], rows), *said])
    return f"<details><summary>{title}</summary>\n{inside}\n</details>" if folded else f"<h3>{title}</h3>\n{inside}"


def describe_choice(growth: Row, more: int) -> list[str]:
    """How many candidates there were, what all and what the chosen ones promised, and what they cost."""
    if not growth.get("candidates") or "predicted" not in growth or "total_gain" not in growth:
        return []
    spent = [f"{used:,.0f} of {allowed:,.0f} {what}" for what, (used, allowed) in growth.get("spent", {}).items()]
    budget = f"; the budget: {', '.join(spent)}" if spent else ""
    promised, all_of_them = growth["predicted"], growth["total_gain"]
    care = ", since some would raise the loss" if all_of_them < promised else ""
    sums = hold(f"{promised:.3g}"), hold(f"{all_of_them:.3g}")
    gains = f" Their gains add up to {sums[0]}, those of all candidates to {sums[1]}{care}."
    return [f"Chosen were {more:,} of {growth['candidates']:,} candidates{budget}.{gains * has_gains(growth)}"]


def has_gains(growth: Row) -> bool:
    """Whether the method predicted what its candidates bring."""
    return any(gain for kinds in growth.get("gains", {}).values() for gain in kinds.values())


def describe_losses(growth: Row) -> str:
    text = f"Loss {growth['loss_before']:.4f} before"
    if "loss_overgrown" in growth:
        text += f", {growth['loss_overgrown']:.4f} with all candidates at once"
    text += f", {growth['loss_after']:.4f} with the chosen ones"
    if "predicted" in growth:
        text += f" (predicted: {growth['loss_before'] - growth['predicted']:.4f})"
    before, after = growth.get("flops", (0, 0))
    text += f"; FLOPs {hold(shorten(before))} → {hold(shorten(after))}" if before else ""
    took = sum(growth.get("seconds", {}).values())
    return f"{text}; the growth took {took:.1f}\u00a0s." if growth.get("seconds") else f"{text}."


def hold(text: str) -> str:
    """On one line: 25.1 k, and −2e−06, whose hyphens would end a line."""
    return text.replace(" ", "\u00a0").replace("-", "−")


def show_settings(settings: Mapping[str, Any], *others: Mapping[str, Any], names: Sequence[str] = ("value",)) -> str:
    """What a run was made with, or several, each in a column of its own, and first what they differ in."""
    keys = dict.fromkeys(key for one in (settings, *others) for key in one)
    rows = [[key.replace("_", " "), *(one.get(key, "") for one in (settings, *others))] for key in keys]
    rows.sort(key=lambda row: all(value == row[1] for value in row[1:]))
    return table(["setting", *names], rows, left=2 + len(others)).replace("<table>", '<table class="prose">')


def table(head: Sequence[str], rows: Iterable[Sequence[Any]], left: int = 1) -> str:
    """A table whose first columns are text, the others numbers; a row of one cell names those below it."""

    def line(cells: Sequence[Any], tag: str) -> str:
        if len(cells) == 1:
            return f'<tr><td class="left group" colspan="{len(head)}">{escape(str(cells[0]))}</td></tr>'
        words = "".join(f'<{tag} class="left">{break_name(cell)}</{tag}>' for cell in cells[:left])
        return f"<tr>{words}{''.join(f'<{tag}>{escape(str(cell))}</{tag}>' for cell in cells[left:])}</tr>"

    body = "\n".join(line(row, "td") for row in rows)
    return f'<div class="wide"><table>\n<thead>{line(head, "th")}</thead>\n<tbody>\n{body}\n</tbody></table></div>'


def break_name(cell: Any) -> str:
    """A long name may go on in a new line after a dot and the like."""
    text = escape(str(cell))
    return re.sub(r"([._:=/,])", r"\1<wbr>", text) if len(text) > 12 else text
