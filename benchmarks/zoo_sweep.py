"""Which models of torchvision, timm and transformers can be grown: every one is traced, grown, and checked in float64.

    python benchmarks/zoo_sweep.py --jobs 16 --out results/zoo.jsonl           (an hour of 16 cores)
    python benchmarks/zoo_sweep.py --packages transformers --only "GPT*"       (a few seconds each)
    python benchmarks/tables.py --show zoo                                     (what was found)

One row a model; its seconds are a processor's. `neurons` counts those of all widths but the model's outputs and the
rows of its tables (`outside`).
The check grows by neurons chosen at random, first new ones, then splits, with steps of 1e-9 (1e-5 in a model that only
runs in float32): `function_change` is the largest difference of an output on inputs that were not seen, as a share of
the largest output, and must vanish with the step: it may be 1e-5 (1e-2), or a hundred times what weights that are off
by such a share do to the model (`shaken`). The committed model must differ from the old one by what `grow` announced.
Weights that begin at 0 are made small first (`wake`). A model that has a row is left out.
"""

from __future__ import annotations

import argparse
import copy
import fcntl
import fnmatch
import json
import re
import signal
import subprocess
import sys
import tempfile
import time
import warnings
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves, tree_map
from zoo_models import bring, build, list_models

import firefly
from firefly.baselines.random import random_growth
from firefly.errors import first_line
from firefly.experiments.rows import append, hardware, read_rows
from firefly.surgery.norms import average_statistics

PACKAGES = ("torchvision", "timm", "transformers")
LARGE = 60_000_000  # parameters; such models take turns, for the sake of memory
STEPS = {"float64": (1e-9, 1e-5), "float32": (1e-5, 1e-2)}  # of the check, and what a change may be
OUTSIDE = ("an output of the model", "looks rows up")
Row = dict[str, Any]
Batch = tuple[dict[str, Any], int]


class TooSlow(Exception):
    """The time for one model is over."""


def examine(package: str, name: str, seconds: int) -> Row:
    """The row of one model."""
    row: Row = {"benchmark": "zoo", "package": package, "model": name}
    used = [torch, firefly, bring(package)]
    row["versions"] = {one.__name__: getattr(one, "__version__", "unknown") for one in used}
    row["device"] = hardware(torch.device("cpu"))
    try:
        model, example = build(package, name)
    except Exception as error:
        return row | {"outcome": "does not run", "note": first_line(error)}
    wake(model)
    row["parameters"] = sum(p.numel() for p in model.parameters())
    with taking_turns(row["parameters"] > LARGE):
        signal.signal(signal.SIGPROF, lambda *_: stop())
        signal.setitimer(signal.ITIMER_PROF, seconds)  # of its own work: others may be on the machine
        try:
            return row | grow_and_check(row, model, example)
        except TooSlow:
            return row | {"outcome": "too slow", "note": f"over {seconds} s"}
        except firefly.FireflyError as error:
            outcome = "export failed" if "export" in str(error) else "does not run"
            return row | {"outcome": outcome, "note": str(error)}
        except Exception as error:
            return row | {"outcome": "wrong", "note": f"{type(error).__name__}: {first_line(error)}"}
        finally:
            signal.setitimer(signal.ITIMER_PROF, 0)


@torch.no_grad()
def wake(model: nn.Module) -> None:
    """Weights that begin at 0 (heads, some norms) are made small: they pass no slope on until the first step."""
    for name, parameter in model.named_parameters():
        if not name.endswith("bias") and parameter.is_floating_point() and not parameter.any():
            parameter.normal_(std=0.02)


def stop() -> None:
    raise TooSlow


@contextmanager
def taking_turns(large: bool) -> Iterator[None]:
    """Only one process at a time is inside with a large model."""
    with (Path(tempfile.gettempdir()) / "firefly-zoo-sweep.lock").open("w") as file:
        if large:
            fcntl.flock(file, fcntl.LOCK_EX)
        yield


