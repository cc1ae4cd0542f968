"""The user's batches: what `--data` may return, an example out of them, and the same order in every run of an epoch."""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy
import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves, tree_map
from torch.utils.data import Dataset, DistributedSampler, IterableDataset

from firefly.commands.addresses import blame, call
from firefly.errors import FireflyError
from firefly.ranks.talk import count_ranks, find_rank
from firefly.training.resident import mix

WAYS = "return a loader, a pair (train, test), or a dict with train and perhaps test and example"


@dataclass(frozen=True, eq=False)
class Loaders:
    """Batches to learn from, perhaps others for the test, and what the model's forward takes."""

    train: Iterable[Any]
    test: Iterable[Any] | None
    example: Any
    first: Any  # the first batch
    first_test: Any = None


def make_loaders(address: str) -> Loaders:
    """What the function of this address returns, looked at before anything is trained."""
    found = call(address, "mypackage.data:make_loaders")
    if isinstance(found, Mapping):
        unknown = [str(key) for key in found if key not in ("train", "test", "example")]
        if unknown or "train" not in found:
            raise FireflyError(f"{address} returned a dict with {', '.join(map(str, found)) or 'nothing'}: {WAYS}")
        train, test, example = found["train"], found.get("test"), found.get("example")
    elif isinstance(found, tuple) and len(found) > 2 and not any(isinstance(one, (tuple, Tensor)) for one in found):
        raise FireflyError(f"{address} returned {len(found)} things: {WAYS}")
    elif is_pair(found):
        (train, test), example = found, None
    else:
        train, test, example = found, None, None
    first = look(train, f"{address}: the training batches")
    first_test = None if test is None else look(test, f"{address}: the test batches")
    example = find_example(first, address) if example is None else example
    return Loaders(take_part(train), test, example, first, first_test)


class Part:
    """One rank's batches of a loader: every so many-th; what is left over at the end is dropped."""

    def __init__(self, whole: Iterable[Any], rank: int, ranks: int) -> None:
        self.whole, self.rank, self.ranks = whole, rank, ranks

    def __len__(self) -> int:
        return len(self.whole) // self.ranks  # type: ignore[arg-type]

    def __iter__(self) -> Iterator[Any]:
        several: list[Any] = []
        for batch in self.whole:
            several.append(batch)
            if len(several) == self.ranks:
                yield several[self.rank]
                several = []


def take_part(loader: Iterable[Any]) -> Iterable[Any]:
    """This rank's batches; a loader with a DistributedSampler brings no others."""
    samplers = [getattr(loader, "sampler", None), getattr(getattr(loader, "batch_sampler", None), "sampler", None)]
    if count_ranks() == 1 or any(isinstance(one, DistributedSampler) for one in samplers):
        return loader
    if (count_steps(loader) or count_ranks()) < count_ranks():
        raise FireflyError(
            f"{count_steps(loader)} batches for {count_ranks()} ranks: each needs one, so make the batches smaller"
        )
    return Part(loader, find_rank(), count_ranks())


def is_pair(found: Any) -> bool:
    """Whether these are two loaders, and not a list of two batches."""
    if not isinstance(found, (tuple, list)) or len(found) != 2:
        return False
    if all(isinstance(one, Tensor) for one in found):
        way = "DataLoader(TensorDataset(inputs, targets), 128, shuffle=True)"
        raise FireflyError(f"--data returned two tensors, not two loaders: return {way}")
    return isinstance(found, tuple) or not any(isinstance(one, (tuple, Mapping, Tensor, int)) for one in found)


def look(loader: Any, name: str) -> Any:
    """The first batch; refuse what brings none, or brings its batches only once."""
    if isinstance(loader, Dataset) and not isinstance(loader, IterableDataset):
        way = f"DataLoader({type(loader).__name__}(...), 128, shuffle=True)"
        raise FireflyError(f"{name} are a dataset, whose samples come one by one: return {way}")
    if isinstance(loader, (str, bytes, Tensor, Mapping)) or not isinstance(loader, Iterable):
        raise FireflyError(f"{name} are a {type(loader).__name__}, not a DataLoader or a list of batches: {WAYS}")
    try:
        if iter(loader) is loader:
            raise FireflyError(f"{name} can be read only once: return a DataLoader or a list, not a generator")
        return next(iter(loader))
    except FireflyError:
        raise
    except StopIteration:
        raise FireflyError(f"{name} are none: the loader is empty") from None
    except Exception as error:  # it is the user's code
        raise FireflyError(f"{name} raised {blame(error)}") from error


