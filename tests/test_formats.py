"""Growth in every number format, mode and memory format; a grown model can do all that a model can."""

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map

import firefly
from laws import (
    SMALL,
    assert_close,
    assert_grown_is_overgrown,
    assert_optimizer_fits,
    cast,
    equal_trees,
    every_growing,
    grow,
    grow_blindly,
    in_double,
    make_trained,
    run,
    train,
)
from zoo import ZOO, Entry

MODELS = ["mlp", "vgg", "resnext", "gpt", "embedding_mean"]


# ---- number formats, modes, memory formats ---------------------------------------------------------------------------


@pytest.mark.parametrize("name", MODELS)
def test_autocast(name: str) -> None:
    entry = ZOO[name]
    model, optimizer = make_trained(entry)

    def loss(model: nn.Module, batch: Any) -> Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            return entry.loss(model, batch)

    growth = grow(model, entry, loss=loss, optimizer=optimizer, anatomy=None)
    assert growth.neurons > 0 and growth.loss_after <= growth.loss_before
    assert {p.dtype for p in model.parameters()} == {torch.float32}
    loss(model, entry.batches()[0]).backward()
    optimizer.step()


@pytest.mark.parametrize("name", MODELS)
def test_double(name: str) -> None:
    entry = in_double(ZOO[name])
    model, optimizer = make_trained(entry)
    growth = grow(model, entry, optimizer=optimizer, anatomy=None)
    assert growth.neurons > 0 and growth.loss_after < growth.loss_before
    assert {p.dtype for p in model.parameters()} == {torch.float64}
    assert_optimizer_fits(model, optimizer)
    train(model, entry, optimizer, 1)


@pytest.mark.parametrize("name", ["mlp", "vgg"])
def test_brain_floats(name: str) -> None:
    """The model itself in bfloat16: δ stays in single precision, the weights in theirs."""
    entry = ZOO[name]

    model, short = entry.make().bfloat16(), torch.bfloat16
    growth = grow(model, entry, batches=cast(entry.batches(), short), example=cast(entry.example(), short))
    assert growth.neurons > 0 and growth.loss_after <= growth.loss_before
    assert {p.dtype for p in model.parameters()} == {torch.bfloat16}


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("name", [*MODELS, "mlp_dropout", "instance_norm", "vit_encoder_layer"])
def test_both_modes(name: str, training: bool) -> None:
    entry = ZOO[name]
    model, optimizer = make_trained(entry)
    model.train(training)
    growth = grow(model, entry, optimizer=optimizer)
    assert growth.neurons > 0 and growth.loss_after <= growth.loss_before
    assert all(module.training == training for module in model.modules())


@pytest.mark.parametrize("fused", [None, True])
@pytest.mark.parametrize("name", ["vgg", "mobilenet_v2"])
def test_channels_last_is_kept(name: str, fused: bool | None) -> None:
    entry = ZOO[name]
    model = entry.make().to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01, fused=fused)
    train(model, entry, optimizer, 2)
    last = {n for n, p in model.named_parameters() if p.ndim == 4 and not p.is_contiguous()}
    assert last
    grow(model, entry, optimizer=optimizer)
    for path in last:
        parameter = model.get_parameter(path)
        assert parameter.is_contiguous(memory_format=torch.channels_last) and not parameter.is_contiguous(), path
    train(model, entry, optimizer, 2)


def test_channels_last_of_volumes_is_kept() -> None:
    entry = ZOO["conv3d"]
    model = entry.make().to(memory_format=torch.channels_last_3d)  # type: ignore[call-overload]
    assert grow(model, entry).neurons > 0
    assert model.get_parameter("4.weight").is_contiguous(memory_format=torch.channels_last_3d)


def test_contiguous_stays_contiguous() -> None:
    entry = ZOO["mobilenet_v2"]
    model, optimizer = make_trained(entry)
    grow(model, entry, optimizer=optimizer)
    assert all(p.is_contiguous() for p in model.parameters())
    assert all(v.is_contiguous() for state in optimizer.state.values() for v in state.values())


# ---- after growth ----------------------------------------------------------------------------------------------------


@every_growing
def test_a_grown_model_can_do_all_that_a_model_can(entry: Entry, tmp_path: Path) -> None:
    model, example = entry.make(), entry.example()
    train(model, entry, torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=0.01), 1)
    grow_blindly(model, entry)
    expected = run(model, example)

    twin = copy.deepcopy(model)
    assert_close(run(twin, example), expected, 0.0)
    with torch.no_grad():
        for parameter in twin.parameters():
            parameter.zero_()
    assert_close(run(model, example), expected, 0.0)  # the copy shares nothing
    twin.load_state_dict(model.state_dict())
    assert_close(run(twin, example), expected, 0.0)

    firefly.save(tmp_path, model)
    fresh = firefly.load(tmp_path, entry.make())
    assert type(fresh) is type(model) and equal_trees(fresh.state_dict(), model.state_dict())
    assert_close(run(fresh, example), expected, 0.0)
    optimizer = torch.optim.SGD([p for p in fresh.parameters() if p.requires_grad], lr=0.01)
    train(fresh, entry, optimizer, 1)