def grow_and_check(row: Row, model: nn.Module, example: dict[str, Any]) -> Row:
    """Fill the row as far as it goes, so that a model which is too slow tells what is known of it."""
    start = time.process_time()
    anatomy = firefly.trace(model, example)
    row["trace_seconds"] = round(time.process_time() - start, 2)
    row |= describe(anatomy)
    if not anatomy.growable():
        return row | {"outcome": "nothing free"}
    start = time.process_time()
    options: Row = {"example": example, "anatomy": anatomy, "evaluate_on": 1, "budget": firefly.Neurons(16)}
    growth = firefly.grow(
        copy.deepcopy(model),
        loss_of,
        batches_of(example),
        neighborhood=[firefly.Split(), firefly.New(4)],
        steps=3,
        **options,
    )
    row["grow_seconds"] = round(time.process_time() - start, 2)
    row |= {"added": growth.neurons, "notes": list(growth.notes)}
    row["precision"] = "float64" if runs_double(model, example) else "float32"
    tiny, tolerance = STEPS[row["precision"]]
    if row["precision"] == "float64":
        model, example = model.double(), double(example)
    row |= check(model, example, options, tiny)
    if row["function_change"] > max(tolerance, 100 * row["shaken"]) or row["commit_error"] > tolerance:
        return row | {"outcome": "wrong"}
    return row | {"outcome": "grew" if growth.neurons else "zero gains"}


def runs_double(model: nn.Module, example: dict[str, Any]) -> bool:
    """Some models make tensors of float32 as they run."""
    try:
        run(copy.deepcopy(model).double(), double(example))
    except RuntimeError:
        return False
    return True


def describe(anatomy: firefly.Anatomy) -> Row:
    """Widths and neurons, free ones among them, and why the others are pinned."""
    inside = [width for width in anatomy if not any(word in (width.pinned or "") for word in OUTSIDE)]
    free = [width for width in inside if width.pinned is None]
    pinned = [width for width in inside if width.pinned is not None]
    reasons: Counter[str] = Counter()
    for width in pinned:
        reasons[plain_reason(str(width.pinned))] += width.size
    return {
        "widths": len(inside),
        "free_widths": len(free),
        "neurons": sum(width.size for width in inside),
        "free_neurons": sum(width.size for width in free),
        "outside": sum(width.size for width in anatomy) - sum(width.size for width in inside),
        "pinned": dict(reasons.most_common()),
        "examples": {plain_reason(str(width.pinned)): f"{width.name}: {width.pinned}" for width in pinned},
    }


def plain_reason(reason: str) -> str:
    """Without names of files, layers and sizes, so that equal reasons can be counted."""
    reason = re.sub(r" \([^()]*:\d+\)| in [\w.]+(?= )", "", reason.partition(": ")[0])
    return re.sub(r"[\w.]*\.[\w.]+ (both makes|makes two|reads two|is frozen)", r"one tensor \1", reason)


def loss_of(model: nn.Module, batch: Batch) -> Tensor:
    """Every output shall be noise of its own."""
    example, seed = batch
    generator = torch.Generator().manual_seed(seed)
    found = outputs_of(model, example)
    return torch.stack([(out - torch.randn(out.shape, generator=generator)).square().mean() for out in found]).sum()


def outputs_of(model: nn.Module, example: dict[str, Any]) -> list[Tensor]:
    found = model(**example)
    found = found.logits if hasattr(found, "logits") else found
    return [leaf for leaf in tree_leaves(found) if isinstance(leaf, Tensor) and leaf.is_floating_point()]


def batches_of(example: dict[str, Any], count: int = 2) -> list[Batch]:
    return [(vary(example, seed), seed) for seed in range(count)]


def vary(example: dict[str, Any], seed: int) -> dict[str, Any]:
    """Another input of the same shape."""
    torch.manual_seed(seed)
    return tree_map(lambda x: torch.randn_like(x) if x.is_floating_point() else x.roll(seed + 1, -1), example)


def double(value: Any) -> Any:
    return tree_map(lambda x: x.double() if isinstance(x, Tensor) and x.is_floating_point() else x, value)


