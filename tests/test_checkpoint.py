"""A run goes on from its checkpoint as if it had never stopped, and no failure ever leaves half of anything."""

import copy
import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from firefly.checkpoint import archive, load, save
from firefly.checkpoint import saving as checkpoint
from firefly.errors import FireflyError

torch.set_num_threads(1)


class Mlp(nn.Module):
    def __init__(self, hidden=5):
        super().__init__()
        self.fc1 = nn.Linear(4, hidden)
        self.norm = nn.BatchNorm1d(hidden)
        self.fc2 = nn.Linear(hidden, 3)
        self.hidden, self.sizes, self.shape, self.scale, self.gated = hidden, [4, hidden, 3], (hidden, 3), 0.5, False

    def forward(self, x):
        return self.fc2(F.gelu(self.norm(self.fc1(x)))) * self.scale


class ConvNet(nn.Module):
    def __init__(self, channels=3):
        super().__init__()
        self.stem = nn.Conv2d(2, channels, 3, padding=1)
        self.depthwise = nn.Conv2d(channels, channels, 3, padding=1, groups=channels)
        self.norm = nn.BatchNorm2d(channels)
        self.head = nn.Conv2d(channels, 2, 1)

    def forward(self, x):
        return self.head(F.relu(self.norm(self.depthwise(self.stem(x)))))


class Tied(nn.Module):
    """A tied matrix, a shared module, and a buffer that is the same tensor in two places."""

    def __init__(self, width=4):
        super().__init__()
        self.embed, self.head = nn.Embedding(7, width), nn.Linear(width, 7, bias=False)
        self.head.weight = self.embed.weight
        self.first = self.second = nn.Linear(width, width)
        self.register_buffer("scale", torch.ones(width))
        self.first.register_buffer("scale", self.scale)

    def forward(self, x):
        return self.head(self.second(self.first(self.embed(x))) * self.scale)


class Grower:
    def __init__(self, history=None):
        self.history = history

    def state_dict(self):
        return {"history": self.history}

    def load_state_dict(self, state):
        self.history = state["history"]


def grow_by_hand(model, optimizer, grown):
    """Turn `model` into the architecture of `grown`: larger tensors, the sizes, the optimiser's state padded with 0."""
    for (_, module), (_, larger) in zip(model.named_modules(), grown.named_modules()):
        for name, old in [*module._parameters.items(), *module._buffers.items()]:
            target = getattr(larger, name)
            if old is None or old.shape == target.shape:
                continue
            new = pad(old.detach(), target.detach())
            if isinstance(old, nn.Parameter):
                new = nn.Parameter(new, requires_grad=old.requires_grad)
                replace_in(optimizer, old, new)
            setattr(module, name, new)
        vars(module).update({name: size for name, size in vars(larger).items() if isinstance(size, int | tuple | list)})
    return model


def pad(old, larger):
    """`larger` with `old` in its first corner."""
    larger = larger.clone()
    larger[tuple(slice(size) for size in old.shape)] = old
    return larger


def replace_in(optimizer, old, new):
    for group in optimizer.param_groups if optimizer else ():
        group["params"] = [new if parameter is old else parameter for parameter in group["params"]]
        state = optimizer.state.pop(old, {})
        if state:
            same = {name: value for name, value in state.items() if not torch.is_tensor(value) or value.ndim == 0}
            padded = {name: pad(value, torch.zeros_like(new)) for name, value in state.items() if name not in same}
            optimizer.state[new] = same | padded


def train(model, optimizer, steps, start=0):
    dtype, device = next(model.parameters()).dtype, next(model.parameters()).device
    for step in range(start, start + steps):
        generator = torch.Generator().manual_seed(step)
        x = torch.randn(8, 4, generator=generator).to(device, dtype)
        y = torch.randint(3, (8,), generator=generator).to(device)

        def closure(x=x, y=y):
            optimizer.zero_grad()
            loss = F.cross_entropy(model(x), y)
            loss.backward()
            return loss

        optimizer.step(closure)


