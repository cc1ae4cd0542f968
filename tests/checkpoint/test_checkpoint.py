"""A run goes on from its checkpoint as if it had never stopped."""

import json

import pytest
import torch
from runs import (
    MORE_OPTIMIZERS,
    OPTIMIZERS,
    ConvNet,
    Grower,
    Mlp,
    Tied,
    make_run,
    run_in_fresh_process,
    same,
    same_tensors,
    train,
)
from torch import nn

from firefly.checkpoint import load, save
from firefly.errors import FireflyError


def test_load_rebuilds_the_grown_model_and_its_optimizer(tmp_path):
    model, optimizer = make_run(OPTIMIZERS["Adam"])
    save(tmp_path / "new" / "run", model, optimizer=optimizer)
    fresh = Mlp().eval()
    fresh_optimizer = OPTIMIZERS["Adam"](fresh.parameters())
    groups = [group["params"] for group in fresh_optimizer.param_groups]
    assert load(tmp_path / "new" / "run", model=fresh, optimizer=fresh_optimizer) is fresh
    assert same_tensors(model, fresh)
    assert (fresh.fc1.out_features, fresh.norm.num_features, fresh.fc2.in_features) == (9, 9, 9)
    assert (fresh.hidden, fresh.sizes, fresh.shape, fresh.gated) == (9, [4, 9, 3], (9, 3), False)
    assert not fresh.training  # left to the user
    assert [id(p) for p in groups[0]] == [id(p) for p in fresh.parameters()]  # the very list the optimiser had
    assert {id(p) for p in fresh_optimizer.state} == {id(p) for p in fresh.parameters()}
    assert same(optimizer.state_dict(), fresh_optimizer.state_dict())
    assert isinstance(fresh_optimizer.param_groups[0]["betas"], tuple)


@pytest.mark.parametrize("kind", MORE_OPTIMIZERS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=["float32", "float64"])
def test_every_optimizer_goes_on_bit_identically(tmp_path, kind, dtype):
    torch.manual_seed(0)
    model = Mlp().to(dtype)
    optimizer = MORE_OPTIMIZERS[kind](model.parameters())
    train(model, optimizer, 3)
    save(tmp_path, model, optimizer)
    fresh = Mlp().to(dtype)
    fresh_optimizer = MORE_OPTIMIZERS[kind](fresh.parameters())
    load(tmp_path, fresh, fresh_optimizer)
    for run in ((model, optimizer), (fresh, fresh_optimizer)):
        train(*run, steps=4, start=3)
    assert same_tensors(model, fresh)
    assert same(optimizer.state_dict(), fresh_optimizer.state_dict())


def test_optimizer_state_keeps_a_dtype_finer_than_its_parameter(tmp_path):
    model = nn.Linear(2, 2, dtype=torch.bfloat16)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    momentum = torch.tensor([1 / 3, 1 / 7])
    optimizer.state[model.bias]["momentum_buffer"] = momentum
    save(tmp_path, model, optimizer)
    fresh = nn.Linear(2, 2, dtype=torch.bfloat16)
    fresh_optimizer = torch.optim.SGD(fresh.parameters(), lr=0.1, momentum=0.9)
    load(tmp_path, fresh, fresh_optimizer)
    assert torch.equal(fresh_optimizer.state[fresh.bias]["momentum_buffer"], momentum)


def resume_all(folder):
    """In a fresh process: load each run and train on."""
    for kind, make_optimizer in OPTIMIZERS.items():
        model = Mlp()
        optimizer = make_optimizer(model.parameters())
        load(folder / kind, model, optimizer)
        train(model, optimizer, steps=5, start=3)
        save(folder / f"{kind} resumed", model, optimizer)


def test_a_fresh_process_goes_on_bit_identically(tmp_path):
    runs = {kind: make_run(make_optimizer) for kind, make_optimizer in OPTIMIZERS.items()}
    for kind, (model, optimizer) in runs.items():
        save(tmp_path / kind, model, optimizer)
        train(model, optimizer, steps=5, start=3)
    run_in_fresh_process(f"test_checkpoint.resume_all(Path({str(tmp_path)!r}))")
    for kind, (model, _) in runs.items():
        assert same_tensors(model, load(tmp_path / f"{kind} resumed", Mlp())), kind


