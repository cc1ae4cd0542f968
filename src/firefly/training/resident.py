"""Data that lives on the device: one upload for a run, then batches are gathered, cropped and mirrored where they lie.

What is random about an epoch (the order, where each image is cropped, mirrored or not, and blanked out) is drawn on the
CPU from the seed and the epoch's number alone and uploaded once per epoch as a small table. So a CPU and a GPU see the
same batches, a run that was interrupted goes on with the same ones, and the step itself draws nothing.
"""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, overload

import torch
from torch import Tensor
from torch.nn import functional

from firefly.errors import FireflyError

Batch = tuple[Tensor, Tensor]
PAD = 4  # pixels of black on each side, of which a crop may show some


@dataclass(frozen=True, eq=False)
class Resident:
    """A data set on a device: images (N, H + 2 pad, W + 2 pad, C), or other inputs (N, ...), and labels (N, ...)."""

    images: Tensor
    labels: Tensor
    scale: Tensor | None  # (C, 1, 1): uint8 images become scale * image + shift
    shift: Tensor | None
    lines: Tensor  # 0 ... H - 1 and 0 ... W - 1, of the images without padding; empty for inputs that are no images
    columns: Tensor
    pad: int
    flip: bool
    layout: torch.memory_format
    cutout: int = 0  # the side of a square that is blanked out

    def __len__(self) -> int:
        return len(self.labels)


def upload(
    data: Any,
    device: torch.device,
    *,
    augment: bool | str = False,
    cutout: int = 0,
    channels_last: bool = False,
    like: Any = None,
    name: str = "data",
) -> Resident:
    """Put `data` on the device: an object with `images`, `labels` and perhaps `mean` and `std`, or (images, labels).

    uint8 images (N, C, H, W) are normalised by the data's `mean` and `std` per channel, of images in [0, 1]; without
    them by those of `like`, else to [-1, 1]. Other inputs are used as they are, and augmented if they are images.
    """
    if augment not in (True, False, "crop"):
        raise FireflyError(f"augment={augment!r}: use True (crop and mirror), 'crop' (never mirror) or False")
    images, labels = split(data, name)
    pictures = images.dim() == 4
    if cutout and not (pictures and cutout <= min(images.shape[2:])):
        raise FireflyError(
            f"cutout={cutout} with {name} of shape {tuple(images.shape)}: images must be at least as large"
        )
    pad = PAD if pictures and augment else 0
    lines, columns = (torch.arange(size, device=device) for size in (images.shape[2:] if pictures else (0, 0)))
    layout = torch.channels_last if channels_last else torch.contiguous_format
    scale, shift = find_scale(data, like, images, device)
    images = images.to(device)
    if pictures:
        images = functional.pad(images, (pad, pad, pad, pad)).permute(0, 2, 3, 1).contiguous()
    labels = labels.to(device, None if labels.is_floating_point() else torch.int64)
    return Resident(images, labels, scale, shift, lines, columns, pad, augment is True, layout, cutout)


def split(data: Any, name: str) -> tuple[Tensor, Tensor]:
    """The images and labels of what the user gave, checked."""
    if isinstance(data, (tuple, list)) and len(data) == 2:
        images, labels = data
    elif hasattr(data, "images") and hasattr(data, "labels"):
        images, labels = data.images, data.labels
    else:
        collate = (
            "; of a Dataset, torch.utils.data.default_collate([dataset[k] for k in range(len(dataset))]) makes them"
        )
        how = collate * (hasattr(data, "__getitem__") or hasattr(data, "dataset"))
        raise FireflyError(f"{name} is a {type(data).__name__}: give (images, labels) or an object that has both{how}")
    if not isinstance(images, Tensor) or not isinstance(labels, Tensor):
        raise FireflyError(f"{name}: images and labels must be tensors; torch.as_tensor makes them from arrays")
    if len(images) != len(labels) or len(labels) == 0:
        raise FireflyError(
            f"{name} has {len(images)} images and {len(labels)} labels: it needs as many, and at least one"
        )
    return images, labels