def make_run(make_optimizer, steps=3, dtype=torch.float32):
    """A small model trained, grown by hand and trained on."""
    torch.manual_seed(0)
    model = Mlp().to(dtype)
    optimizer = make_optimizer(model.parameters())
    train(model, optimizer, steps)
    grow_by_hand(model, optimizer, Mlp(hidden=9).to(dtype))
    return model, optimizer


def same(one, other):
    """Equal in structure, types and every bit of every tensor (nan is nan)."""
    if type(one) is not type(other):
        return False
    if torch.is_tensor(one):
        return one.dtype == other.dtype and one.shape == other.shape and bits(one) == bits(other)
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(same(one[key], other[key]) for key in one)
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(same(*pair) for pair in zip(one, other))
    return repr(one) == repr(other)


def bits(tensor):
    return tensor.detach().cpu().resolve_conj().contiguous().reshape(-1).view(torch.uint8).tolist()


def same_tensors(one, other):
    return same(dict(one.state_dict()), dict(other.state_dict()))


def fingerprint(model, optimizer=None, grower=None):
    """All that a failed load must not change: objects, values, sizes, groups and state."""
    tensors = {name: (id(tensor), tensor.detach().clone()) for name, tensor in model.state_dict(keep_vars=True).items()}
    sizes = {path: dict(checkpoint.find_sizes(module)) for path, module in model.named_modules()}
    groups = optimizer and [[id(parameter) for parameter in group["params"]] for group in optimizer.param_groups]
    state = optimizer and copy.deepcopy(optimizer.state_dict())
    return [tensors, sizes, groups, state, grower and copy.deepcopy(grower.history), torch.get_rng_state()]


OPTIMIZERS = {
    "SGD": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, nesterov=True),
    "Adam": lambda p: torch.optim.Adam(p, lr=0.01, amsgrad=True),
    "AdamW": lambda p: torch.optim.AdamW(p, lr=0.01, betas=(0.8, 0.99)),
    "RMSprop": lambda p: torch.optim.RMSprop(p, lr=0.01, momentum=0.5, centered=True),
}
MORE_OPTIMIZERS = OPTIMIZERS | {
    "plain SGD": lambda p: torch.optim.SGD(p, lr=0.1),
    "tensor lr": lambda p: torch.optim.Adam(p, lr=torch.tensor(0.01)),
    "fused": lambda p: torch.optim.AdamW(p, lr=0.01, fused=True),
    "Adadelta": torch.optim.Adadelta,
    "Adafactor": torch.optim.Adafactor,
    "Adagrad": lambda p: torch.optim.Adagrad(p, initial_accumulator_value=0.1),
    "Adamax": torch.optim.Adamax,
    "ASGD": lambda p: torch.optim.ASGD(p, t0=2),
    "LBFGS": lambda p: torch.optim.LBFGS(p, max_iter=3),
    "Muon": lambda p: torch.optim.Muon([q for q in p if q.ndim == 2]),
    "NAdam": torch.optim.NAdam,
    "RAdam": torch.optim.RAdam,
    "Rprop": torch.optim.Rprop,
}


# Round trips ----------------------------------------------------------------------------------------------------------


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


