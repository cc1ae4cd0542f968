"""Batches made on the device are those that plain slicing gives, and follow from seed and epoch alone."""

from dataclasses import dataclass

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from firefly.errors import FireflyError
from firefly.training.resident import PAD, Batches, draw, take, upload

CPU = torch.device("cpu")


@dataclass
class Pictures:
    images: Tensor
    labels: Tensor
    mean: tuple[float, ...] = (0.5, 0.4, 0.3)
    std: tuple[float, ...] = (0.2, 0.3, 0.4)


def make(count: int = 20) -> Pictures:
    generator = torch.Generator().manual_seed(0)
    images = torch.randint(256, (count, 3, 8, 6), dtype=torch.uint8, generator=generator)
    return Pictures(images, torch.arange(count))


def cut(data: Pictures, index: int, top: int, left: int, direction: int) -> Tensor:
    """One image cropped, mirrored and normalised the plain way; `left` is where reading starts."""
    padded = functional.pad(data.images[index], (PAD,) * 4)
    start = left if direction == 1 else left - 5
    image = padded[:, top : top + 8, start : start + 6]
    image = image if direction == 1 else image.flip(2)
    mean, std = (torch.tensor(values).view(3, 1, 1) for values in (data.mean, data.std))
    return (image / 255 - mean) / std


@pytest.mark.parametrize("channels_last", [False, True])
def test_augmented_batches_are_crops_and_mirror_images(channels_last: bool) -> None:
    data = make()
    resident = upload(data, CPU, augment=True, channels_last=channels_last)
    table = draw(resident, 7, seed=3, epoch=5)
    assert table.shape == (2, 4, 7)
    for rows in table:
        images, labels = take(resident, rows)
        expected = torch.stack([cut(data, *row.tolist()) for row in rows.T])
        torch.testing.assert_close(images, expected, atol=1e-5, rtol=1e-5)
        assert labels.equal(rows[0])
        assert images.is_contiguous(memory_format=torch.channels_last if channels_last else torch.contiguous_format)


def test_draws_cover_all_crops_both_directions_and_each_image_once() -> None:
    table = draw(upload(make(2000), CPU, augment=True), 1000, seed=0, epoch=0).transpose(0, 1).reshape(4, -1)
    order, top, left, direction = table
    assert order.sort().values.equal(torch.arange(2000))
    assert set(top.tolist()) == set(range(2 * PAD + 1))
    assert set((left - (direction == -1) * 5).tolist()) == set(range(2 * PAD + 1))
    assert abs(direction.float().mean()) < 0.1


def test_draws_follow_from_seed_and_epoch() -> None:
    resident = upload(make(), CPU, augment=True)
    assert draw(resident, 5, 1, 2).equal(draw(resident, 5, 1, 2))
    assert not draw(resident, 5, 1, 2).equal(draw(resident, 5, 1, 3))
    assert not draw(resident, 5, 1, 2).equal(draw(resident, 5, 2, 2))


def test_crop_alone_never_mirrors_and_no_augmentation_shows_whole_images() -> None:
    data = make()
    assert (draw(upload(data, CPU, augment="crop"), 10, 0, 0)[:, 3] == 1).all()
    resident = upload(data, CPU)
    images, labels = take(resident, draw(resident, 10, 0, 0)[0])
    whole = torch.stack([cut(data, int(label), PAD, PAD, 1) for label in labels])
    torch.testing.assert_close(images, whole, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("side", [1, 2, 3, 6])
@pytest.mark.parametrize("augment", [True, False])
@pytest.mark.parametrize("channels_last", [False, True])
def test_cutout_blanks_a_square_and_leaves_the_rest_as_without_it(
    side: int, augment: bool, channels_last: bool
) -> None:
    data = make(40)
    how = {"augment": augment, "channels_last": channels_last}
    plain, holed = upload(data, CPU, **how), upload(data, CPU, cutout=side, **how)  # type: ignore[arg-type]
    before, table = draw(plain, 40, seed=3, epoch=5), draw(holed, 40, seed=3, epoch=5)
    assert table.shape == (1, 6, 40) and table[:, :4].equal(before)
    whole, labels = take(plain, before[0])
    images, again = take(holed, table[0])
    assert labels.equal(again) and images.stride() == whole.stride()
    for image, expected, line, column in zip(images, whole, *table[0, 4:].tolist()):
        top, left = max(line - side // 2, 0), max(column - side // 2, 0)
        expected[:, top : line + (side + 1) // 2, left : column + (side + 1) // 2] = 0
        assert image.equal(expected)


def test_cutouts_are_everywhere_and_follow_the_epoch() -> None:
    resident = upload(make(2000), CPU, cutout=2)
    table = draw(resident, 2000, 0, 0)[0]
    assert set(table[4].tolist()) == set(range(8)) and set(table[5].tolist()) == set(range(6))
    assert not table[4].equal(draw(resident, 2000, 0, 1)[0, 4])


def test_inputs_that_are_not_uint8_are_used_as_they_are() -> None:
    inputs, labels = torch.randn(12, 5), torch.arange(12, dtype=torch.int32)
    resident = upload((inputs, labels), CPU, augment=True)
    batch, numbers = take(resident, draw(resident, 6, 0, 0)[0])
    assert batch.equal(inputs[numbers]) and numbers.dtype is torch.int64


def test_plain_uint8_images_become_minus_one_to_one_or_follow_the_training_data() -> None:
    data = make()
    plain = take(upload((data.images, data.labels), CPU), torch.tensor([[0], [0], [0], [1]]))[0][0]
    torch.testing.assert_close(plain, data.images[0] / 127.5 - 1)
    like = take(upload((data.images, data.labels), CPU, like=data), torch.tensor([[0], [0], [0], [1]]))[0][0]
    torch.testing.assert_close(like, cut(data, 0, PAD, PAD, 1), atol=1e-5, rtol=1e-5)


def test_batches_are_a_sequence_that_can_be_read_again() -> None:
    resident = upload(make(), CPU, augment=True)
    batches = Batches(resident, draw(resident, 5, 0, 0))
    assert len(batches) == 4 and len(batches[1:]) == 3
    for (first, _), (second, _) in zip(batches, batches):
        assert first.equal(second)
    with pytest.raises(IndexError):
        batches[4]


@pytest.mark.parametrize(
    ("data", "words"),
    [
        ((torch.zeros(0, 3, 8, 8), torch.zeros(0)), "0 images"),
        ((torch.zeros(3, 2), torch.zeros(4)), "3 images and 4 labels"),
        (torch.zeros(3), "Tensor"),
        (([1.0, 2.0], [0, 1]), "tensors"),
        ((torch.zeros(3, 8, 8, dtype=torch.uint8), torch.zeros(3)), "(3, 8, 8)"),
        (Pictures(torch.zeros(3, 1, 8, 8, dtype=torch.uint8), torch.zeros(3)), "one number per channel"),
    ],
)
def test_bad_data_is_named(data: object, words: str) -> None:
    with pytest.raises(FireflyError, match=words.replace("(", r"\(").replace(")", r"\)")):
        upload(data, CPU)
