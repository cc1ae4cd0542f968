"""The optimiser goes on as if the model had always been larger: the same object, its state follows the neurons."""

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import firefly
from laws import assert_optimizer_fits, equal_trees, grow, grow_blindly, in_double, loss_on, train
from zoo import ZOO

Make = Callable[[Any], torch.optim.Optimizer]

OPTIMIZERS: dict[str, Make] = {
    "sgd": lambda p: torch.optim.SGD(p, lr=0.02, momentum=0.9, nesterov=True, weight_decay=1e-4),
    "plain_sgd": lambda p: torch.optim.SGD(p, lr=0.02),
    "sgd_foreach": lambda p: torch.optim.SGD(p, lr=0.02, momentum=0.9, foreach=True),
    "sgd_fused": lambda p: torch.optim.SGD(p, lr=0.02, momentum=0.9, fused=True),
    "adam": lambda p: torch.optim.Adam(p, lr=0.01),
    "adam_foreach": lambda p: torch.optim.Adam(p, lr=0.01, foreach=True),
    "adam_fused": lambda p: torch.optim.Adam(p, lr=0.01, fused=True),
    "adamw": lambda p: torch.optim.AdamW(p, lr=0.01),
    "adamw_amsgrad": lambda p: torch.optim.AdamW(p, lr=0.01, amsgrad=True),
    "adamw_tensor_lr": lambda p: torch.optim.AdamW(p, lr=torch.tensor(0.01), foreach=False),
    "rmsprop": lambda p: torch.optim.RMSprop(p, lr=0.002, centered=True, momentum=0.5),
    "adagrad": lambda p: torch.optim.Adagrad(p, lr=0.02),
    "nadam": lambda p: torch.optim.NAdam(p, lr=0.01),
    "radam": lambda p: torch.optim.RAdam(p, lr=0.01),
    "adadelta": lambda p: torch.optim.Adadelta(p, lr=1.0),
    "adamax": lambda p: torch.optim.Adamax(p, lr=0.01),
    "rprop": lambda p: torch.optim.Rprop(p, lr=0.001),
    "asgd": lambda p: torch.optim.ASGD(p, lr=0.02),
    "adafactor": lambda p: torch.optim.Adafactor(p, lr=0.01),
}
FIRST = {"momentum_buffer", "exp_avg", "grad_avg"}  # like the gradient
SECOND = {"exp_avg_sq", "max_exp_avg_sq", "square_avg", "sum"}  # like its square


@pytest.mark.parametrize("name", list(OPTIMIZERS))
@pytest.mark.parametrize("model_name", ["vgg", "siamese_cat"])
def test_optimizer_goes_on(name: str, model_name: str) -> None:
    entry = ZOO[model_name]
    model = entry.make()
    optimizer = OPTIMIZERS[name](model.parameters())
    train(model, entry, optimizer, 6)
    groups = [{k: v for k, v in group.items() if k != "params"} for group in optimizer.param_groups]
    grow_blindly(model, entry, optimizer=optimizer)
    assert [{k: v for k, v in group.items() if k != "params"} for group in optimizer.param_groups] == groups
    if name != "adafactor":  # its state is made of rows and columns, and starts afresh
        assert_optimizer_fits(model, optimizer)
    before = loss_on(model, entry)
    train(model, entry, optimizer, 12)
    assert loss_on(model, entry) < before
    assert {id(p) for p in optimizer.state} <= {id(p) for p in model.parameters()}