def run_in_fresh_process(call):
    paths = os.pathsep.join([str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")])
    environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": paths}
    code = f"from pathlib import Path; import test_checkpoint as t; t.{call}"
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stdout + done.stderr


def test_a_fresh_process_goes_on_bit_identically(tmp_path):
    runs = {kind: make_run(make_optimizer) for kind, make_optimizer in OPTIMIZERS.items()}
    for kind, (model, optimizer) in runs.items():
        save(tmp_path / kind, model, optimizer)
        train(model, optimizer, steps=5, start=3)
    run_in_fresh_process(f"resume_all(Path({str(tmp_path)!r}))")
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
    for start in (tensor.clone(), zero.expand(tensor.shape), zero.expand([size + 1 for size in tensor.shape])):
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
    model.fc1.size = torch.Size([8, 3])
    vars(fresh).update(_private=1, shape=[5, 3], when=1.5)
    fresh.fc1.size = torch.Size([5, 3])
    save(tmp_path, model)
    load(tmp_path, fresh)
    assert not hasattr(fresh, "added")
    assert (fresh._private, fresh.gated, fresh.shape, fresh.scale, fresh.when) == (1, False, [5, 3], 0.5, 1.5)
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


# Failures -------------------------------------------------------------------------------------------------------------


def refuses(folder, match, model=None, optimizer=None, grower=None):
    """`load` raises the error, and nothing has changed."""
    model = model or Mlp()
    before = fingerprint(model, optimizer, grower)
    with pytest.raises(FireflyError, match=match):
        load(folder, model, optimizer, grower, rng=True)
    assert same(fingerprint(model, optimizer, grower), before)


@pytest.fixture
def run(tmp_path):
    model, optimizer = make_run(OPTIMIZERS["Adam"])
    save(tmp_path / "run", model, optimizer, Grower([1]))
    return tmp_path / "run"


def tensor_file(folder):
    (file,) = folder.glob("tensors-*.safetensors")
    return file


def test_missing_parts_are_named(run, tmp_path):
    refuses(tmp_path / "absent", "no folder .*absent")
    refuses(tmp_path, r"no checkpoint\.json in the folder")
    tensor_file(run).unlink()
    refuses(run, r"tensors-.*\.safetensors is missing")


@pytest.mark.parametrize("name", ["checkpoint.json", "tensors"])
def test_damage_anywhere_is_noticed(run, name):
    file = run / name if "." in name else tensor_file(run)
    whole = file.read_bytes()
    for cut in (0, 1, len(whole) // 2, len(whole) - 1):
        file.write_bytes(whole[:cut])
        refuses(run, "truncated or altered")
    for place in random.Random(0).sample(range(len(whole)), 40):
        if whole[place : place + 1].isspace():
            continue
        for flip in (1, 0x80):
            file.write_bytes(whole[:place] + bytes([whole[place] ^ flip]) + whole[place + 1 :])
            refuses(run, "truncated or altered")
    file.write_bytes(whole)
    load(run, Mlp())


@pytest.mark.parametrize("text", ["[]", "null", "{}", '{"schema": "x"}', '{"schema": null}', '{"schema": 1}'])
def test_other_json_is_refused(run, text):
    (run / "checkpoint.json").write_text(text)
    refuses(run, "truncated or altered")


def test_a_newer_schema_asks_for_an_upgrade(run, monkeypatch):
    monkeypatch.setattr(archive, "SCHEMA", 2)
    save(run, Mlp())
    monkeypatch.undo()
    refuses(run, r"newer Firefly \(schema 2\), this one reads 1: upgrade")


def test_another_model_is_refused(run):
    refuses(run, "modules that the model lacks: fc1, fc2, norm.*as it was before growth", nn.Linear(4, 5))
    deeper = Mlp()
    deeper.extra = nn.Linear(2, 2)
    refuses(run, r"none of the model's tensors: extra\.bias, extra\.weight;", deeper)
    biasless = Mlp()
    biasless.fc1.bias = None
    refuses(run, r"tensors that the model lacks: fc1\.bias;", biasless)
    flat = Mlp()
    flat.fc2.weight = nn.Parameter(torch.zeros(3))
    refuses(run, r"float32 of shape \(3, 9\) where the model has .*float32 of shape \(3,\): fc2\.weight", flat)
    refuses(run, r"float32.*where the model has torch\.float64", Mlp().double())


def test_a_long_list_of_names_is_cut(run):
    save(run, nn.Sequential(*(nn.Linear(1, 1) for _ in range(4))))
    refuses(run, r"none of the model's tensors: 4\.bias, 4\.weight, 5\.bias, 5\.weight, 6\.bias and 3 more;",
            nn.Sequential(*(nn.Linear(1, 1) for _ in range(8))))  # fmt: skip


def test_another_optimizer_is_refused(run):
    model = Mlp()
    refuses(run, "is Adam, the given one AdamW", model, torch.optim.AdamW(model.parameters()))
    refuses(run, r"hold \[6\] parameters, .* \[5\]", model, torch.optim.Adam(list(model.parameters())[1:]))
    halves = [{"params": model.fc1.parameters()}, {"params": [*model.norm.parameters(), *model.fc2.parameters()]}]
    refuses(run, r"hold \[6\] parameters, .* \[2, 4\]", model, torch.optim.Adam(halves))
    refuses(run, r"holds fc1\.weight where .* holds fc2\.bias", model, torch.optim.Adam([*model.parameters()][::-1]))
    refuses(run, "holds fc1.weight where .* not of the model", model, torch.optim.Adam(Mlp().parameters()))


def test_a_grower_that_refuses_leaves_the_model_alone(run):
    class Strict(Grower):
        def load_state_dict(self, state):
            raise FireflyError("another schedule")

    model = Mlp()
    refuses(run, "another schedule", model, torch.optim.Adam(model.parameters()), Strict([2]))


def files(folder):
    return sorted(path.name for path in folder.iterdir())


def test_saving_again_replaces_and_leaves_other_files_alone(run):
    old = tensor_file(run).name
    for mine in ("tensors-mine.safetensors", "notes.txt"):
        (run / mine).write_text("mine")
    (run / f"tensors-{'0' * 16}.safetensors").write_text("left by a kill")
    (run / f"checkpoint-{'0' * 16}.tmp").write_text("left by a kill")
    save(run, Mlp(hidden=7))
    assert load(run, Mlp()).hidden == 7
    assert len(files(run)) == 4 and old not in files(run)
    assert {"checkpoint.json", "tensors-mine.safetensors", "notes.txt"} < set(files(run))


@pytest.mark.parametrize("stage", ["tensors", "half the tensors", "json", "half the json", "replace", "remove"])
def test_a_save_that_fails_leaves_a_whole_checkpoint(run, monkeypatch, stage):
    before, write = files(run), archive.write

    def fail(*_, **__):
        raise OSError("no space left")

    def write_some(path, data):
        if ("json" in stage) == path.name.endswith(".tmp"):
            if "half" in stage:
                path.write_bytes(data[: len(data) // 2])
            fail()
        write(path, data)

    with monkeypatch.context() as patch:
        if stage == "replace":
            patch.setattr(os, "replace", fail)
        elif stage == "remove":
            patch.setattr(Path, "unlink", fail)
        else:
            patch.setattr(archive, "write", write_some)
        with pytest.raises(OSError, match="no space left"):
            save(run, Mlp(hidden=7))
    assert load(run, Mlp()).hidden == (7 if stage == "remove" else 9)
    assert files(run) == before or stage in ("replace", "remove")
    save(run, Mlp(hidden=8))
    assert load(run, Mlp()).hidden == 8 and len(files(run)) == 2


class Constant(nn.Module):
    """Every number in it is `value`, so a mixture of two saves shows."""

    def __init__(self, value=0):
        super().__init__()
        self.value = value
        self.tensors = nn.ParameterList(torch.full((50, 50 + value % 3), float(value)) for _ in range(5))


def save_for_ever(folder, first):
    value = first
    while True:
        save(folder, Constant(value), grower=Grower(value))
        value += 2


def check_whole(folder):
    grower = Grower()
    model = load(folder, Constant(), grower=grower)
    assert {model.value, *torch.cat([p.flatten() for p in model.tensors]).tolist()} == {grower.history}


def kill_savers(folder):
    """Fork two savers into one folder, load while they save, kill them at a random moment; again and again."""
    save(folder, Constant(), grower=Grower(0))
    deadline = time.monotonic() + 1
    for _ in range(40):
        children = []
        for first in (1, 2):
            children.append(os.fork())
            if children[-1] == 0:
                save_for_ever(folder, first)
        time.sleep(random.uniform(0.005, 0.06))
        check_whole(folder)
        for child in children:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
        check_whole(folder)
        if time.monotonic() > deadline:
            break
    save(folder, Constant(3), grower=Grower(3))
    assert len(files(folder)) == 2


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_killed_savers_always_leave_a_whole_checkpoint(tmp_path):
    run_in_fresh_process(f"kill_savers(Path({str(tmp_path)!r}))")


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