@pytest.mark.parametrize(
    "tensor",
    [
        torch.randn(3, 2).to(torch.bfloat16),
        torch.randn(3).half(),
        torch.tensor(2.5),
        torch.tensor(7),
        torch.empty(0, 3),
        torch.tensor([True, False]),
        torch.tensor([2**40, -1]),
        torch.tensor([1 + 2j]).conj(),
        torch.tensor([1.0, 2.0]).to(torch.float8_e4m3fn),
        torch.tensor([float("nan"), float("inf"), -0.0]),
        torch.randn(4, 3).t(),
        torch.randn(4, 6)[:, ::2],
        torch.randn(3, 1).expand(3, 4),
    ],
    ids=lambda tensor: f"{tensor.dtype}-{list(tensor.shape)}-{list(tensor.stride())}",
)
def test_every_kind_of_tensor_comes_back_exactly(tmp_path, tensor):
    def make(kept):
        module = nn.Module()
        module.register_buffer("kept", kept)
        module.register_buffer("skipped", torch.tensor([kept.ndim]), persistent=False)
        return module

    save(tmp_path, make(tensor))
    zero = torch.zeros((), dtype=tensor.dtype)
    for start in (tensor.clone(), zero.expand(tensor.shape)):
        fresh = make(start)
        load(tmp_path, fresh)
        assert same(fresh.kept, tensor)
        fresh.kept.copy_(zero)  # memory of its own, and every element
    assert "skipped" not in (tmp_path / "checkpoint.json").read_text()


def test_ties_stay_ties_through_growth(tmp_path):
    torch.manual_seed(0)
    model, optimizer = Tied(width=6), None
    save(tmp_path, model)
    fresh = Tied()
    optimizer = torch.optim.SGD(fresh.parameters(), lr=0.1)
    with pytest.raises(FireflyError, match="no optimizer"):
        load(tmp_path, fresh, optimizer)
    load(tmp_path, fresh)
    assert fresh.embed.weight is fresh.head.weight and fresh.first is fresh.second
    assert fresh.scale is fresh.first.scale
    assert fresh.embed.weight.shape == (7, 6) and fresh.first.in_features == 6
    assert torch.equal(fresh(torch.arange(7)), model(torch.arange(7)))
    stored = [key for key in json.loads((tmp_path / "checkpoint.json").read_text())["strides"] if "model/" in key]
    assert len(stored) == 4  # embedding, weight, bias, scale: once each


def test_a_model_tied_otherwise_is_refused(tmp_path):
    save(tmp_path, Tied())
    untied = Tied()
    untied.head.weight = nn.Parameter(untied.head.weight.detach().clone())
    with pytest.raises(FireflyError, match=r"other ties.*head\.weight"):
        load(tmp_path, untied)
    save(tmp_path, untied)
    with pytest.raises(FireflyError, match=r"other ties.*head\.weight"):
        load(tmp_path, Tied())


@pytest.mark.parametrize("fresh_format", [torch.contiguous_format, torch.channels_last])
@pytest.mark.parametrize("channels", [3, 5])
def test_channels_last_is_restored(tmp_path, fresh_format, channels):
    torch.manual_seed(0)
    model = ConvNet(channels).to(memory_format=torch.channels_last)
    optimizer = torch.optim.Adam(model.parameters())
    model(torch.randn(2, 2, 4, 4)).square().sum().backward()
    optimizer.step()
    save(tmp_path, model, optimizer)
    fresh = ConvNet(3).to(memory_format=fresh_format)
    fresh_optimizer = torch.optim.Adam(fresh.parameters())
    load(tmp_path, fresh, fresh_optimizer)
    assert same_tensors(model, fresh) and fresh.depthwise.groups == channels
    for old, new in zip(model.parameters(), fresh.parameters()):
        assert old.stride() == new.stride()
        moments = optimizer.state[old]["exp_avg"], fresh_optimizer.state[new]["exp_avg"]
        assert torch.equal(*moments) and moments[0].stride() == moments[1].stride()
    assert fresh.stem.weight.is_contiguous(memory_format=torch.channels_last)


def test_frozen_parameters_and_marks_on_them_stay(tmp_path):
    save(tmp_path, Mlp(hidden=9))
    fresh = Mlp()
    fresh.fc1.weight.requires_grad_(False)
    fresh.fc2.weight.no_decay = True
    load(tmp_path, fresh)
    assert not fresh.fc1.weight.requires_grad and fresh.fc2.weight.requires_grad and fresh.fc2.weight.no_decay


def test_a_recurrent_layer_sees_its_new_weights(tmp_path):
    model, fresh = nn.LSTM(3, 6), nn.LSTM(3, 4)
    save(tmp_path, model)
    load(tmp_path, fresh)
    x = torch.randn(5, 2, 3)
    assert torch.equal(fresh(x)[0], model(x)[0]) and fresh.hidden_size == 6


def test_attributes_are_set_only_where_they_exist_and_are_of_the_same_kind(tmp_path):
    model, fresh = Mlp(), Mlp()
    vars(model).update(added=3, _private=3, gated=True, hidden=8, sizes=[1, 2, 3], shape=(8, 8), scale=1, when=2)
    model.fc1.size = torch.Size([8, 3])  # the user's own, on a layer of torch
    vars(fresh).update(_private=1, shape=[5, 3], when=1.5)
    fresh.fc1.size = torch.Size([5, 3])
    save(tmp_path, model)
    load(tmp_path, fresh)
    assert not hasattr(fresh, "added")
    assert (fresh._private, fresh.gated, fresh.shape, fresh.scale, fresh.when) == (3, False, [8, 8], 0.5, 1.5)
    assert (fresh.hidden, fresh.sizes) == (8, [1, 2, 3])
    assert fresh.fc1.size == (8, 3) and type(fresh.fc1.size) is torch.Size