# ---- state follows its neuron ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["sgd", "adam", "adamw_amsgrad", "rmsprop", "adagrad"])
def test_state_follows_its_neuron(name: str) -> None:
    """mlp: width "0" is made by 0.weight and 0.bias and read by 2.weight."""
    entry = ZOO["mlp"]
    model = entry.make()
    optimizer = OPTIMIZERS[name](model.parameters())
    train(model, entry, optimizer, 5)
    old = {name: copy.deepcopy(optimizer.state[p]) for name, p in model.named_parameters()}
    blind = grow_blindly(model, entry, optimizer=optimizer, widths=["0"], budget=firefly.Neurons(8))
    split, born = blind.picked("split", "0").tolist(), len(blind.picked("new", "0"))
    assert len(split) + born == 8 and split and born
    alone = [i for i in range(16) if i not in split]

    for parameter in ("0.weight", "0.bias", "2.weight", "2.bias", "4.weight", "4.bias"):
        state = optimizer.state[model.get_parameter(parameter)]
        assert state.keys() == old[parameter].keys()
        for key, value in state.items():
            before = old[parameter][key]
            if not isinstance(before, Tensor) or before.ndim == 0 or parameter in ("2.bias", "4.weight", "4.bias"):
                assert equal_trees(value, before), (parameter, key)  # as it was, and where it was
                continue
            if parameter == "2.weight":  # columns read the width
                value, before = value.t(), before.t()
            normalised = name == "rmsprop" and key == "momentum_buffer"  # divided by the gradient's size already
            factor = 1.0 if parameter == "2.weight" or normalised else 0.5 if key in FIRST else 0.25
            assert torch.equal(value[alone], before[alone]), (parameter, key)
            assert torch.equal(value[split], factor * before[split]), (parameter, key)
            assert torch.equal(value[16 : 16 + len(split)], factor * before[split]), (parameter, key)
            if key in FIRST:
                assert not value[16 + len(split) :].any(), (parameter, key)
            else:  # zero would make the first steps of a new neuron far too long, its elders' size too short
                share = 0.01 if key in ("exp_avg_sq", "max_exp_avg_sq") else 1.0
                newborn = torch.full_like(value[16 + len(split) :], share * before.mean().item())
                assert key in SECOND and torch.allclose(value[16 + len(split) :], newborn, atol=0), (parameter, key)


STANDING: dict[str, Make] = {  # a learning rate of zero, so that the state alone moves
    "sgd": lambda p: torch.optim.SGD(p, lr=0.0, momentum=0.9),
    "adam": lambda p: torch.optim.Adam(p, lr=0.0),
    "amsgrad": lambda p: torch.optim.AdamW(p, lr=0.0, amsgrad=True),
    "nadam": lambda p: torch.optim.NAdam(p, lr=0.0),
    "radam": lambda p: torch.optim.RAdam(p, lr=0.0),
    "adagrad": lambda p: torch.optim.Adagrad(p, lr=0.0),
    "centered": lambda p: torch.optim.RMSprop(p, lr=0.0, centered=True),
    "rmsprop": lambda p: torch.optim.RMSprop(p, lr=0.0, momentum=0.9, eps=1e-30),
    "adadelta": lambda p: torch.optim.Adadelta(p, lr=0.0, eps=1e-30),
    "adamax": lambda p: torch.optim.Adamax(p, lr=0.0, eps=1e-30),
    "asgd": lambda p: torch.optim.ASGD(p, lr=0.0, t0=0.0),
}


@pytest.mark.parametrize("name", list(STANDING))
def test_state_is_the_one_that_the_grown_network_would_have(name: str) -> None:
    """Exact copies share their parent's gradient, half each: the state carried over is the state trained afresh."""
    entry = in_double(ZOO["mlp"])
    model, batch = entry.make(), entry.batches()[0]

    def stand(optimizer: torch.optim.Optimizer) -> torch.optim.Optimizer:
        for _ in range(4):
            optimizer.zero_grad()
            entry.loss(model, batch).backward()
            optimizer.step()
        return optimizer

    optimizer = stand(STANDING[name](model.parameters()))
    grow_blindly(model, entry, optimizer=optimizer, neighborhood=[firefly.Split(epsilon=1e-12)], widths=["0"])
    carried = {n: copy.deepcopy(optimizer.state[p]) for n, p in model.named_parameters()}
    fresh = stand(STANDING[name](model.parameters()))
    for parameter_name, parameter in model.named_parameters():
        for key, value in fresh.state[parameter].items():
            torch.testing.assert_close(carried[parameter_name][key], value, rtol=1e-4, atol=0.0, msg=key)


def test_state_of_a_norm_is_halved_and_its_buffers_are_copied() -> None:
    entry = ZOO["vgg"]
    model = entry.make()
    optimizer = OPTIMIZERS["adam"](model.parameters())
    train(model, entry, optimizer, 5)
    norm: Any = model.eval().get_submodule("features.1")  # in train mode the statistics are measured anew
    before, mean = optimizer.state[norm.weight]["exp_avg"].clone(), norm.running_mean.clone()
    blind = grow_blindly(model, entry, optimizer=optimizer, widths=["features.0"], neighborhood=[firefly.Split()])
    split = blind.picked("split", "features.0")
    after = optimizer.state[norm.weight]["exp_avg"]
    assert torch.equal(after[8:], before[split] / 2) and torch.equal(after[split], before[split] / 2)
    assert torch.equal(norm.running_mean, torch.cat([mean, mean[split]]))


