"""A state_dict that carries the architecture, through what people do with state_dicts."""

import copy

import pytest
import torch
from runs import same, same_tensors
from torch import nn
from torch.optim.swa_utils import AveragedModel

import firefly
from laws import grow_blindly, make_trained, run, train
from zoo import ZOO

ENTRY = ZOO["resnet"]


def make_grown():
    model, optimizer = make_trained(ENTRY)
    firefly.carry_architecture(model)
    grow_blindly(model, ENTRY, optimizer=optimizer)
    train(model, ENTRY, optimizer, 2)
    return model, optimizer


def test_load_state_dict_rebuilds_first(tmp_path):
    model, optimizer = make_grown()
    torch.save((model.state_dict(), optimizer.state_dict()), tmp_path / "run.pt")
    fresh = firefly.carry_architecture(ENTRY.make())
    fresh_optimizer = torch.optim.Adam(fresh.parameters(), lr=0.01)  # made before: the parameters stay the same objects
    states = torch.load(tmp_path / "run.pt")
    fresh.load_state_dict(states[0])
    fresh_optimizer.load_state_dict(states[1])
    assert same(run(fresh, ENTRY.example()), run(model, ENTRY.example()))
    for one in ((model, optimizer), (fresh, fresh_optimizer)):
        train(one[0], ENTRY, one[1], 3)
    assert same_tensors(fresh, model)


def test_wrappers_copies_and_parts_carry_it_too(tmp_path):
    model, _ = make_grown()
    average = AveragedModel(model)
    for grown, make in (
        (nn.DataParallel(model), lambda: nn.DataParallel(firefly.carry_architecture(ENTRY.make()))),
        (average, lambda: AveragedModel(firefly.carry_architecture(ENTRY.make()))),
        (nn.ModuleDict({"a": model}), lambda: nn.ModuleDict({"a": firefly.carry_architecture(ENTRY.make())})),
        (copy.deepcopy(model), lambda: firefly.carry_architecture(ENTRY.make())),
    ):
        fresh = make()
        fresh.load_state_dict(grown.state_dict())
        assert same_tensors(fresh, grown)
    torch.save(model, tmp_path / "whole.pt")
    assert same_tensors(torch.load(tmp_path / "whole.pt", weights_only=False), model)


def test_checkpoints_of_our_own_take_such_a_model(tmp_path):
    model, optimizer = make_grown()
    firefly.save(tmp_path, model, optimizer)
    assert same(run(firefly.load(tmp_path, ENTRY.make()), ENTRY.example()), run(model, ENTRY.example()))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_a_state_may_be_of_another_type(dtype):
    model, _ = make_grown()
    fresh = firefly.carry_architecture(ENTRY.make()).to(dtype)
    fresh.load_state_dict({name: tensor.to(dtype) for name, tensor in model.state_dict().items()})
    assert same(dict(fresh.named_parameters()), dict(model.to(dtype).named_parameters()))


def test_an_older_state_brings_the_smaller_network_back():
    model, optimizer = make_grown()
    older = copy.deepcopy(model.state_dict())
    grow_blindly(model, ENTRY, anatomy=None, seed=1, optimizer=optimizer)
    assert len(firefly.architecture(model)["history"]) == 2
    model.load_state_dict(older)
    assert len(firefly.architecture(model)["history"]) == 1 and same(dict(model.state_dict()), dict(older))


def test_a_damaged_one_is_refused():
    model, _ = make_grown()
    state = model.state_dict()
    state["firefly_architecture"] = state["firefly_architecture"][:-1]
    with pytest.raises(firefly.FireflyError, match="damaged"):
        firefly.carry_architecture(ENTRY.make()).load_state_dict(state)
