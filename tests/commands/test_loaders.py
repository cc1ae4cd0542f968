"""A user's loaders: what they may be, and the same batches whenever an epoch begins."""

import random

import numpy
import pytest
import torch
from torch.utils.data import DataLoader, RandomSampler, TensorDataset

from firefly.commands import loaders
from firefly.errors import FireflyError

X, Y = torch.arange(24.0).view(12, 2), torch.arange(12)
DATA = TensorDataset(X, Y)


def give(monkeypatch: pytest.MonkeyPatch, returned: object) -> loaders.Loaders:
    monkeypatch.setattr(loaders, "call", lambda *_: returned)
    return loaders.make_loaders("a:b")


def test_one_loader_a_pair_or_a_dict(monkeypatch: pytest.MonkeyPatch) -> None:
    train, test = DataLoader(DATA, 4), DataLoader(DATA, 6)
    assert give(monkeypatch, train).test is None
    for returned in ((train, test), [train, test], {"train": train, "test": test}):
        made = give(monkeypatch, returned)
        assert made.train is train and made.test is test and torch.equal(made.example[0], X[:2])
    assert give(monkeypatch, {"train": train, "example": X[:3]}).example is not None
    batches = [(X, Y), (X, Y)]  # a list of two batches is one loader
    assert give(monkeypatch, batches).train is batches


def test_the_example_is_what_forward_takes(monkeypatch: pytest.MonkeyPatch) -> None:
    made = give(monkeypatch, [(X, 2 * X, Y)]).example
    assert len(made) == 2 and torch.equal(made[1], 2 * X[:2])
    made = give(monkeypatch, [{"input_ids": Y, "labels": Y}]).example
    assert made.keys() == {"input_ids", "labels"} and len(made["labels"]) == 2
    again = loaders.make_example(loaders.describe_example(made))
    assert again.keys() == made.keys() and again["labels"].dtype == torch.int64
    (again,) = loaders.make_example(loaders.describe_example((X,)))
    assert again.shape == X.shape and again.std() > 0.1


@pytest.mark.parametrize("kind", ["shuffle", "generator", "sampler", "numpy", "python", "workers that stay"])
def test_an_epoch_brings_the_same_batches_whatever_was_before(kind: str) -> None:
    def collate(rows: list[tuple[torch.Tensor, torch.Tensor]]) -> torch.Tensor:
        draw = {"numpy": numpy.random.rand, "python": random.random, "workers that stay": torch.rand(()).item}
        noise = draw.get(kind, lambda: 0.0)()
        return torch.stack([label for _, label in rows]) + noise

    how = {
        "generator": {"shuffle": True, "generator": torch.Generator()},
        "sampler": {"sampler": RandomSampler(DATA, generator=torch.Generator())},
        "workers that stay": {"num_workers": 1, "persistent_workers": True, "multiprocessing_context": "fork"},
    }.get(kind, {"shuffle": True})

    def read(epochs: list[int]) -> list[list[float]]:
        loader = DataLoader(DATA, 4, collate_fn=collate, **how)
        found = []
        for epoch in epochs:
            loaders.begin_epoch(loader, 7, epoch)
            found.append(torch.cat(list(loader)).tolist())
        return found

    straight = read([0, 1, 2])
    assert len({tuple(one) for one in straight}) == 3 and read([2]) == straight[2:]


def test_set_epoch_is_called() -> None:
    class Sampler(RandomSampler):
        def set_epoch(self, epoch: int) -> None:
            self.epoch = epoch

    loader = DataLoader(DATA, 4, sampler=Sampler(DATA))
    loaders.begin_epoch(loader, 0, 5)
    assert loader.sampler.epoch == 5


def test_what_a_loader_raises_in_an_epoch_is_told() -> None:
    def breaks(rows: object) -> None:
        raise KeyError("lost.png")

    with pytest.raises(FireflyError, match=r"the loader raised KeyError: 'lost\.png' \(in .*test_loaders\.py, line"):
        list(loaders.read_batches(DataLoader(DATA, 4, collate_fn=breaks)))
