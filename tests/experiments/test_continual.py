"""The experiments of continual learning: tasks part the data, all methods run, no row is measured twice."""

import json
import shutil
from argparse import ArgumentParser
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from firefly.errors import FireflyError
from firefly.experiments import continual
from firefly.experiments.continual import CONTINUAL, QUICK, SETTINGS, find_folder, list_courses, plain
from firefly.experiments.continual import course as continual_course
from firefly.experiments.continual.classroom import Class, count_epochs
from firefly.experiments.continual.course import SUPERCLASSES, Course, list_parts, part_classes
from firefly.experiments.continual.methods import METHODS, SIZED
from firefly.experiments.continual.rivals import Penalty, measure_fisher
from firefly.experiments.continual.table import group
from firefly.experiments.rows import count, read_rows
from firefly.vision.data import Images

TINY = replace(
    QUICK,
    widths=2,
    epochs=1,
    first_epochs=1,
    steps=2,
    images=90,
    candidates=2,
    start=60,
    parameters=60,
    fisher=4,
    mask_epochs=1,
)


def run(folder: Path, *words: str) -> None:
    parser = ArgumentParser()
    CONTINUAL.add_arguments(parser)
    CONTINUAL.run(parser.parse_args(["--runs", str(folder), "--device", "cpu", *words]))


@pytest.mark.parametrize("seed", [0, 1])
@pytest.mark.parametrize("course", [Course(), Course(ways=10), Course(split="superclass"), QUICK])
def test_every_class_is_in_one_task(course: Course, seed: int) -> None:
    parts = part_classes(course, seed)
    assert len(parts) == course.ways and {len(part) for part in parts} == {course.classes}
    assert sorted(label for part in parts for label in part) == list(range(course.ways * course.classes))
    if course.split == "superclass":
        assert set(Counter(SUPERCLASSES).values()) == {5}
        assert all(len({SUPERCLASSES[k] for k in part}) == 1 for part in parts)


def test_splits_differ_by_seed() -> None:
    assert part_classes(Course(), 0) != part_classes(Course(), 1)