def test_growth_before_the_first_step() -> None:
    entry = ZOO["vgg"]
    for make in OPTIMIZERS.values():
        model = entry.make()
        optimizer = make(model.parameters())
        empty = len(optimizer.state) == 0  # Adagrad fills its state at once
        grow_blindly(model, entry, optimizer=optimizer)
        assert (len(optimizer.state) == 0) == empty
        train(model, entry, optimizer, 1)


# ---- groups, schedules, averages -------------------------------------------------------------------------------------


def test_groups_keep_their_members_and_options() -> None:
    entry = ZOO["gpt"]
    model = entry.make()
    matrices = [(n, p) for n, p in model.named_parameters() if p.ndim > 1]
    vectors = [(n, p) for n, p in model.named_parameters() if p.ndim == 1]
    groups = [
        {"params": [p for _, p in matrices], "lr": 0.01, "weight_decay": 0.1},
        {"params": [p for _, p in vectors], "lr": 0.001, "weight_decay": 0.0, "note": "no decay"},
    ]
    optimizer = torch.optim.AdamW(groups)
    kept = list(optimizer.param_groups)
    train(model, entry, optimizer, 3)
    grow_blindly(model, entry, optimizer=optimizer)
    assert_optimizer_fits(model, optimizer)
    for group, names, same in zip(optimizer.param_groups, (matrices, vectors), kept, strict=True):
        assert group is same
        assert [id(p) for p in group["params"]] == [id(model.get_parameter(name)) for name, _ in names]
    assert [group["lr"] for group in optimizer.param_groups] == [0.01, 0.001]
    assert optimizer.param_groups[1]["note"] == "no decay"


def test_optimizer_of_a_part_of_the_model() -> None:
    """Parameters that the optimiser does not hold grow too; those of another model in it stay."""
    entry = ZOO["mlp"]
    model: Any = entry.make()
    other = nn.Linear(3, 3)
    optimizer = torch.optim.Adam([*model[0].parameters(), *other.parameters()], lr=0.01)
    train(model, entry, optimizer, 3)
    grow_blindly(model, entry, optimizer=optimizer)
    held = {id(p) for p in optimizer.param_groups[0]["params"]}
    assert held == {id(p) for p in [*model[0].parameters(), *other.parameters()]}


SCHEDULES: dict[str, Callable[[Any], Any]] = {
    "cosine": lambda o: torch.optim.lr_scheduler.CosineAnnealingLR(o, 20),
    "one_cycle": lambda o: torch.optim.lr_scheduler.OneCycleLR(o, 0.05, total_steps=20),
    "sequential": lambda o: torch.optim.lr_scheduler.SequentialLR(
        o, [torch.optim.lr_scheduler.LinearLR(o, 0.1, 1.0, 5), torch.optim.lr_scheduler.ExponentialLR(o, 0.9)], [5]
    ),
}


@pytest.mark.parametrize("schedule", list(SCHEDULES))
@pytest.mark.parametrize("kind", ["sgd", "adamw"])
def test_learning_rate_schedules_go_on_unbroken(schedule: str, kind: str) -> None:
    entry = ZOO["mlp"]

    def rates(grows: bool) -> list[tuple[float, Any]]:
        model = entry.make()
        optimizer = OPTIMIZERS[kind](model.parameters())
        scheduler, found = SCHEDULES[schedule](optimizer), []
        for step in range(15):
            train(model, entry, optimizer, 1)
            scheduler.step()
            if grows and step in (4, 9):
                grow_blindly(model, entry, optimizer=optimizer, seed=step, anatomy=None)
            group = optimizer.param_groups[0]
            found.append((group["lr"], group.get("momentum", group.get("betas"))))
        return found

    assert rates(grows=True) == rates(grows=False)


