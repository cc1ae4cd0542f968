"""Bytes that the ranks of a job send in one growth: measured on 2 to 4 ranks, computed for more.

    python benchmarks/ranks_bytes.py --out results/ranks.jsonl

`payload` is what each rank hands over: the gradients of step one, and little else. Averages on a ring of N ranks send
2 (N - 1) / N of that from each rank, a broadcast half as much; `sent` is the sum per rank, which never passes twice the
payload but for some hundred bytes for each other rank. What was `measured`, also per rank, is what went over the wire,
headers and acknowledgements included: the loop-back interface of a network namespace of its own (`unshare`, Linux),
where nothing else is sent. `steps_worth` is `sent` in steps of DistributedDataParallel, which sends the gradients of
all parameters. Of a model that is sharded with FSDP2 the bytes of its parameters and of Adam's state on a rank are
measured, too: sharded, and while it is whole.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

import firefly
from firefly.experiments.rows import append, count, hardware
from firefly.surgery.shards import count_bytes, whole
from firefly.vision import models

INSIDE = "FIREFLY_RANKS_INSIDE"
DEVICE = hardware(torch.device("cpu"))
MODELS: dict[str, tuple[Any, tuple[int, ...]]] = {
    "mlp": (lambda: make_mlp(), (784,)),
    "vgg19": (lambda: models.vgg19(widths=16), (3, 32, 32)),
}
SMALL = ("all_gather_object", "broadcast_object_list")


def make_mlp() -> nn.Module:
    return nn.Sequential(nn.Linear(784, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 10))


class Counter:
    """Counts what is handed to torch.distributed, inside the block."""

    def __enter__(self) -> Counter:
        self.bytes = {"all_reduce": 0, "broadcast": 0}
        self.messages = dict.fromkeys((*self.bytes, *SMALL), 0)
        self.own = {name: getattr(dist, name) for name in self.messages}
        for name, send in self.own.items():
            setattr(dist, name, self.wrap(name, send))
        return self

    def __exit__(self, *error: object) -> None:
        for name, send in self.own.items():
            setattr(dist, name, send)

    def wrap(self, name: str, send: Any) -> Any:
        def counted(what: Any, *given: Any, **how: Any) -> Any:
            self.messages[name] += 1
            if isinstance(what, Tensor):
                self.bytes[name] += what.numel() * what.element_size()
            return send(what, *given, **how)

        return counted


def read_wire() -> int:
    """Bytes that were sent over the loop-back interface."""
    line = next(line for line in Path("/proc/net/dev").read_text().splitlines() if line.strip().startswith("lo:"))
    return int(line.split(":")[1].split()[8])


def measure_growth(name: str, steps: int) -> dict[str, Any]:
    """One growth on this rank; the wire is read while all wait."""
    make, shape = MODELS[name]
    torch.manual_seed(0)
    model = make()
    before = count(model)
    random = torch.Generator().manual_seed(dist.get_rank())
    batches = [(torch.randn(4, *shape, generator=random), torch.randint(10, (4,), generator=random)) for _ in range(8)]
    anatomy = firefly.trace(model, torch.zeros(2, *shape))
    dist.barrier()
    time.sleep(0.5)
    wire, start = read_wire(), time.perf_counter()
    with Counter() as counter:
        growth = firefly.grow(model, loss, batches, example=torch.zeros(2, *shape), anatomy=anatomy, steps=steps)
    dist.barrier()
    time.sleep(0.5)
    told = {"model": name, "parameters": (before, growth.parameters[1]), "steps": steps, "payload": counter.bytes}
    told |= {"messages": counter.messages, "seconds": round(time.perf_counter() - start - 0.5, 2)}
    return told | {"measured": read_wire() - wire}


def measure_shards(name: str) -> dict[str, Any]:
    """What lies on this rank of a sharded model and of Adam's state."""
    from torch.distributed.fsdp import fully_shard

    torch.manual_seed(0)
    make, shape = MODELS[name]
    model = fully_shard(make())
    optimizer = torch.optim.Adam(model.parameters())
    loss(model, (torch.randn(4, *shape), torch.arange(4))).backward()
    optimizer.step()
    sharded = count_bytes(model, optimizer)
    with whole(model, optimizer) as shards:
        pass
    assert shards.before == shards.after == sharded
    return {"model": name, "bytes_on_a_rank": {"sharded": shards.before, "while_whole": shards.during}}


def loss(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
    return nn.functional.cross_entropy(model(batch[0]), batch[1])


def work(rank: int, ranks: int, store: str, steps: int, out: str) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", store=dist.FileStore(store, ranks), rank=rank, world_size=ranks)
    for name in MODELS:
        row = measure_shards(name)
        if rank == 0:
            append(Path(out), {"benchmark": "ranks-shards", "ranks": ranks, **row, "device": DEVICE})
    growths = [measure_growth(name, steps) for name in MODELS]
    for row in growths if rank == 0 else ():
        row["measured"] //= ranks
        append(Path(out), {"benchmark": "ranks-bytes", "ranks": ranks, **row, **compute(row, ranks), "device": DEVICE})
        if ranks == 4:
            more = {key: value for key, value in row.items() if key not in ("measured", "seconds")}
            more |= {"ranks": 1000, "computed": True, **compute(row, 1000)}
            append(Path(out), {"benchmark": "ranks-bytes", **more, "device": DEVICE})
    dist.destroy_process_group()


def compute(row: dict[str, Any], ranks: int) -> dict[str, Any]:
    """Bytes that each rank sends: a ring for averages; what is small goes from everyone to everyone."""
    ring = 2 * (ranks - 1) / ranks
    small = 100 * ranks * row["messages"]["all_gather_object"]
    sent = ring * (row["payload"]["all_reduce"] + row["payload"]["broadcast"] / 2) + small
    return {"sent": round(sent), "steps_worth": round(sent / (ring * 4 * row["parameters"][0]), 1)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("results/ranks.jsonl"))
    parser.add_argument("--ranks", type=int, nargs="+", default=[2, 3, 4])
    parser.add_argument("--steps", type=int, default=60, help="of step one (60)")
    args = parser.parse_args()
    if INSIDE not in os.environ:  # once more, where nobody else sends anything
        inside = 'ip link set lo up && exec "$0" "$@"'
        told = os.environ | {INSIDE: "1", "GLOO_SOCKET_IFNAME": "lo"}
        sys.exit(subprocess.run(["unshare", "-rn", "sh", "-c", inside, sys.executable, *sys.argv], env=told).returncode)
    for ranks in args.ranks:
        with tempfile.TemporaryDirectory() as folder:
            given = (ranks, f"{folder}/store", args.steps, str(args.out))
            torch.multiprocessing.spawn(work, given, nprocs=ranks)


if __name__ == "__main__":
    main()
