"""The images of a data set: holding out, normalising, augmenting."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from packing import make_split

from firefly.errors import FireflyError
from firefly.vision import data


def number_images(counts, name="cifar10"):
    """Images that all differ: image i holds the number i in its first two pixels."""
    total = sum(counts)
    images = torch.zeros(total, 3, 2, 2, dtype=torch.uint8)
    images[:, 0, 0, 0], images[:, 0, 0, 1] = torch.arange(total) // 256, torch.arange(total) % 256
    labels = torch.repeat_interleave(torch.arange(len(counts)), torch.tensor(counts))
    return data.Images(images, labels, len(counts), name)


def read_numbers(part):
    return (part.images[:, 0, 0, 0].long() * 256 + part.images[:, 0, 0, 1].long()).tolist()


@settings(max_examples=40, deadline=None)
@given(counts=st.lists(st.integers(0, 60), min_size=1, max_size=6), where=st.floats(0, 1), seed=st.integers(0, 9))
def test_hold_out_parts_every_class_in_proportion(counts, where, seed):
    total = sum(counts)
    if total < 2:
        return
    count = 1 + round(where * (total - 2))
    whole = number_images(counts)
    train, held = data.hold_out(whole, count, seed)
    assert len(held) == count and sorted(read_numbers(train) + read_numbers(held)) == list(range(total))
    for label, size in enumerate(counts):
        assert abs(int((held.labels == label).sum()) - size * count / total) < 1
    assert torch.equal(whole.labels[read_numbers(held)], held.labels)
    assert read_numbers(data.hold_out(whole, count, seed)[1]) == read_numbers(held)


def test_hold_out_depends_on_the_seed_and_refuses_bad_counts():
    whole = number_images([50] * 10)
    assert read_numbers(data.hold_out(whole, 100, 0)[1]) != read_numbers(data.hold_out(whole, 100, 1)[1])
    for count in (0, 500, -1):
        with pytest.raises(FireflyError, match=f"count={count}"):
            data.hold_out(whole, count)


def test_normalize_gives_zero_mean_and_unit_deviation():
    images = torch.from_numpy(make_split(50, (3, 8, 8))[0])
    floats = images.double() / 255
    mean, std = floats.mean((0, 2, 3)), floats.std((0, 2, 3))
    for batch in (images, floats):
        result = data.normalize(batch, mean, std).double()
        torch.testing.assert_close(result.mean((0, 2, 3)), torch.zeros(3).double(), atol=1e-5, rtol=0)
        torch.testing.assert_close(result.std((0, 2, 3)), torch.ones(3).double(), atol=1e-5, rtol=0)


def find_crops(image, pad, flip):
    """Every image that padding, cropping and mirroring can make of one (C, H, W)."""
    high, wide = image.shape[1:]
    padded = torch.zeros(image.shape[0], high + 2 * pad, wide + 2 * pad, dtype=image.dtype)
    padded[:, pad : pad + high, pad : pad + wide] = image
    crops = [padded[:, i : i + high, j : j + wide] for i in range(2 * pad + 1) for j in range(2 * pad + 1)]
    return crops + [crop.flip(-1) for crop in crops] if flip else crops


@pytest.mark.parametrize("dtype", [torch.uint8, torch.float32])
@pytest.mark.parametrize(("pad", "flip"), [(2, True), (1, False), (0, True)])
def test_augment_gives_each_image_its_own_crop_and_mirroring(dtype, pad, flip):
    image = torch.randint(1, 256, (2, 5, 6), generator=torch.Generator().manual_seed(0)).to(dtype)
    batch = image.repeat(3000, 1, 1, 1)
    result = data.augment(batch, torch.Generator().manual_seed(0), pad, flip)
    assert result.dtype == dtype and result.shape == batch.shape and result.is_contiguous()
    crops = torch.stack(find_crops(image, pad, flip))
    same = (result[:, None] == crops[None]).flatten(2).all(-1)  # (N, crops)
    assert (same.sum(1) == 1).all()  # each is one of the possible crops ...
    expected = len(batch) / len(crops)
    assert (same.sum(0) > expected / 2).all() and (same.sum(0) < expected * 2).all()  # ... and all are as likely


def test_augment_keeps_images_apart_and_follows_its_generator():
    batch = torch.arange(1, 41).view(40, 1, 1, 1).expand(40, 3, 8, 8).to(torch.uint8)
    first, again, other = (data.augment(batch, torch.Generator().manual_seed(seed)) for seed in (0, 0, 1))
    assert torch.equal(first, again) and not torch.equal(first, other)
    assert torch.equal(first.amax((1, 2, 3)), torch.arange(1, 41, dtype=torch.uint8))
    assert ((first == 0) | (first == batch)).all()


@pytest.mark.gpu
def test_augment_is_random_inside_a_cuda_graph():
    batch = torch.randint(1, 256, (64, 3, 32, 32), device="cuda", dtype=torch.uint8)
    mean, std = torch.tensor([0.5, 0.4, 0.3], device="cuda"), torch.ones(3, device="cuda")
    data.normalize(data.augment(batch), mean, std)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        crops = data.augment(batch)
        data.normalize(crops, mean, std)
    results = []
    for _ in range(2):
        graph.replay()
        results.append(crops.clone())
    assert not torch.equal(*results)
    possible = torch.stack(find_crops(batch[0].cpu(), 4, True))
    for result in results:
        assert (result[0].cpu() == possible).flatten(1).all(1).any()