@pytest.mark.parametrize("use_buffers", [False, True])
def test_average_of_the_weights_grows_along(use_buffers: bool) -> None:
    entry = ZOO["vgg"]
    model = entry.make()
    optimizer = OPTIMIZERS["sgd"](model.parameters())
    average = torch.optim.swa_utils.AveragedModel(
        model, multi_avg_fn=torch.optim.swa_utils.get_ema_multi_avg_fn(0.9), use_buffers=use_buffers
    )
    for _ in range(3):
        train(model, entry, optimizer, 2)
        average.update_parameters(model)
    before = average.eval()(*entry.example())
    grow_blindly(
        model, entry, optimizer=optimizer, also=[average], neighborhood=[firefly.Split(1e-6), firefly.New(4, 1e-6)]
    )
    assert average.training is False and average.module is not model
    shapes = {path: p.shape for path, p in model.state_dict().items()}
    assert {path: p.shape for path, p in average.module.state_dict().items()} == shapes
    torch.testing.assert_close(average(*entry.example()), before, rtol=0.0, atol=1e-3)
    kept = model.get_parameter("features.0.weight").clone()
    average.update_parameters(model)
    train(model, entry, optimizer, 1)
    average.update_parameters(model)
    assert not torch.equal(average.module.get_parameter("features.0.weight"), kept)
    owned = {p.data_ptr() for p in average.module.parameters()}
    assert not owned & {p.data_ptr() for p in model.parameters()}


def test_an_average_of_another_architecture_is_refused() -> None:
    for other in (nn.Sequential(nn.Linear(8, 5)), nn.Sequential(nn.Linear(8, 9), nn.ReLU(), nn.Linear(9, 12))):
        with pytest.raises(firefly.FireflyError, match=r"also.*same architecture"):
            grow_blindly(ZOO["mlp"].make(), ZOO["mlp"], also=[other])


def test_lbfgs_is_refused() -> None:
    """Its history is one flat vector of all parameters."""
    model = ZOO["mlp"].make()
    with pytest.raises(firefly.FireflyError, match="LBFGS"):
        grow_blindly(model, ZOO["mlp"], optimizer=torch.optim.LBFGS(model.parameters()))


def test_marks_and_hooks_on_parameters_are_kept() -> None:
    entry = ZOO["mlp"]
    model: Any = entry.make()
    seen: list[str] = []
    model[0].weight.no_decay = True
    for path, parameter in model.named_parameters():
        parameter.register_post_accumulate_grad_hook(lambda p, path=path: seen.append(path))
        parameter.register_hook(lambda gradient: 2 * gradient)
    grow_blindly(model, entry)
    assert model[0].weight.no_decay
    entry.loss(model, entry.batches()[0]).backward()
    assert sorted(seen) == sorted(path for path, _ in model.named_parameters())
    doubled = [p.grad.clone() for p in model.parameters()]
    twin = copy.deepcopy(model)  # hooks are not copied
    twin.zero_grad()
    entry.loss(twin, entry.batches()[0]).backward()
    for gradient, parameter in zip(doubled, twin.parameters()):
        torch.testing.assert_close(gradient, 2 * parameter.grad)


def test_optimizer_state_survives_a_round_trip() -> None:
    entry = ZOO["resnet"]
    model = entry.make()
    optimizer = OPTIMIZERS["adam"](model.parameters())
    train(model, entry, optimizer, 3)
    grow_blindly(model, entry, optimizer=optimizer)
    twin = copy.deepcopy(model)
    other = OPTIMIZERS["adam"](twin.parameters())
    other.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    train(model, entry, optimizer, 2)
    train(twin, entry, other, 2)
    assert equal_trees(model.state_dict(), twin.state_dict())


def test_parameters_that_another_optimizer_trains_are_told() -> None:
    """They are made anew, so that the other optimiser would go on with those that were there."""
    entry = ZOO["mlp"]
    model = entry.make()
    one = torch.optim.SGD([p for p in model.parameters() if p.ndim > 1], lr=0.1)
    growth = grow(model, entry, optimizer=one, budget=firefly.Neurons(1))
    assert any(".bias: grown, but not in the optimizer" in note for note in growth.notes), growth.notes
    both = torch.optim.SGD(model.parameters(), lr=0.1)
    assert not any("optimizer" in note for note in grow(model, entry, optimizer=both, anatomy=None).notes)
    assert not any("optimizer" in note for note in grow(model, entry, anatomy=None).notes)