@pytest.mark.parametrize("name", [*MODELS, "weight_norm", "mobilenet_v2", "vit", "llama_expand"])
def test_a_grown_model_can_be_exported(name: str) -> None:
    entry = ZOO[name]
    model, example = entry.make().eval(), entry.example()
    grow_blindly(model, entry)
    program = torch.export.export(model, example)
    with torch.no_grad():
        assert_close([program.module()(*example)], run(model, example), 1e-6)


def test_a_run_goes_on_from_its_folder(tmp_path: Path) -> None:
    """Model, optimiser and grower: what is loaded trains and grows on, bit by bit as the original does."""
    entry = ZOO["vgg"]

    def begin() -> tuple[nn.Module, torch.optim.Optimizer, firefly.Firefly]:
        model = entry.make()
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
        return model, optimizer, firefly.Firefly(model, entry.example(), neighborhood=SMALL, steps=3)

    one = begin()
    train(one[0], entry, one[1], 3)
    one[2].grow(entry.loss, entry.batches(), one[1])
    train(one[0], entry, one[1], 1)
    firefly.save(tmp_path, one[0], optimizer=one[1], grower=one[2])
    two = begin()
    firefly.load(tmp_path, two[0], optimizer=two[1], grower=two[2])
    for model, optimizer, grower in (one, two):
        train(model, entry, optimizer, 2)
        grower.grow(entry.loss, entry.batches(), optimizer)
        train(model, entry, optimizer, 1)
    assert equal_trees(one[0].state_dict(), two[0].state_dict())
    assert equal_trees(one[1].state_dict(), two[1].state_dict())
    assert [step["added"] for step in one[2].history] == [step["added"] for step in two[2].history]


def test_a_live_graph_survives_the_growth() -> None:
    """The old parameters are not resized: a loss from before can still be differentiated."""
    entry = ZOO["mlp"]
    model = entry.make()
    old, value = list(model.parameters()), entry.loss(model, entry.batches()[0])
    assert grow(model, entry).neurons > 0
    assert all(g.shape == p.shape for g, p in zip(torch.autograd.grad(value, old), old))


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning", "ignore::FutureWarning")
@pytest.mark.parametrize("name", ["mlp", "vgg"])
def test_compile_after_growth(name: str) -> None:
    entry = ZOO[name]
    model, optimizer = make_trained(entry)
    compiled: Any = torch.compile(model)
    entry.loss(compiled, entry.batches()[0]).backward()
    assert grow(model, entry, optimizer=optimizer).neurons > 0
    train(compiled, entry, optimizer, 2)  # the wrapper sees the new shapes and compiles again
    model.eval()
    assert_close(run(compiled, entry.example()), run(model, entry.example()), 1e-4)


@pytest.mark.gpu
@pytest.mark.parametrize("name", [*MODELS, "instance_norm", "mobilenet_v2", "llama"])
def test_cuda(name: str) -> None:
    entry = ZOO[name]

    def move(value: Any) -> Any:
        return tree_map(lambda leaf: leaf.cuda() if isinstance(leaf, Tensor) else leaf, value)

    batches, example = move(entry.batches()), move(entry.example())
    model = entry.make().cuda()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01, fused=True)

    def step(batch: Any) -> float:
        optimizer.zero_grad()
        value = entry.loss(model, batch)
        value.backward()
        optimizer.step()
        return value.item()

    step(batches[0])
    random = torch.cuda.get_rng_state()
    growth = grow(model, entry, optimizer=optimizer, batches=batches, example=example, anatomy=None)
    assert growth.neurons > 0 and growth.loss_after <= growth.loss_before
    assert torch.equal(torch.cuda.get_rng_state(), random)
    assert {p.device.type for p in model.parameters()} == {"cuda"}
    assert_optimizer_fits(model, optimizer)
    step(batches[0])

    model = entry.make().cuda().double().eval()
    blind = grow_blindly(model, entry, batches=[cast(batches[0])], example=cast(example))
    assert_grown_is_overgrown(model, blind, cast(example), 1e-10)


@pytest.mark.parametrize("name", ["vgg", "resnet", "mobilenet_v2", "conv1d"])
def test_a_split_without_length_changes_nothing(name: str) -> None:
    """In train mode a split copy's running statistics follow it, continuously from its parent's."""
    entry = ZOO[name]
    model, _ = make_trained(entry)
    expected = run(model, entry.example())
    growth = grow_blindly(model.train(), entry, neighborhood=[firefly.Split(1e-6)]).growth
    assert growth.neurons > 0
    assert_close(run(model, entry.example()), expected, 1e-3)
