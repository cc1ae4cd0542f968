"""The network of a genotype: published sizes, the cell of every position, drop-path and the second head."""

import pytest
import torch
from torch import nn

from firefly import trace
from firefly.errors import FireflyError
from firefly.nas import Network, draw_random, find_known, train_loss
from firefly.nas.network import drop, find_stage
from firefly.nas.operations import OPERATIONS


def count(model: nn.Module) -> int:
    return sum(parameter.numel() for parameter in model.parameters())


@pytest.mark.parametrize(  # 20 cells, 36 channels, 10 classes, as counted by the authors' code
    ("name", "size"),
    [("darts-v1", 3_169_414), ("darts-v2", 3_349_342), ("pc-darts", 3_634_678), ("p-darts", 3_433_798)],
)
def test_published_sizes(name: str, size: int) -> None:
    with torch.device("meta"):
        assert count(Network(find_known(name), 20, 36)) == size


def test_published_size_of_the_second_head() -> None:
    with torch.device("meta"):
        assert count(Network(find_known("p-darts"), 20, 36, auxiliary=True)) == 3_910_224


def test_every_position_has_its_cell() -> None:
    assert [find_stage(number, 20) for number in range(20)] == [0] * 6 + [1] + [2] * 6 + [3] + [4] * 6
    genotype = draw_random(0)
    with torch.device("meta"):
        network = Network(genotype, 20, 4)
    for number, block in enumerate(network.cells):
        cell = genotype.cells[find_stage(number, 20)]
        assert block.sources == [[source for _, source in node] for node in cell.nodes]


@pytest.mark.parametrize("name", OPERATIONS)
@pytest.mark.parametrize("size", [7, 8])
def test_operations_keep_channels_and_halve_at_stride_two(name: str, size: int) -> None:
    images = torch.randn(2, 6, size, size)
    assert OPERATIONS[name](6, 1)(images).shape == images.shape
    assert OPERATIONS[name](6, 2)(images).shape == (2, 6, (size + 1) // 2, (size + 1) // 2)


def test_answers_and_both_heads() -> None:
    network = Network(find_known("darts-v2"), 3, 4, classes=7, auxiliary=True)
    images, labels = torch.randn(2, 3, 32, 32), torch.tensor([0, 6])
    assert network(images).shape == (2, 7)
    logits, second = network.answer_twice(images)
    assert second is not None and second.shape == logits.shape
    together = train_loss(network, (images, labels))
    alone = nn.functional.cross_entropy(network(images), labels)
    assert together > alone
    network.eval()
    assert torch.equal(train_loss(network, (images, labels)), nn.functional.cross_entropy(network(images), labels))


def test_the_second_head_says_which_images_it_takes() -> None:
    network = Network(find_known("darts-v2"), 3, 4, auxiliary=True)
    with pytest.raises(FireflyError, match="not 4 x 4"):
        network.answer_twice(torch.randn(2, 3, 16, 16))
    assert network(torch.randn(2, 3, 16, 16)).shape == (2, 10)


def test_drop_path_drops_whole_images_and_keeps_the_mean() -> None:
    torch.manual_seed(0)
    values = drop(torch.ones(4000, 2, 1, 1), torch.tensor(0.25))
    assert set(values.flatten().tolist()) == {0.0, torch.tensor(1 / 0.75).item()}
    assert torch.equal(values[:, 0], values[:, 1])
    assert abs(values.mean() - 1) < 0.05


def test_drop_path_only_in_training_and_at_its_rate() -> None:
    network = Network(find_known("darts-v2"), 3, 4, drop_path=0.9).train()
    images = torch.randn(4, 3, 16, 16)
    assert torch.equal(network(images), network(images))  # the rate begins at 0
    with pytest.raises(FireflyError, match=r"set_drop_path\(6\): give the share"):
        network.set_drop_path(6)
    network.set_drop_path(1.0)
    assert not torch.equal(network(images), network(images))
    network.eval()
    assert torch.equal(network(images), network(images))


@pytest.mark.parametrize("how", [{"cells": 2}, {"channels": 0}, {"classes": 0}, {"drop_path": 1.0}])
def test_options_are_checked(how: dict[str, float]) -> None:
    with pytest.raises(FireflyError, match=next(iter(how))):
        Network(find_known("darts-v2"), **how)  # type: ignore[arg-type]


def test_the_dense_form_computes_the_same_and_can_grow() -> None:
    plain = Network(find_known("p-darts"), 3, 4).double()
    dense = Network(find_known("p-darts"), 3, 4, dense=True).double()
    dense.load_state_dict(plain.state_dict())
    images = torch.randn(4, 3, 16, 16, dtype=torch.float64)
    answers = plain(images), dense(images)
    assert torch.allclose(*answers, rtol=0, atol=1e-12)
    for answer in answers:
        answer.square().sum().backward()
    pairs = [(one.grad, other.grad) for one, other in zip(plain.parameters(), dense.parameters())]
    assert all(torch.allclose(one, other, rtol=0, atol=1e-12) for one, other in pairs if one is not None)
    one = OPERATIONS["sep_conv_3x3"](4, 1)
    one[1].dense = one[4].dense = True
    grows = [width.name for width in trace(one, torch.randn(2, 4, 8, 8)).growable()]
    assert grows == ["1.1"]  # what stands between the two
