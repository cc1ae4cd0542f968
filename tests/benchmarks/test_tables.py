"""Every table of the pages is as the results have it; differences are paired, and claims need two standard errors."""

import re
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))

import readme_figure
import tables
import tables_pays
import tables_text
import tables_wider
from readme_figure import draw_points, number_series
from tables_text import describe, describe_gap, is_clear, join, lay_out, list_gaps, read


def test_no_page_disagrees_with_the_results(capsys: pytest.CaptureFixture[str]) -> None:
    assert tables.write(tables.list_pages(tables.ROOT), check=True) == 0, (
        f"{capsys.readouterr().out}run: python benchmarks/tables.py"
    )
    used = [page for page in tables.list_pages(tables.ROOT) if "<!-- table:" in page.read_text()]
    assert {"results.md", "when-growth-pays.md"} <= {page.name for page in used}


def test_no_two_pieces_have_one_name() -> None:
    assert len(tables.PIECES) == sum(len(room.PIECES) for room in tables.ROOMS)


def test_a_changed_number_is_noticed_and_mended(tmp_path: Path) -> None:
    right = (tables.ROOT / "docs" / "results.md").read_text()
    page = tmp_path / "page.md"
    page.write_text(right.replace("93.57 ± 0.13", "93.97 ± 0.13"))
    assert tables.write([page], check=True) == 1 and page.read_text() != right
    assert tables.write([page], check=False) == 0 and page.read_text() == right


def test_a_number_stands_within_its_line() -> None:
    text = "The full one has <!-- table: accuracy wider-vgg19 full 7 long -->?<!-- /table --> here."
    assert tables.fill(text) == text.replace("?", "93.78 ± 0.06")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("<!-- table: nonsense --><!-- /table -->", "no table 'nonsense'"),
        ("<!-- table: toy -->", "no end"),
        ("<!-- /table -->", "no mark"),
        ("<!-- table: accuracy wider-vgg19 firefly 99 --><!-- /table -->", "KeyError"),
        ("<!-- table: rounds --><!-- /table -->", "TypeError"),
    ],
)
def test_a_mark_that_cannot_be_filled_is_named(text: str, words: str) -> None:
    with pytest.raises(tables.Wrong, match=words):
        tables.fill(text)


def test_differences_are_paired_and_claims_need_three_seeds() -> None:
    one = {seed: {"test_accuracy": 0.9 + 0.01 * seed} for seed in range(4)}
    other = {seed: {"held_accuracy": 0.89 + 0.01 * seed} for seed in (1, 2, 3, 7)}
    gaps = list_gaps(one, other)
    assert gaps == pytest.approx([1, 1, 1])  # the spread over seeds is gone, and seeds of one alone do not count
    assert is_clear([1.0, 1.1, 0.9]) and describe_gap([1.0, 1.1, 0.9]) == "**+1.0 ± 0.1**"
    assert not is_clear([1.0, 1.1]) and not is_clear([1.0]) and not is_clear([2.0, -1.0, 1.0])
    assert describe_gap([-1.0], 2) == "−1.00" and describe_gap([]) == ""
    assert describe([90.0, 91.0, 92.0]) == "91.0 ± 0.6" and describe([90.0]) == "90.0"


def test_at_equal_flops_the_other_is_taken_between_its_sizes() -> None:
    others = {step: {0: {"flops": 10.0**step, "test_accuracy": 0.5 + 0.1 * step}} for step in (1, 2, 3)}
    one = {0: {"flops": 10**1.5, "test_accuracy": 0.7}, 1: {"flops": 10**1.5, "test_accuracy": 0.9}}
    assert tables_wider.list_level_gaps(one, others) == pytest.approx([5.0])
    assert tables_wider.list_level_gaps({0: {"flops": 1e9, "test_accuracy": 1.0}}, others) == []


