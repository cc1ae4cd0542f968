"""SIGKILL at any moment of a process that trains, deepens, grows and saves; the next one goes on from the folder.

No checkpoint may be torn, and every run must end as the one that nobody killed did, bit for bit.
"""

import os
import random
import signal
import time
from pathlib import Path
from typing import Any

import torch

import firefly
from attacks.run import Run, Tally, batches, example, fingerprint, load, loss, make_run, save, train

EPOCHS = 10


def work(folder: Path) -> None:
    """The whole run, from where the folder says it stopped."""
    run = make_run()
    epoch = 0
    if (folder / "checkpoint.json").exists():
        load(folder, run)
        epoch = find_epoch(run)
    while epoch < EPOCHS:
        train(run)
        if epoch == 1:
            firefly.deepen(run.model, example(), optimizer=run.optimizer)
        if epoch % 3 == 2:
            run.grower.grow(loss, batches(), run.optimizer)
        save(folder, run)
        epoch += 1


def find_epoch(run: Run) -> int:
    """How many epochs it has trained: Adam counts the steps of the last bias, which never grows."""
    return int(run.optimizer.state[list(run.model.children())[-1].bias]["step"]) // len(batches())


def begin(folder: Path) -> int:
    """The run in a child process; its id."""
    child = os.fork()
    if child == 0:
        code = 1
        try:
            work(folder)
            code = 0
        finally:
            os._exit(code)
    return child


def attack(count: int, folder: Path, seed: int = 0) -> Tally:
    """Kill runs until they end; nothing in this process uses autograd, which must not be forked."""
    tally, luck = Tally(), random.Random(seed)
    firefly.trace(make_run().model, example())  # so that no child has to import what it needs
    begun = time.perf_counter()
    assert os.waitpid(begin(folder / "whole"), 0)[1] == 0
    seconds = time.perf_counter() - begun
    whole, number = read(folder / "whole"), 0
    while tally.tried < count:
        child, code = begin(folder / f"{number}"), None
        deadline = time.perf_counter() + luck.uniform(0, seconds / 3)
        while code is None and time.perf_counter() < deadline:
            time.sleep(luck.uniform(0, 0.002))
            ended, status = os.waitpid(child, os.WNOHANG)
            code = os.waitstatus_to_exitcode(status) if ended else None
        if code is None:
            os.kill(child, signal.SIGKILL)
            code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
            tally.count("killed")
        judge(tally, folder / f"{number}", code, whole)
        number += code >= 0
    return tally


def judge(tally: Tally, folder: Path, code: int, whole: Any) -> None:
    """What a process that ended with this code has left."""
    if code > 0:
        tally.blame("lost", f"{folder.name} cannot go on")
    elif code == 0 and read(folder) != whole:
        tally.blame("lost", f"{folder.name} ended otherwise than undisturbed")
    elif code < 0 and (folder / "checkpoint.json").exists():
        try:
            read(folder)
        except Exception as error:
            tally.blame("lost", f"{folder.name} holds no whole checkpoint: {error}")


def read(folder: Path) -> Any:
    """What a fresh run becomes by loading this folder."""
    with torch.random.fork_rng():
        return fingerprint(load(folder, make_run()))