def check(model: nn.Module, example: dict[str, Any], options: Row, tiny: float) -> Row:
    """New neurons, then splits, by tiny steps: the function stays, and changes as `grow` said (module docstring)."""
    with torch.no_grad():  # untrained norms let the signal of a deep network vanish: 1e-22 at the output of some
        average_statistics(model, loss_of, batches_of(example, 8))
    unseen = vary(example, 7)
    before = run(model, unseen)
    shaken = difference(run(shake(model, tiny), unseen), before)
    scale = max((one.abs().max().item() for one in before), default=0.0) or 1.0
    error, checked = 0.0, Counter[str]()
    for kind in (firefly.New(4, epsilon=tiny), firefly.Split(tiny)):
        seen = run(model, example)
        own = {"example": example, "neighborhood": [kind], "method": random_growth(), "seed": 1}
        growth = firefly.grow(model, loss_of, batches_of(example), **options | own)
        error = max(error, abs(difference(run(model, example), seen) - growth.output_change) / scale)
        checked[type(kind).__name__.lower()] = growth.neurons
        options["anatomy"] = options["anatomy"].resized({name: size for name, (_, size) in growth.widths.items()})
    change = difference(run(model, unseen), before) / scale
    return {"function_change": change, "shaken": shaken / scale, "commit_error": error, "checked": checked}


@torch.no_grad()
def shake(model: nn.Module, share: float) -> nn.Module:
    """A copy whose weights are off by this share: what an untrained, deep network makes of next to nothing."""
    copied, generator = copy.deepcopy(model), torch.Generator().manual_seed(0)
    for parameter in copied.parameters():
        parameter *= 1 + share * torch.randn(parameter.shape, generator=generator, dtype=parameter.dtype)
    return copied


@torch.no_grad()
def run(model: nn.Module, example: dict[str, Any]) -> list[Tensor]:
    training = model.training
    torch.manual_seed(0)
    try:
        return [out.clone() for out in outputs_of(model.eval(), example)]
    finally:
        model.train(training)


def difference(new: list[Tensor], old: list[Tensor]) -> float:
    if [one.shape for one in new] != [one.shape for one in old]:
        return float("inf")
    return max(((a - b).abs().max().item() for a, b in zip(new, old) if a.numel()), default=0.0)


# ---- all of them -----------------------------------------------------------------------------------------------------


def sweep(how: argparse.Namespace) -> None:
    """One process a model, so many at a time; rows come as they are done."""
    done = {(row["package"], row["model"]) for row in (read_rows(how.out, under_way=True) if how.out.exists() else ())}
    wanted = [(package, name) for package in how.packages for name in list_models(package)]
    ahead = [pair for pair in wanted if pair not in done and fnmatch.fnmatch(pair[1], how.only)]
    print(f"{len(wanted)} models, {len(wanted) - len(ahead)} done or not asked for", flush=True)
    running: dict[tuple[str, str], subprocess.Popen[str]] = {}
    while ahead or running:
        while ahead and len(running) < how.jobs:
            pair = ahead.pop(0)
            running[pair] = start(*pair, how.seconds)
        for pair in [pair for pair, process in running.items() if process.poll() is not None]:
            row = read_answer(*pair, running.pop(pair))
            append(how.out, row)
            print(f"{row['outcome']:14}{pair[0]:14}{pair[1]:40}{row.get('note', '')[:120]}", flush=True)
        time.sleep(0.2)


def start(package: str, name: str, seconds: int) -> subprocess.Popen[str]:
    command = [sys.executable, __file__, "--one", package, name, "--seconds", str(seconds)]
    with tempfile.TemporaryFile() as trash:
        return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=trash, text=True)


def read_answer(package: str, name: str, process: subprocess.Popen[str]) -> Row:
    text = process.communicate()[0]
    lines = [line for line in text.splitlines() if line.startswith('{"benchmark"')]
    died = {
        "benchmark": "zoo",
        "package": package,
        "model": name,
        "outcome": "does not run",
        "note": f"exit status {process.returncode}",
    }
    return json.loads(lines[-1]) if lines else died


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else None)
    parser.add_argument("--packages", nargs="+", default=PACKAGES, choices=PACKAGES)
    parser.add_argument("--only", default="*", metavar="PATTERN", help="names of models, as in 'resnet*'")
    parser.add_argument("--jobs", type=int, default=1, help="processes, one thread each")
    parser.add_argument("--seconds", type=int, default=600, help="of a processor, for one model")
    parser.add_argument("--out", type=Path, default=Path("results/zoo.jsonl"))
    parser.add_argument("--one", nargs=2, metavar=("PACKAGE", "MODEL"), help=argparse.SUPPRESS)
    how = parser.parse_args()
    if how.one:
        torch.set_num_threads(1)
        warnings.simplefilter("ignore")
        print(json.dumps(examine(how.one[0], how.one[1], how.seconds)))
    else:
        sweep(how)


if __name__ == "__main__":
    main()