def test_the_headline_says_setting_and_growths(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = []
    for network, share, growths in (("full", 1.0, 0), ("wider-4", 0.04, 7)):
        for seed in range(3):
            row = {
                "method": network,
                "seed": seed,
                "share": share,
                "flops": 1e8,
                "epochs": 280,
                "growths": [{}] * growths,
            }
            row["config"] = {"batch": 128, "lr": 0.1, "quick": False}
            rows += [row | {"test_accuracy": 0.94 - growths / 1000}, row | {"held_accuracy": 0.93}]
    monkeypatch.setattr(tables_wider, "read", lambda name: tuple(rows))
    small = tables_wider.tabulate_headline().splitlines()[-1]
    assert "| 280 + 7 |" in small and "**−0.70 ± 0.00**" in small and small.endswith("| 128, 0.1 |")
    assert "93.00 ± 0.00" in tables_wider.tabulate_grid()


def test_tables_and_lists_in_words() -> None:
    assert lay_out(["", "a"], [["b", ""], ["", ""]]) == "| | a |\n| --- | --- |\n| b | |\n| | |"
    assert join(["a", "b", "c"]) == "a, b and c" and join(["a"]) == "a"


def test_the_finder_is_compared_under_its_own_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = []
    for words, accuracy, flops in (
        ("full", 0.95, 9),
        ("scaled", 0.90, 1),
        ("taylor limit=parameters", 0.93, 10),
        ("taylor", 0.91, 10),
        ("find-on limit=parameters", 0.94, 3),
        ("find-on", 0.90, 3),
    ):
        for seed in range(3):
            row = {"benchmark": "find_pays", "task": "digits", "method": words.split()[0], "tried": words, "seed": seed}
            row |= {"held_accuracy": accuracy + 0.001 * seed, "held_loss": 0.1, "parameters": 1000, "flops": 1e6}
            row |= {
                "train_flops": 1e12 * flops,
                "finding_flops": 0.0,
                "epochs": [2, 3],
                "config": {"quick": False, "epochs": 3},
            }
            rows.append(row)
    monkeypatch.setattr(tables_pays, "read", lambda name: tuple(rows))
    said = tables_pays.claim_find("digits").splitlines()
    assert "ahead of the best of the others, Taylor pruning (**+1.00 ± 0.00**), for 30 %" in said[0]
    assert "behind the best of the others, Taylor pruning (**−1.00 ± 0.00**)" in said[1]
    table = tables_pays.tabulate_find("digits").splitlines()
    assert len(table) == 8 and "| 94.10 ± 0.06 |" in next(
        line for line in table if line.startswith("| Firefly, trained on | parameters")
    )
    assert tables_pays.tabulate_find("resnet20") == tables_text.EMPTY
    (changed,) = [row for row in rows if (row["tried"], row["seed"]) == ("find-on", 0)]
    rows.append(changed | {"test_accuracy": 0.5, "test_loss": 1.0})  # is not compared with what is on other images
    assert set(tables_pays.list_found("digits")) == {"find-on"}


def test_smoke_tests_and_doubled_rows_are_no_results(monkeypatch: pytest.MonkeyPatch) -> None:
    row = {"task": "mlp-digits", "tried": "fixed", "seed": 0, "held_accuracy": 0.9, "config": {}}
    smoke = row | {"held_accuracy": 0.1, "config": {"quick": True, "random": 512}}
    monkeypatch.setattr(tables_pays, "read", lambda name: (row, row, smoke, smoke | {"seed": 1}))
    assert tables_pays.find_tried("mlp-digits", "fixed") == {0: row}
    assert tables_pays.count_recipes().splitlines()[-1] == "| mlp-digits | 1 | 1 | 1 |"


def test_the_figure_of_the_readme_is_as_the_results_have_it() -> None:
    points = readme_figure.list_points(read("wider-vgg19"))
    numbers = number_series(readme_figure.SERIES)
    for size, name in readme_figure.SIZES.items():
        drawn = draw_points(points, numbers, "accuracy", size)
        kept = (tables.ROOT / f"docs/figures/{name}.svg").read_text()
        marks = [re.findall(r"<title>[^<]*</title>", text) for text in (drawn, kept)]
        assert marks[0] == marks[1] != [], "python benchmarks/readme_figure.py"