def test_a_rotated_order_has_the_same_tasks_and_every_folder_is_another() -> None:
    plainly, turned = part_classes(Course(), 7), part_classes(Course(rotate=15), 7)
    assert turned == plainly[15:] + plainly[:15]
    rotations = [part_classes(Course(rotate=k), 7) for k in (0, 5, 10, 15)]
    places = [[order.index(task) // 5 for order in rotations] for task in plainly]
    assert all(sorted(quarters) == [0, 1, 2, 3] for quarters in places)
    folders = {find_folder(Path(), Course(rotate=k, parameters=n), "firefly", 0, 0) for k in (0, 5) for n in (10, 20)}
    assert len(folders) == 4


def test_orders_and_budgets_are_courses_of_their_own() -> None:
    parser = ArgumentParser()
    CONTINUAL.add_arguments(parser)
    words = ["--rotate", "0", "25", "--budgets", "100", "200"]
    courses = list_courses(parser.parse_args(["--ways", "20", *words]))
    assert [(one.rotate, one.parameters) for one in courses] == [(0, 100), (0, 200), (5, 100), (5, 200)]
    full = list_courses(parser.parse_args(["--ways", "10", "--full", "--budgets", "32", "128"]))
    assert [one.neurons for one in full] == [32, 128]
    assert list_courses(parser.parse_args([])) == [QUICK]


@pytest.mark.parametrize("held_out", [False, True])
def test_no_image_is_trained_on_and_measured(held_out: bool) -> None:
    parts = list_parts(replace(QUICK, held_out=held_out), 0, None)
    for part in parts:
        sets = [{image.numpy().tobytes() for image in one.images} for one in (part.train, part.valid, part.test)]
        assert not sets[0] & sets[1] and not sets[0] & sets[2] and not sets[1] & sets[2]
        assert all(set(one.labels.tolist()) == {0, 1} for one in (part.train, part.valid, part.test))
    assert sum(len(part.test.labels) for part in parts) == (600 if held_out else 2000)


def test_tasks_may_be_trained_on_all_their_images() -> None:
    parted, whole = (list_parts(replace(QUICK, aside=aside), 0, None) for aside in (True, False))
    for some, every in zip(parted, whole):
        assert every.valid is None
        assert len(every.train.labels) == len(some.train.labels) + len(some.valid.labels)
        assert torch.equal(every.test.images, some.test.images)


@pytest.mark.slow
@pytest.mark.parametrize("aside", [True, False])
def test_all_methods_see_all_tasks_and_none_is_run_twice(
    aside: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(SETTINGS["quick"], None, replace(TINY, aside=aside, cutout=2, label_smoothing=0.1))
    methods = list(METHODS)
    with pytest.raises(FireflyError, match="run --methods firefly"):
        run(tmp_path, "--methods", "ewc")
    run(tmp_path, "--methods", *methods)
    rows = read_rows(tmp_path / "results.jsonl")
    last = {row["method"]: row for row in rows if row["final"]}
    assert list(last) == methods
    for method in methods:
        steps = [row["step"] for row in rows if row["method"] == method]
        assert steps == ([4] if method == "joint" else [0, 1, 2, 3, 4])
        assert len(last[method]["accuracies"]) == 5
    for method in SIZED:
        assert last[method]["parameters"] <= last["firefly"]["parameters"]
    for method in set(METHODS) - {"ewc", "fine-tune"}:
        assert last[method]["forgotten"] == 0
    assert all((tmp_path / f"continual{part}.svg").stat().st_size > 1000 for part in ("", "-sizes"))
    run(tmp_path, "--methods", *methods)
    assert read_rows(tmp_path / "results.jsonl") == rows


@pytest.mark.slow
@pytest.mark.parametrize("size", ["quick", "full"])
def test_tasks_of_cifar_100_are_learnt(size: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def draw(course: Course, root: Path | None, split: str) -> Images:
        generator = torch.Generator().manual_seed(0)
        pictures = torch.randint(0, 256, (4400, 3, 32, 32), generator=generator, dtype=torch.uint8)
        whole = Images(pictures, torch.arange(4400) % 100, 100, "cifar100")
        return whole.take(torch.arange(4000) if split == "train" else torch.arange(4000, 4400))

    monkeypatch.setattr(continual_course, "load", draw)
    short = {"widths": 4, "epochs": 1, "first_epochs": 1, "start_epochs": 1, "mask_epochs": 1}
    short |= {"batch": 16, "steps": 2, "candidates": 2, "fisher": 2}
    budget = {"start": 2000, "parameters": 2000, "neurons": 8 if size == "full" else 0}
    course = replace(SETTINGS[size][20], **short, **budget)
    parts = list_parts(course, 0, None)
    for method in ("firefly", "firefly-deaf", "ewc", "equal", "cpg"):
        room = Class(course, parts[:2], torch.device("cpu"), tmp_path / method, 0, 20_000)
        assert [len(step[0]) for step in METHODS[method](room)] == [1, 2]


def test_what_was_stopped_goes_on_with_the_same_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(SETTINGS["quick"], None, TINY)
    whole, broken, methods = tmp_path / "whole", tmp_path / "broken", ["firefly", "ewc", "cpg"]
    run(whole, "--methods", *methods)
    append, written = continual.append, []

    def stop(path: Path, *rows: Any) -> None:
        append(path, *rows)
        written.extend(rows)
        if len(written) in (2, 7, 12):
            raise KeyboardInterrupt

    monkeypatch.setattr(continual, "append", stop)
    for _ in range(3):
        with pytest.raises(KeyboardInterrupt):
            run(broken, "--methods", *methods)
    run(broken, "--methods", *methods)
    passing = {"train_seconds": 0, "growth_seconds": 0, "bytes": 0}
    timeless = [[row | passing for row in read_rows(one / "results.jsonl")] for one in (whole, broken)]
    assert timeless[0] == timeless[1] and len(written) == 15


def test_all_methods_have_as_many_epochs_in_every_task(tmp_path: Path) -> None:
    cpu = torch.device("cpu")
    for size, ways in (("quick", 10), ("quick", 20), ("full", 10), ("full", 20)):
        course = SETTINGS[size][ways]
        more = course.start_epochs + course.epochs - count_epochs(Class(course, [], cpu, tmp_path, 0))
        assert more == {"quick": 15, "full": 0}[size]  # of the first task only; docs/continual.md says so
    course = replace(TINY, start_epochs=2)
    room = Class(course, list_parts(course, 0, None)[:2], cpu, tmp_path, 0)
    told = [more["epochs"] for method in ("firefly", "individual") for _, _, more in METHODS[method](room)]
    assert told == [3, 3, 3, 3] and count_epochs(room) == 3


def test_a_run_that_lost_its_folder_begins_anew_and_its_rows_count(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(SETTINGS["quick"], None, TINY)
    run(tmp_path, "--methods", "individual")
    path = tmp_path / "results.jsonl"
    rows = read_rows(path)
    stale = [row | {"accuracies": dict.fromkeys(row["accuracies"], 0.1)} for row in rows[:2]]
    path.write_text("".join(json.dumps(row) + "\n" for row in stale))
    shutil.rmtree(next(tmp_path.glob("individual-*")))
    run(tmp_path, "--methods", "individual")
    assert len(read_rows(path)) == 7
    timeless = [[row | {"train_seconds": 0} for row in found] for found in (rows, continual.read_own(path, TINY))]
    assert timeless[0] == timeless[1]
    assert [len(found) for found in group(read_rows(path))["a network per task"].values()] == [1] * 5


def test_a_penalty_of_several_tasks_is_the_sum_of_theirs() -> None:
    torch.manual_seed(0)
    model, penalty, far = nn.Linear(3, 2), Penalty({}, {}), []
    at, fisher = [{"weight": torch.randn(2, 3)} for _ in range(3)], [{"weight": torch.rand(2, 3)} for _ in range(3)]
    for theta, weight in zip(at, fisher):
        penalty = penalty.add(theta, weight)
        far.append((theta["weight"], weight["weight"]))
    loss, batch = penalty.make_loss(model, 2.0, Course(lr=0.01)), (torch.randn(4, 3), torch.tensor([0, 1, 0, 1]))
    plain_loss = nn.functional.cross_entropy(model(batch[0]), batch[1])
    (found,) = torch.autograd.grad(loss(model, batch) - plain_loss, [model.weight])
    wanted = sum(2 * weight * (model.weight.detach() - theta) for theta, weight in far)
    assert torch.allclose(found, wanted, atol=1e-5)


def test_fisher_is_the_mean_square_of_gradients(tmp_path: Path) -> None:
    parts = list_parts(TINY, 0, None)
    room = Class(replace(TINY, fisher=500), parts, torch.device("cpu"), tmp_path, 0)
    model = nn.Sequential(nn.Flatten(), nn.Linear(196, 2))
    found = measure_fisher(model, parts[0], room, dict(model.named_parameters()))
    images = parts[0].train.images.flatten(1)
    answers = model(parts[0].train.images).softmax(1).detach()
    expected = (answers[:, :1] * answers[:, 1:] * images.square()).mean(0)  # of a logistic regression: p (1-p) x²
    assert len(images) < 500
    assert torch.allclose(found["1.weight"].sum(0), 2 * expected, rtol=0.5, atol=0.02)


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (["--full"], "give --ways"),
        (["--split", "superclass"], "--ways 20"),
        (["--set", "colour=red"], "KEY=VALUE"),
        (["--budgets", "0"], "--budgets 0"),
        (["--seeds", "0", "-1"], "--seeds 0 -1: give whole numbers"),
        (["--set", "ways=6"], "ways=6: digits is parted"),
        (["--set", "ways=0"], "ways=0"),
        (["--set", "own=wide"], "own='wide': use 'full'"),
        (["--set", "split=odd"], "split='odd'"),
        (["--set", "split=superclass"], "--ways 20"),
        (["--set", "parameters=0"], "parameters=0: give a whole number from 1 up"),
        (["--set", "neurons=-1"], "neurons=-1: give a whole number from 0 up"),
        (["--set", "images=0"], "images=0: give"),
        (["--set", "lr=0"], "lr=0"),
    ],
)
def test_what_is_refused(tmp_path: Path, words: list[str], why: str) -> None:
    with pytest.raises(FireflyError, match=why):
        run(tmp_path, *words)


def test_settings_are_plain() -> None:
    for settings in SETTINGS.values():
        for course in settings.values():
            assert Course(**plain(course)) == course and json.dumps(plain(course))


def test_widths_of_rivals_in_multiples_are_as_large_as_allowed_and_no_larger(tmp_path: Path) -> None:
    for limit in (354_203, 460_000):
        room = Class(Course(multiple=8), [], torch.device("cpu"), tmp_path, 0)
        sizes = room.fit_widths(limit)
        assert isinstance(sizes, list) and len(sizes) == 13 and not any(size % 8 for size in sizes)
        assert 0.95 * limit < count(room.make(5, sizes)) <= limit
    assert Class(Course(), [], torch.device("cpu"), tmp_path, 0).fit_widths(354_203) == 57