def find_example(batch: Any, address: str) -> Any:
    """The inputs in a batch, of its first two samples: all but the last of a tuple, a whole dict, or the tensor."""
    sizes = {len(part) for part in tree_leaves(batch) if isinstance(part, Tensor) and part.dim()}
    if len(sizes) == 1:  # the samples stand in the first dimension
        batch = tree_map(lambda part: part[:2] if isinstance(part, Tensor) and part.dim() else part, batch)
    if isinstance(batch, Mapping):
        return dict(batch)
    if isinstance(batch, (tuple, list)) and len(batch) > 1:
        return tuple(batch[:-1])
    if isinstance(batch, Tensor):
        return batch
    raise FireflyError(
        f"{address}: a batch is a {type(batch).__name__}: make it (inputs, targets) or a dict of the model's "
        "arguments, or return a dict with train and example"
    )


def begin_epoch(loader: Any, seed: int, epoch: int) -> None:
    """The same random numbers in this epoch of this run, whatever happened before: to go on exactly is to begin so."""
    number, loader = mix(seed, epoch), getattr(loader, "whole", loader)
    torch.manual_seed(number)
    numpy.random.seed(number)  # noqa: NPY002 - the user's code may draw from it
    random.seed(number)
    sampler = getattr(loader, "sampler", None)
    batches = getattr(loader, "batch_sampler", None)
    parts = [loader, sampler, batches, getattr(batches, "sampler", None), getattr(loader, "dataset", None)]
    for part in {id(part): part for part in parts if part is not None}.values():
        generator = getattr(part, "generator", None)
        if isinstance(generator, torch.Generator):
            generator.manual_seed(number)
        if callable(getattr(part, "set_epoch", None)):
            part.set_epoch(epoch)
    dismiss_workers(loader)


def dismiss_workers(loader: Any) -> None:
    """Workers that stay from epoch to epoch begin anew: their random numbers would go on from what they did before."""
    if getattr(loader, "persistent_workers", False):
        loader._iterator = None


def count_steps(loader: Any) -> int | None:
    """Batches of an epoch, where that is known."""
    try:
        return len(loader)
    except TypeError:
        return None


def describe_example(example: Any) -> list[Any]:
    """Shapes and types of what forward takes, for the folder of a run: [[name or place, shape, type], ...]."""
    return [[key, list(one.shape), str(one.dtype).removeprefix("torch.")] for key, one in name_tensors(example)]


def list_ranges(example: Any) -> dict[str, list[int]]:
    """The smallest and the largest of what is counted: numbers of tokens, masks. {name or place: [low, high]}."""
    real = [(key, one) for key, one in name_tensors(example) if not one.is_complex() and one.numel()]
    counted = [(key, one) for key, one in real if not one.is_floating_point()]
    return {str(key): [int(one.long().min()), int(one.long().max())] for key, one in counted}


def name_tensors(example: Any) -> list[tuple[Any, Tensor]]:
    """The tensors of an example, by name, or by place where they have none."""
    named = example.items() if isinstance(example, Mapping) else enumerate(as_tuple(example))
    return [(key, one) for key, one in named if isinstance(one, Tensor)]


def make_example(described: Iterable[Any], ranges: Mapping[str, list[int]] | None = None) -> Any:
    """An example of those shapes: a tuple, or a dict; numbers at random, whole ones within their range, or 0."""
    among = ranges or {}
    made = {key: draw(shape, getattr(torch, kind), *among.get(str(key), (0, 0))) for key, shape, kind in described}
    return made if any(isinstance(key, str) for key in made) else tuple(made.values())


def draw(shape: list[int], dtype: torch.dtype, low: int = 0, high: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(0)
    if dtype.is_floating_point:
        return torch.randn(shape, generator=generator).to(dtype)
    return torch.randint(low, min(high, 2**62) + 1, shape, generator=generator).to(dtype)


def as_tuple(example: Any) -> tuple[Any, ...]:
    return tuple(example) if isinstance(example, (tuple, list)) else (example,)


def read_batches(loader: Iterable[Any]) -> Iterator[Any]:
    """The batches of an epoch; what the user's loader raises is told in a line."""
    dismiss_workers(getattr(loader, "whole", loader))
    try:
        yield from loader
    except FireflyError:
        raise
    except (RuntimeError, ValueError, TypeError, LookupError, OSError) as error:
        raise FireflyError(f"the loader raised {blame(error)}") from error


@contextmanager
def blamed_on(batch: Any, where: str) -> Iterator[None]:
    """What the model or the loss raises on a batch is told in a line, with the shapes of the batch."""
    try:
        yield
    except FireflyError:
        raise
    except Exception as error:
        raise FireflyError(f"{where}, {describe(batch)}, raised {blame(error)}") from error


def describe(batch: Any) -> str:
    """The shapes and types in a batch: (float32 [32, 3], int64 [32])."""
    if isinstance(batch, Tensor):
        return f"{str(batch.dtype).removeprefix('torch.')} {list(batch.shape)}"
    if isinstance(batch, Mapping):
        return f"{{{', '.join(f'{key}: {describe(value)}' for key, value in batch.items())}}}"
    if isinstance(batch, (tuple, list)):
        return f"({', '.join(describe(part) for part in list(batch)[:6])})"
    return type(batch).__name__
