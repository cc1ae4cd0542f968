"""The tables of docs/several-gpus.md: bytes that ranks send in a growth, and what lies on a rank of a sharded model."""

from typing import Any

from tables_text import lay_out, read


def tabulate_bytes() -> str:
    """Per model and number of ranks: what a rank sends, as measured and as computed."""
    rows = [row for row in read("ranks") if row["benchmark"] == "ranks-bytes"]
    rows.sort(key=lambda row: (row["model"], row["ranks"]))
    return lay_out(
        ["network", "ranks", "MB sent by a rank, measured", "computed", "steps of training that send as much"],
        [
            [
                f"{row['model']}, {row['parameters'][0]:,} parameters",
                f"{row['ranks']:,}",
                format_size(row["measured"]) if "measured" in row else "",
                format_size(row["sent"]),
                f"{row['steps_worth']:.0f}",
            ]
            for row in rows
        ],
    )


def tabulate_shards() -> str:
    """Per sharded model and number of ranks: parameters and Adam's state on one rank."""
    rows = [row for row in read("ranks") if row["benchmark"] == "ranks-shards"]
    rows.sort(key=lambda row: (row["model"], row["ranks"]))
    return lay_out(
        ["network", "ranks", "MB on a rank, sharded", "while it is whole"],
        [[row["model"], str(row["ranks"]), *map(format_size, list_sizes(row))] for row in rows],
    )


def list_sizes(row: dict[str, Any]) -> list[int]:
    return [row["bytes_on_a_rank"][key] for key in ("sharded", "while_whole")]


def format_size(size: int) -> str:
    return f"{size / 1e6:.2f}"


PIECES = {"ranks-bytes": tabulate_bytes, "ranks-shards": tabulate_shards}
