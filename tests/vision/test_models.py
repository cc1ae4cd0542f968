"""The models of the experiments: sizes as published, shapes, names, widths."""

import pytest
import torch
from torch import nn

from firefly.errors import FireflyError
from firefly.vision.models import mobilenet_v1, vgg16, vgg19


def count(model):
    return sum(parameter.numel() for parameter in model.parameters())


@pytest.mark.parametrize(
    ("make", "parameters", "neurons"),
    [
        (lambda: vgg19(), 35_674, 256),
        (lambda: vgg19(widths="full"), 20_035_018, 5_504),
        (lambda: vgg16(widths="full"), 14_724_042, 4_224),
        (lambda: mobilenet_v1(), 22_948, 27 * 32),
        (lambda: mobilenet_v1(widths="full"), 3_309_476, 32 + 4_960 + 5_952),
    ],
)
def test_sizes_are_the_published_ones(make, parameters, neurons):
    with torch.device("meta"):
        model = make()
    assert count(model) == parameters
    assert sum(layer.num_features for layer in model.modules() if isinstance(layer, nn.BatchNorm2d)) == neurons


@pytest.mark.parametrize(
    ("make", "widths", "maps"),
    [
        (vgg16, [3, 4, 5, 6, 7, 8, 9, 3, 4, 5, 6, 7, 8], [32, 32, 16, 16, 8, 8, 8, 4, 4, 4, 2, 2, 2]),
        (vgg19, [3, 4, 5, 6, 7, 8, 9, 3, 4, 5, 6, 7, 8, 9, 3, 4], [32, 32, 16, 16, 8, 8, 8, 8, 4, 4, 4, 4, 2, 2, 2, 2]),
    ],
)
def test_vgg_takes_its_widths_and_halves_the_map_five_times(make, widths, maps):
    model, shapes = make(7, widths), []
    for layer in model.features:
        if isinstance(layer, nn.Conv2d):
            layer.register_forward_hook(lambda layer, _, out: shapes.append((out.shape[1], out.shape[2])))
    assert model(torch.randn(2, 3, 32, 32)).shape == (2, 7)
    assert shapes == list(zip(widths, maps))
    assert model.features(torch.randn(1, 3, 32, 32).expand(2, -1, -1, -1)).shape == (2, widths[-1], 1, 1)


def test_mobilenet_takes_its_widths_and_halves_the_map_in_blocks_2_4_6_12():
    widths, shapes = list(range(3, 17)), []
    model = mobilenet_v1(9, widths)
    for layer in model.features:
        if isinstance(layer, nn.Conv2d):
            layer.register_forward_hook(lambda layer, _, out: shapes.append((layer.groups, *out.shape[1:3])))
    assert model(torch.randn(2, 3, 32, 32)).shape == (2, 9)
    maps = [32, 32, 16, 16, 8, 8, 4, 4, 4, 4, 4, 4, 2, 2]
    assert shapes[0] == (1, 3, 32)
    assert shapes[1::2] == [(width, width, size) for width, size in zip(widths, maps[1:])]  # depthwise
    assert shapes[2::2] == [(1, width, size) for width, size in zip(widths[1:], maps[1:])]  # pointwise


@pytest.mark.parametrize("make", [vgg16, vgg19, mobilenet_v1])
def test_names_are_those_of_plain_chains(make):
    model = make(widths=4)
    names = dict(model.named_parameters())
    assert list(names)[:3] == ["features.0.weight", "features.1.weight", "features.1.bias"]
    assert list(names)[-2:] == ["head.weight", "head.bias"]
    assert type(model) is nn.Sequential and type(model.features) is nn.Sequential
    assert all(layer.bias is None for layer in model.features if isinstance(layer, nn.Conv2d))


@pytest.mark.parametrize("make", [vgg16, vgg19, mobilenet_v1])
def test_images_and_activation_are_a_choice(make):
    model = make(classes=5, widths=4, channels=1, activation=nn.SiLU)
    assert model(torch.randn(2, 1, 32, 32)).shape == (2, 5)
    kinds = {type(layer) for layer in model.features}
    assert nn.SiLU in kinds and nn.ReLU not in kinds


@pytest.mark.parametrize("widths", [0, -3, [16] * 15, [16] * 15 + [0], [16] * 15 + [1.5], "half", []])
def test_widths_that_make_no_network_are_refused(widths):
    with pytest.raises(FireflyError, match=r"vgg19: widths=.* 16 of them"):
        vgg19(widths=widths)


def test_a_small_vgg_learns():
    torch.manual_seed(0)
    model = vgg16(classes=2, widths=8, channels=1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    labels = torch.arange(32) % 2
    images = torch.randn(32, 1, 32, 32) * 0.1
    images[:, :, :16] += labels.view(-1, 1, 1, 1)  # the bright half tells the class
    images[:, :, 16:] += 1 - labels.view(-1, 1, 1, 1)
    for _ in range(30):
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(images), labels)
        loss.backward()
        optimizer.step()
    assert loss < 0.1
