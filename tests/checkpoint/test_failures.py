"""No failure of a save or a load ever leaves half of anything."""

import os
import random
import signal
import time
from pathlib import Path

import pytest
import torch
from runs import OPTIMIZERS, Grower, Mlp, make_run, refuses, run_in_fresh_process
from torch import nn

from firefly.checkpoint import archive, load, save
from firefly.errors import FireflyError


@pytest.fixture
def run(tmp_path):
    model, optimizer = make_run(OPTIMIZERS["Adam"])
    save(tmp_path / "run", model, optimizer, Grower([1]))
    return tmp_path / "run"


def tensor_file(folder):
    (file,) = folder.glob("tensors-*.safetensors")
    return file


def test_missing_parts_are_named(run, tmp_path):
    refuses(tmp_path / "absent", "no folder .*absent")
    refuses(tmp_path, r"no checkpoint\.json in the folder")
    tensor_file(run).unlink()
    refuses(run, r"tensors-.*\.safetensors is missing")


@pytest.mark.parametrize("name", ["checkpoint.json", "tensors"])
def test_damage_anywhere_is_noticed(run, name):
    file = run / name if "." in name else tensor_file(run)
    whole = file.read_bytes()
    for cut in (0, 1, len(whole) // 2, len(whole) - 1):
        file.write_bytes(whole[:cut])
        refuses(run, "truncated or altered")
    for place in random.Random(0).sample(range(len(whole)), 40):
        if whole[place : place + 1].isspace():
            continue
        for flip in (1, 0x80):
            file.write_bytes(whole[:place] + bytes([whole[place] ^ flip]) + whole[place + 1 :])
            refuses(run, "truncated or altered")
    file.write_bytes(whole)
    load(run, Mlp())


@pytest.mark.parametrize("text", ["[]", "null", "{}", '{"schema": "x"}', '{"schema": null}', '{"schema": 1}'])
def test_other_json_is_refused(run, text):
    (run / "checkpoint.json").write_text(text)
    refuses(run, "truncated or altered")


def test_a_newer_schema_asks_for_an_upgrade(run, monkeypatch):
    monkeypatch.setattr(archive, "SCHEMA", 2)
    save(run, Mlp())
    monkeypatch.undo()
    refuses(run, r"newer Firefly \(schema 2\), this one reads 1: upgrade")


def test_another_model_is_refused(run):
    refuses(run, "modules that the model lacks: fc1, fc2, norm.*as it was before growth", nn.Linear(4, 5))
    deeper = Mlp()
    deeper.extra = nn.Linear(2, 2)
    refuses(run, r"none of the model's tensors: extra\.bias, extra\.weight;", deeper)
    biasless = Mlp()
    biasless.fc1.bias = None
    refuses(run, r"tensors that the model lacks: fc1\.bias;", biasless)
    flat = Mlp()
    flat.fc2.weight = nn.Parameter(torch.zeros(3))
    refuses(run, r"float32 of shape \(3, 9\) where the model has .*float32 of shape \(3,\): fc2\.weight", flat)
    refuses(run, r"float32.*where the model has torch\.float64", Mlp().double())


def test_a_long_list_of_names_is_cut(run):
    save(run, nn.Sequential(*(nn.Linear(1, 1) for _ in range(4))))
    refuses(run, r"none of the model's tensors: 4\.bias, 4\.weight, 5\.bias, 5\.weight, 6\.bias and 3 more;",
            nn.Sequential(*(nn.Linear(1, 1) for _ in range(8))))  # fmt: skip


def test_another_optimizer_is_refused(run):
    model = Mlp()
    refuses(run, "is Adam, the given one AdamW", model, torch.optim.AdamW(model.parameters()))
    refuses(run, r"hold \[6\] parameters, .* \[5\]", model, torch.optim.Adam(list(model.parameters())[1:]))
    halves = [{"params": model.fc1.parameters()}, {"params": [*model.norm.parameters(), *model.fc2.parameters()]}]
    refuses(run, r"hold \[6\] parameters, .* \[2, 4\]", model, torch.optim.Adam(halves))
    refuses(run, r"holds fc1\.weight where .* holds fc2\.bias", model, torch.optim.Adam([*model.parameters()][::-1]))
    refuses(run, "holds fc1.weight where .* not of the model", model, torch.optim.Adam(Mlp().parameters()))


def test_a_grower_that_refuses_leaves_the_model_alone(run):
    class Strict(Grower):
        def load_state_dict(self, state):
            raise FireflyError("another schedule")

    model = Mlp()
    refuses(run, "another schedule", model, torch.optim.Adam(model.parameters()), Strict([2]))


def files(folder):
    return sorted(path.name for path in folder.iterdir())


def test_saving_again_replaces_and_leaves_other_files_alone(run):
    old = tensor_file(run).name
    for mine in ("tensors-mine.safetensors", "notes.txt"):
        (run / mine).write_text("mine")
    (run / f"tensors-{'0' * 16}.safetensors").write_text("left by a kill")
    (run / f"checkpoint-{'0' * 16}.tmp").write_text("left by a kill")
    save(run, Mlp(hidden=7))
    assert load(run, Mlp()).hidden == 7
    assert len(files(run)) == 4 and old not in files(run)
    assert {"checkpoint.json", "tensors-mine.safetensors", "notes.txt"} < set(files(run))


@pytest.mark.parametrize("stage", ["tensors", "half the tensors", "json", "half the json", "replace", "remove"])
def test_a_save_that_fails_leaves_a_whole_checkpoint(run, monkeypatch, stage):
    before, write = files(run), archive.write

    def fail(*_, **__):
        raise OSError("no space left")

    def write_some(path, data):
        if ("json" in stage) == path.name.endswith(".tmp"):
            if "half" in stage:
                path.write_bytes(data[: len(data) // 2])
            fail()
        write(path, data)

    with monkeypatch.context() as patch:
        if stage == "replace":
            patch.setattr(os, "replace", fail)
        elif stage == "remove":
            patch.setattr(Path, "unlink", fail)
        else:
            patch.setattr(archive, "write", write_some)
        with pytest.raises(OSError, match="no space left"):
            save(run, Mlp(hidden=7))
    assert load(run, Mlp()).hidden == (7 if stage == "remove" else 9)
    assert files(run) == before or stage in ("replace", "remove")
    save(run, Mlp(hidden=8))
    assert load(run, Mlp()).hidden == 8 and len(files(run)) == 2


class Constant(nn.Module):
    """Every number in it is `value`, so a mixture of two saves shows."""

    def __init__(self, value=0):
        super().__init__()
        self.value = value
        self.tensors = nn.ParameterList(torch.full((50, 50 + value % 3), float(value)) for _ in range(5))


def save_for_ever(folder, first):
    value = first
    while True:
        save(folder, Constant(value), grower=Grower(value))
        value += 2


def check_whole(folder):
    grower = Grower()
    model = load(folder, Constant(), grower=grower)
    assert {model.value, *torch.cat([p.flatten() for p in model.tensors]).tolist()} == {grower.history}


def kill_savers(folder):
    """Fork two savers into one folder, load while they save, kill them at a random moment; again and again."""
    save(folder, Constant(), grower=Grower(0))
    deadline = time.monotonic() + 1
    for _ in range(40):
        children = []
        for first in (1, 2):
            children.append(os.fork())
            if children[-1] == 0:
                save_for_ever(folder, first)
        time.sleep(random.uniform(0.005, 0.06))
        check_whole(folder)
        for child in children:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
        check_whole(folder)
        if time.monotonic() > deadline:
            break
    save(folder, Constant(3), grower=Grower(3))
    assert len(files(folder)) == 2


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_killed_savers_always_leave_a_whole_checkpoint(tmp_path):
    run_in_fresh_process(f"test_failures.kill_savers(Path({str(tmp_path)!r}))")