def test_extra_state_is_kept_when_a_tensor_and_refused_when_not(tmp_path):
    class Counter(nn.Module):
        extra = torch.tensor([1.0])

        def get_extra_state(self):
            return self.extra

        def set_extra_state(self, state):
            self.extra = state

    model = nn.Sequential(nn.Linear(2, 2), Counter())
    model[1].extra = torch.tensor([3.0, 4.0])
    save(tmp_path, model)
    fresh = load(tmp_path, nn.Sequential(nn.Linear(2, 2), Counter()))
    assert torch.equal(fresh[1].extra, torch.tensor([3.0, 4.0]))
    model[1].extra = {"count": 3}
    with pytest.raises(FireflyError, match=r"1\._extra_state is a dict"):
        save(tmp_path / "other", model)
    assert not (tmp_path / "other").exists()


def test_group_values_come_back_as_what_they_were(tmp_path):
    model = nn.Linear(2, 2)
    values = {"lr": torch.tensor(0.25), "ends": (1, (None, True)), "cap": float("inf"), "tag": {"a": [1], 2: "b"}}
    optimizer = torch.optim.SGD([{"params": [model.weight], **values}, {"params": [model.bias]}], lr=0.1 + 0.2)
    save(tmp_path, model, optimizer)
    json.loads((tmp_path / "checkpoint.json").read_text(), parse_constant=pytest.fail)  # no NaN
    fresh_optimizer = torch.optim.SGD([{"params": [model.weight]}, {"params": [model.bias]}], lr=9.0, momentum=0.9)
    load(tmp_path, model, fresh_optimizer)
    assert same(fresh_optimizer.param_groups, optimizer.param_groups)


def test_what_cannot_be_saved_is_named(tmp_path):
    model = nn.Linear(2, 2)
    optimizer = torch.optim.SGD([{"params": [model.weight]}, {"params": [model.bias], "rule": max}], lr=0.1)
    with pytest.raises(FireflyError, match=r"optimizer/groups/1/rule .*builtin_function"):
        save(tmp_path / "run", model, optimizer)
    with pytest.raises(FireflyError, match=r"grower/history .* set"):
        save(tmp_path / "run", model, grower=Grower({1}))
    for buffer in (torch.eye(2).to_sparse(), torch.zeros(1, dtype=torch.complex128)):
        model.register_buffer("odd", buffer)
        with pytest.raises(FireflyError, match="model/odd"):
            save(tmp_path / "run", model)
    with pytest.raises(FireflyError, match="weight has no values yet"):
        save(tmp_path / "run", nn.LazyLinear(3))
    assert not (tmp_path / "run").exists()


def test_a_lazy_or_meta_model_is_refused_by_load(tmp_path):
    save(tmp_path, nn.Linear(2, 2))
    for model in (nn.Linear(2, 2, device="meta"), nn.LazyLinear(2)):
        with pytest.raises(FireflyError, match="no values yet"):
            load(tmp_path, model)


def test_grower_and_generators_are_restored_when_asked(tmp_path):
    model, history = nn.Linear(2, 2), [{"added": {"fc1": 3}, "loss": 0.1, "bad": float("nan"), "widths": (1, 2)}]
    save(tmp_path, model, grower=Grower(history))
    expected = torch.rand(3)
    grower = Grower()
    load(tmp_path, model, grower=grower, rng=True)
    assert same(grower.history, history)
    assert torch.equal(torch.rand(3), expected)
    load(tmp_path, model)
    assert not torch.equal(torch.rand(3), expected)
    save(tmp_path, model)
    with pytest.raises(FireflyError, match="no grower"):
        load(tmp_path, model, grower=grower)


LR = torch.tensor(0.01)


@pytest.mark.gpu
@pytest.mark.parametrize("options", [{}, {"capturable": True}, {"fused": True}, {"lr": LR}, {"fused": True, "lr": LR}])
@pytest.mark.parametrize("lr_device", ["cpu", "cuda"])
def test_a_run_goes_on_on_a_gpu(tmp_path, options, lr_device):
    def make(hidden):
        model = Mlp(hidden).cuda()
        moved = {key: value.to(lr_device) if key == "lr" else value for key, value in options.items()}
        return model, torch.optim.Adam(model.parameters(), **moved)

    model, optimizer = make(9)
    train(model, optimizer, 3)
    save(tmp_path, model, optimizer)
    noise = torch.rand(3, device="cuda")
    fresh, fresh_optimizer = make(5)
    load(tmp_path, fresh, fresh_optimizer, rng=True)
    assert torch.equal(noise, torch.rand(3, device="cuda"))
    for run in ((model, optimizer), (fresh, fresh_optimizer)):
        train(*run, steps=4, start=3)
    assert same_tensors(model, fresh) and fresh.fc1.weight.is_cuda
    assert load(tmp_path, Mlp()).fc1.weight.device.type == "cpu"
