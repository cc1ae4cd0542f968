"""The digits of the package."""

from importlib.resources import files

import pytest
import torch
from packing import make_split

from firefly.errors import FireflyError
from firefly.vision import data, digits


def test_the_digits_of_the_package_are_whole_and_small():
    train, train_labels, test, test_labels = digits.load()
    assert train.shape == (6000, 1, 14, 14) and test.shape == (2000, 1, 14, 14)
    assert train_labels.dtype == test_labels.dtype == torch.int64
    assert len(train_labels) == 6000 and len(test_labels) == 2000
    for images, labels in ((train, train_labels), (test, test_labels)):
        assert images.min() == 0 and images.max() == 1
        assert torch.equal((images * 15).round() / 15, images)
        assert labels.bincount(minlength=10).min() > 0.07 * len(labels) and labels.max() == 9
    folder = files("firefly.vision")
    assert len(folder.joinpath("digits.npz").read_bytes()) < 600_000
    assert "CC BY-SA 3.0" in folder.joinpath("digits.txt").read_text()


def test_the_digits_of_the_package_can_be_told_apart():
    """The nearest class mean already reads most digits, so the labels belong to the images."""
    train, train_labels, test, test_labels = digits.load()
    means = torch.stack([train[train_labels == label].flatten(1).mean(0) for label in range(10)])
    guesses = torch.cdist(test.flatten(1), means).argmin(1)
    assert (guesses == test_labels).float().mean() > 0.75


def test_packed_digits_come_back_as_averages_in_16_levels(tmp_path, monkeypatch):
    images, labels = make_split(40, (1, 28, 28))
    whole = data.Images(torch.from_numpy(images), torch.from_numpy(labels).long(), 10, "mnist")
    digits.pack(whole, whole, tmp_path / "digits.npz", counts=(20, 8))
    monkeypatch.setattr(digits, "files", lambda _: tmp_path)
    train, train_labels, test, test_labels = digits.load()
    exact = torch.nn.functional.avg_pool2d(whole.images.float() / 255, 2)
    assert (train - exact[::2]).abs().max() <= 0.5 / 15 + 1e-6 and torch.equal(train_labels, whole.labels[::2])
    assert (test - exact[::5]).abs().max() <= 0.5 / 15 + 1e-6 and torch.equal(test_labels, whole.labels[::5])
    with pytest.raises(FireflyError, match="cannot pack 41 train images of 40"):
        digits.pack(whole, whole, tmp_path / "digits.npz", counts=(41, 8))