def find_scale(data: Any, like: Any, images: Tensor, device: torch.device) -> tuple[Tensor | None, Tensor | None]:
    """The factor and the shift that normalise uint8 images, each (C, 1, 1) on the device; None for other inputs."""
    if images.dtype != torch.uint8:
        return None, None
    if images.dim() != 4:
        raise FireflyError(f"uint8 images of shape {tuple(images.shape)}: give (N, C, H, W), or inputs of type float")
    source = data if hasattr(data, "mean") and hasattr(data, "std") else like
    mean, std = (torch.as_tensor(getattr(source, key, 0.5)).double().cpu() for key in ("mean", "std"))
    channels = images.shape[1]
    if any(values.dim() == 1 and len(values) != channels for values in (mean, std)) or not bool((std > 0).all()):
        raise FireflyError(
            f"mean={mean.tolist()}, std={std.tolist()}: one number per channel is needed, here {channels}"
        )
    scale, shift = 1 / (255 * std), -mean / std
    scale, shift = (values.float().expand(channels).reshape(-1, 1, 1).to(device) for values in (scale, shift))
    return scale, shift


def draw(data: Resident, batch: int, seed: int, epoch: int) -> Tensor:
    """The full batches of an epoch as numbers on the CPU, (steps, 4, batch): image, top, left, direction.

    With a cutout there are two more: the line and the column of its middle.
    """
    count, steps = len(data), len(data) // batch
    generator = torch.Generator().manual_seed(mix(seed, epoch))
    order = torch.randperm(count, generator=generator)
    top, left = torch.randint(2 * data.pad + 1, (2, count), generator=generator)
    mirrored = torch.randint(2, (count,), generator=generator) * int(data.flip)
    rows = [order, top, left + mirrored * (len(data.columns) - 1), 1 - 2 * mirrored]
    if data.cutout:  # drawn last, so that all else is as without it
        rows += [torch.randint(len(side), (count,), generator=generator) for side in (data.lines, data.columns)]
    table = torch.stack(rows)[:, : steps * batch]  # (4 or 6, steps * batch)
    return table.view(len(rows), steps, batch).transpose(0, 1).contiguous()


def mix(seed: int, epoch: int) -> int:
    """One seed for an epoch of a run."""
    return (seed * 1_000_003 + epoch) % 2**32


def take(data: Resident, rows: Tensor) -> Batch:
    """The batch that `rows` (4 or 6, B) on the device describes: cropped, mirrored, normalised and blanked out."""
    index, top, left, direction, *middle = rows.unbind(0)
    if data.pad:
        high = top[:, None] + data.lines  # (B, H): which lines to read
        wide = left[:, None] + direction[:, None] * data.columns
        images = data.images[index[:, None, None], high[:, :, None], wide[:, None, :]]  # (B, H, W, C)
    else:
        images = data.images[index]
    images = finish(data, images)
    return (blank_out(data, images, *middle) if middle else images), data.labels[index]


def blank_out(data: Resident, images: Tensor, line: Tensor, column: Tensor) -> Tensor:
    """A square around the middle becomes zero, the mean of normalised images; it may reach beyond the image."""
    inside = [
        (places >= middle[:, None] - data.cutout // 2) & (places < middle[:, None] + (data.cutout + 1) // 2)
        for places, middle in ((data.lines, line), (data.columns, column))
    ]  # (B, H) and (B, W)
    return images.masked_fill_((inside[0][:, :, None] & inside[1][:, None, :])[:, None], 0)


def finish(data: Resident, images: Tensor) -> Tensor:
    """What the model gets: (B, C, H, W) in the memory layout asked for, normalised."""
    if len(data.lines):
        images = images.permute(0, 3, 1, 2).contiguous(memory_format=data.layout)
    if data.scale is None or data.shift is None:
        return images
    return torch.addcmul(data.shift, images.float(), data.scale)


def fingerprint(data: Resident) -> str:
    """What tells these data from others of their size: a hash of all that batches are made of."""
    digest = hashlib.sha256()
    for tensor in (data.images, data.labels, data.scale, data.shift):
        if tensor is not None:
            digest.update(f"{tuple(tensor.shape)} {tensor.dtype}".encode())
            digest.update(tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().data)
    return f"{len(data)} samples, {digest.hexdigest()[:16]}"


class Batches(Sequence[Batch]):
    """The batches of one epoch, each made when it is asked for; for a growth, which reads them in any order."""

    def __init__(self, data: Resident, table: Tensor) -> None:
        self.data, self.table = data, table.to(data.labels.device)

    def __len__(self) -> int:
        return len(self.table)

    @overload
    def __getitem__(self, number: int) -> Batch: ...

    @overload
    def __getitem__(self, number: slice) -> "Batches": ...

    def __getitem__(self, number: int | slice) -> "Batch | Batches":
        if isinstance(number, slice):
            return Batches(self.data, self.table[number])
        return take(self.data, self.table[number])
