"""The statistics that images are normalised with are those of the training images, channel by channel."""

import pytest
import torch

from firefly.errors import FireflyError
from firefly.vision.data import Images, load

KNOWN = {  # over all pixels of the training images, in [0, 1]; SVHN without its extra images
    "cifar10": ([0.4914, 0.4822, 0.4465], [0.2470, 0.2435, 0.2616]),
    "cifar100": ([0.5071, 0.4865, 0.4409], [0.2673, 0.2564, 0.2762]),
    "mnist": ([0.1307], [0.3081]),
    "fashion-mnist": ([0.2860], [0.3530]),
    "svhn": ([0.4377, 0.4438, 0.4728], [0.1980, 0.2010, 0.1970]),
}


@pytest.mark.parametrize("name", KNOWN)
def test_the_statistics_are_the_known_ones(name: str) -> None:
    mean, std = KNOWN[name]
    data = Images(torch.zeros(1, len(mean), 2, 2, dtype=torch.uint8), torch.zeros(1), 10, name)
    torch.testing.assert_close(data.mean, torch.tensor(mean), rtol=0, atol=1e-6)
    torch.testing.assert_close(data.std, torch.tensor(std), rtol=0, atol=1e-6)


@pytest.mark.parametrize("name", KNOWN)
def test_the_statistics_are_those_of_the_images(name: str) -> None:
    """Where the data set is at hand (FIREFLY_DATA)."""
    try:
        data = load(name)
    except FireflyError:
        pytest.skip(f"{name} is not here")
    counts = torch.stack([torch.bincount(plane.flatten().int(), minlength=256) for plane in data.images.unbind(1)])
    level, share = torch.arange(256) / 255, counts / counts.sum(1, keepdim=True)  # (256,), (C, 256)
    mean = (share * level).sum(1)
    std = ((share * level**2).sum(1) - mean**2).sqrt()
    torch.testing.assert_close(data.mean, mean.to(data.mean.dtype), rtol=0, atol=1e-3)
    torch.testing.assert_close(data.std, std.to(data.std.dtype), rtol=0, atol=1e-3)
