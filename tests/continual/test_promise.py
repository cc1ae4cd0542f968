"""The promise: whatever is learnt later, a task's network answers as when it was learnt, bit for bit (Sec. 2.4)."""

import hashlib
import json
import os
import random
import signal
import subprocess
import sys
import time
import traceback
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import pytest
import torch
from nets import CLASSES, EXAMPLE, NETS, RECIPE, hash_logits, learn_task
from recount import recount

from firefly.continual import Master

PICKS = ("all", "all", "mask", "all", "none", "all")  # of six tasks
ASK = [sys.executable, str(Path(__file__).parent / "ask.py")]


class Learnt(NamedTuple):
    """Six tasks in a folder, and what was noted as soon as each was learnt."""

    master: Master
    answers: dict[str, str]
    files: dict[str, str]


def hash_files(folder: Path) -> dict[str, str]:
    paths = sorted(path for path in folder.rglob("*") if path.is_file())
    return {str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest() for path in paths}


def learn_all(name: str, folder: Path) -> Learnt:
    master, answers, files = Master(NETS[name], EXAMPLE, folder), {}, {}
    for number, pick in enumerate(PICKS):
        learn_task(master, number, pick)
        answers[f"task {number}"] = hash_logits(master.network(f"task {number}"))
        files |= {path: value for path, value in hash_files(folder).items() if path not in files}
    return Learnt(master, answers, files)


@pytest.fixture(scope="module")
def learnt(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Learnt]:
    root = tmp_path_factory.mktemp("masters")
    return {name: learn_all(name, root / name) for name in NETS}


def test_a_fresh_process_answers_as_when_each_task_was_learnt(learnt: dict[str, Learnt]) -> None:
    folders = [str(one.master.folder) for one in learnt.values()]
    asked = subprocess.run([*ASK, *folders], check=True, capture_output=True, text=True)
    assert json.loads(asked.stdout) == {name: one.answers for name, one in learnt.items()}
    assert all(len(set(one.answers.values())) == len(PICKS) for one in learnt.values())


@pytest.mark.parametrize("name", NETS)
def test_files_of_older_tasks_stay_byte_for_byte(learnt: dict[str, Learnt], name: str) -> None:
    folder = learnt[name].master.folder
    assert folder is not None
    assert hash_files(folder) == learnt[name].files
    assert sorted(path.name for path in folder.iterdir()) == ["master.json", *(f"task-00{k}" for k in range(1, 7))]


@pytest.mark.parametrize("name", NETS)
def test_files_alone_tell_the_size_of_the_union(learnt: dict[str, Learnt], name: str) -> None:
    master = learnt[name].master
    assert master.folder is not None
    counted = recount(master.folder)
    assert counted.pop("union") == master.parameters
    assert counted == {task: master.count(task) for task in master.tasks}
    separate = sum(sum(p.numel() for p in master.network(task).parameters()) for task in master.tasks)
    assert master.parameters < separate


@pytest.mark.parametrize("name", NETS)
def test_every_task_grew_and_unlocked_copies_took_their_places(learnt: dict[str, Learnt], name: str) -> None:
    master, unlocked = learnt[name].master, 0
    for task in master.tasks.values():
        (growth,) = task.told["growths"]
        assert sum(sum(kinds.values()) for kinds in growth["added"].values()) > 0
        unlocked += sum(kinds.get("unlock", 0) for kinds in growth["added"].values())
        for width, numbers in task.lists.items():
            assert len(numbers) == len(numbers.unique())
            left = growth["added"].get(width, {}).get("unlock", 0)
            assert len(numbers) == growth["widths"][width][1] - left
    assert unlocked > 0
    assert [task.classes for task in master.tasks.values()] == list(CLASSES)


def test_the_network_of_a_task_is_plain_and_a_copy(learnt: dict[str, Learnt]) -> None:
    master = learnt["resnet"].master
    model = master.network("task 3")
    assert type(model) is NETS["resnet"]
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(1)
    assert hash_logits(master.network("task 3")) == learnt["resnet"].answers["task 3"]


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def test_the_promise_holds_where_the_step_is_captured(device: str) -> None:
    """On a GPU the lock is a part of the captured step, and of step one; answers are compared on the CPU."""
    master = Master(NETS["resnet"], EXAMPLE)
    recipe = replace(RECIPE, epochs=3, device=device)
    answers: dict[str, str] = {}
    for number, pick in enumerate(("all", "mask", "all")):
        learn_task(master, number, pick, recipe=recipe)
        answers[f"task {number}"] = hash_logits(master.network(f"task {number}"))
        assert {name: hash_logits(master.network(name)) for name in answers} == answers
    assert sum(len(numbers) for numbers in master["task 2"].lists.values()) > 11


# ---- kill -9 ---------------------------------------------------------------------------------------------------------


def learn_in_child(name: str, folder: Path, tasks: int) -> int:
    """A process that learns what is left of the tasks, and then ends."""
    child = os.fork()
    if child:
        return child
    try:
        master = Master(NETS[name], EXAMPLE, folder)
        for number in range(len(master), tasks):
            learn_task(master, number, PICKS[number % len(PICKS)])
        os._exit(0)
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(1)


def finish(child: int) -> None:
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def kill_and_go_on(name: str, folder: Path, tasks: int, kills: int, longest: float) -> list[str]:
    """Kill the learning at random moments, then let it end with one task more; what is in the folder then.

    Whoever is killed when all is written leaves a lock and a desk, which the next task clears away.
    """
    moments, seen = random.Random(0), []
    for _ in range(kills):
        child = learn_in_child(name, folder, tasks)
        time.sleep(moments.uniform(0, longest))
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        seen.append(hash_files(folder) if folder.exists() else {})
    assert sum(any(path.startswith("learning") for path in before) for before in seen) >= kills // 4
    finish(learn_in_child(name, folder, tasks + 1))
    last = hash_files(folder)
    for before in seen:
        kept = {path: value for path, value in before.items() if path.startswith("task-")}
        assert kept.items() <= last.items()
    return sorted(path.name for path in folder.iterdir())


SLOW = [pytest.param(name, 6, 20, marks=pytest.mark.slow) for name in NETS]


@pytest.mark.parametrize(("name", "tasks", "kills"), [("mlp", 2, 3), *SLOW])
def test_a_learning_that_is_killed_ends_as_if_it_was_not(name: str, tasks: int, kills: int, tmp_path: Path) -> None:
    Master(NETS[name], EXAMPLE)  # whatever a first trace imports, the children then have
    start = time.perf_counter()
    finish(learn_in_child(name, tmp_path / "straight", tasks + 1))
    longest = time.perf_counter() - start
    files = kill_and_go_on(name, tmp_path / "killed", tasks, kills, 3 * longest / kills)
    assert files == ["master.json", *(f"task-00{k}" for k in range(1, tasks + 2))]
    straight, killed = (Master(NETS[name], EXAMPLE, tmp_path / folder) for folder in ("straight", "killed"))
    for task in straight:
        assert hash_logits(killed.network(task)) == hash_logits(straight.network(task))
