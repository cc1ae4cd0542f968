"""Small runs to save and load, and what it means that two of them are the same."""

import copy
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from firefly.checkpoint import load
from firefly.checkpoint.model import find_sizes
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
    sizes = {path: dict(find_sizes(module)) for path, module in model.named_modules()}
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


def refuses(folder, match, model=None, optimizer=None, grower=None):
    """`load` raises the error, and nothing has changed."""
    model = model or Mlp()
    before = fingerprint(model, optimizer, grower)
    with pytest.raises(FireflyError, match=match):
        load(folder, model, optimizer, grower, rng=True)
    assert same(fingerprint(model, optimizer, grower), before)


def run_in_fresh_process(call):
    """Call a function of a test file, "file.function(…)", in a process of its own."""
    tests = Path(__file__).parent.parent
    rooms = [str(tests / room) for room in ("", "checkpoint", "integrations")]
    paths = os.pathsep.join([*rooms, os.environ.get("PYTHONPATH", "")])
    environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": paths}
    code = f"from pathlib import Path; import {call.partition('.')[0]}; {call}"
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stdout + done.stderr
