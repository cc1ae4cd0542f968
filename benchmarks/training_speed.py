"""Seconds per epoch of VGG-19 on CIFAR-shaped data: `firefly.training.fit` beside a plain PyTorch loop.

    python benchmarks/training_speed.py --out results/training-speed.jsonl      (one GPU, a few minutes)
    python benchmarks/training_speed.py --quick --device cpu                    (a smoke test)

50,000 random images, batch 128, crops and mirroring, SGD with Nesterov momentum. Each number is the median over a few
epochs after warm-up (compilation, capture and start of the workers are not in it). The images are random: this measures
time, not accuracy.
"""

import argparse
import platform
import statistics
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import DataLoader, Dataset

from firefly.experiments.rows import append
from firefly.training import fit
from firefly.vision.data import Images
from firefly.vision.models import vgg19

PLAIN = {"plain float32": False, "plain bf16": True}  # in bf16?
FIT: dict[str, dict[str, Any]] = {
    "fit eager": {"graph": False},
    "fit graph": {},
    "fit graph float32": {"precision": "float32"},
    "fit graph tuned": {"tune": True},
    "fit graph compiled": {"compile": True},
    "fit graph compiled tuned": {"compile": True, "tune": True},
}


class Augmented(Dataset[tuple[Tensor, int]]):
    """What a plain loop does for each image, in the workers of a DataLoader."""

    def __init__(self, data: Images) -> None:
        self.images, self.labels = data.images, data.labels.tolist()
        self.mean, self.std = data.mean.view(3, 1, 1), data.std.view(3, 1, 1)

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, number: int) -> tuple[Tensor, int]:
        top, left, mirror = torch.randint(9, (3,)).tolist()
        image = functional.pad(self.images[number], (4, 4, 4, 4))[:, top : top + 32, left : left + 32]
        if mirror % 2:
            image = image.flip(2)
        return (image.float() / 255 - self.mean) / self.std, self.labels[number]


def time_plain(
    model: nn.Module, data: Images, device: torch.device, half: bool, how: argparse.Namespace
) -> list[float]:
    """Seconds of each epoch of a loop as one would write it: DataLoader, autocast, SGD."""
    gpu = device.type == "cuda"
    model.to(device, memory_format=torch.channels_last if half else torch.contiguous_format).train()  # type: ignore
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, nesterov=True, weight_decay=5e-4)
    loader = DataLoader(
        Augmented(data),
        how.batch,
        shuffle=True,
        drop_last=True,
        num_workers=how.workers,
        pin_memory=gpu,
        persistent_workers=how.workers > 0,
    )
    seconds = []
    for _ in range(1 + how.plain_epochs):
        start = time.perf_counter()
        for images, labels in loader:
            images, labels = images.to(device, non_blocking=True), labels.to(device, non_blocking=True)
            if half:
                images = images.contiguous(memory_format=torch.channels_last)
            optimizer.zero_grad(set_to_none=True)
            with torch.autocast(device.type, torch.bfloat16, enabled=half):
                loss = functional.cross_entropy(model(images), labels)
            loss.backward()
            optimizer.step()
        loss.item()  # waits for the device
        seconds.append(time.perf_counter() - start)
    return seconds[1:]


def time_fit(
    model: nn.Module, data: Images, device: torch.device, options: dict[str, Any], how: argparse.Namespace
) -> Any:
    """Seconds of each epoch of `fit` after two to warm up, and of the first, which captures and compiles."""
    history = fit(model, data, 2 + how.epochs, batch=how.batch, device=device, progress=False, **options)
    seconds = [row.seconds for row in history.epochs]
    return seconds[2:], seconds[0]


def measure(variant: str, width: str, data: Images, device: torch.device, how: argparse.Namespace) -> dict[str, Any]:
    """One line of the results."""
    torch.manual_seed(0)
    model = vgg19(10, widths=width if width == "full" else int(width))
    if variant in PLAIN:
        seconds, first = time_plain(model, data, device, PLAIN[variant], how), None
    else:
        seconds, first = time_fit(model, data, device, FIT[variant], how)
    return {
        "benchmark": "training_speed",
        "model": f"vgg19-{width}",
        "variant": variant,
        "seconds_per_epoch": statistics.median(seconds),
        "epochs": seconds,
        "first_epoch": first,
        "images": len(data),
        "batch": how.batch,
        "workers": how.workers if variant in PLAIN else None,
        **describe(device),
    }


def describe(device: torch.device) -> dict[str, Any]:
    """The machine and the versions."""
    gpu = device.type == "cuda"
    return {
        "device": torch.cuda.get_device_name(device) if gpu else platform.processor() or platform.machine(),
        "torch": torch.__version__,
        "cuda": torch.version.cuda if gpu else None,
        "cudnn": torch.backends.cudnn.version() if gpu else None,
        "python": platform.python_version(),
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
    }


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--widths", nargs="+", default=["16", "full"], help="channels of every layer, or full")
    parser.add_argument("--variants", nargs="+", choices=[*PLAIN, *FIT], help="which to measure; default: all")
    parser.add_argument("--epochs", type=int, default=5, help="epochs measured of each fit")
    parser.add_argument("--plain-epochs", type=int, default=2, help="epochs measured of each plain loop")
    parser.add_argument("--images", type=int, default=50_000)
    parser.add_argument("--batch", type=int, default=128)
    parser.add_argument("--workers", type=int, default=8, help="of the plain loop's DataLoader")
    parser.add_argument("--quick", action="store_true", help="few images, thin network, without compilation")
    parser.add_argument("--out", type=Path, help="a file to append JSON lines to")
    how = parser.parse_args()
    if how.quick:
        how.images, how.batch, how.widths, how.workers, how.epochs, how.plain_epochs = 512, 64, ["16"], 0, 1, 1
    if how.variants is None:
        few = ["plain float32", "fit eager"] + ["fit graph"] * (how.device != "cpu")
        how.variants = few if how.quick or how.device == "cpu" else [*PLAIN, *FIT]
    return how


def main() -> None:
    how = parse()
    device = torch.device(how.device)
    generator = torch.Generator().manual_seed(0)
    images = torch.randint(256, (how.images, 3, 32, 32), dtype=torch.uint8, generator=generator)
    data = Images(images, torch.arange(how.images) % 10, 10, "cifar10")
    print(", ".join(f"{key} {value}" for key, value in describe(device).items() if value), flush=True)
    for width in how.widths:
        for variant in how.variants:
            row = measure(variant, width, data, device, how)
            first = f"  (first epoch {row['first_epoch']:.1f} s)" if row["first_epoch"] else ""
            print(f"vgg19 {width:>5}  {variant:26} {row['seconds_per_epoch']:8.3f} s/epoch{first}", flush=True)
            if how.out:
                append(how.out, row)


if __name__ == "__main__":
    main()
