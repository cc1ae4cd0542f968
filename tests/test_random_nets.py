"""Networks that nobody thought of: Hypothesis joins layers at random, and the laws of growth hold for all of them."""

import copy
from collections.abc import Callable

import hypothesis.strategies as st
import torch
import torch.nn.functional as F
from hypothesis import HealthCheck, Phase, event, given, settings
from torch import Tensor, nn

import firefly
from firefly.neighborhood.overgrown import OverGrown
from laws import (
    assert_close,
    assert_epsilon_zero_preserves,
    assert_grown_is_overgrown,
    assert_optimizer_fits,
    grow,
    grow_blindly,
    in_double,
    run,
)
from zoo import Batch, Entry

ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "relu": F.relu,
    "gelu": F.gelu,
    "tanh": torch.tanh,
    "none": lambda x: x,
}


def make_norm(kind: str, width: int) -> nn.Module:
    groups = next(g for g in (3, 2, 1) if width % g == 0)
    makers: dict[str, Callable[[], nn.Module]] = {
        "batch": lambda: nn.BatchNorm2d(width),
        "group": lambda: nn.GroupNorm(groups, width),
        "each": lambda: nn.GroupNorm(width, width),
        "instance": lambda: nn.InstanceNorm2d(width, affine=True),
        "plain": lambda: nn.BatchNorm2d(width, affine=False),
        "none": nn.Identity,
    }
    return makers[kind]()


class Block(nn.Module):
    """One way to go on from a map of `inputs` channels; `outputs` says how many it gives."""

    one: nn.Module
    two: nn.Module
    norm: nn.Module

    def __init__(self, kind: str, inputs: int, width: int, norm: str, act: str) -> None:
        super().__init__()
        self.kind, self.act, self.outputs = kind, ACTIVATIONS[act], width
        self.one, self.two, self.norm = nn.Identity(), nn.Identity(), nn.Identity()
        getattr(self, f"make_{kind}")(inputs, width, norm)

    def forward(self, x: Tensor) -> Tensor:
        return getattr(self, f"run_{self.kind}")(x)

    def make_conv(self, inputs: int, width: int, norm: str) -> None:
        self.one, self.norm = nn.Conv2d(inputs, width, 3, padding=1, bias=norm == "none"), make_norm(norm, width)

    def run_conv(self, x: Tensor) -> Tensor:
        return self.act(self.norm(self.one(x)))

    def make_point(self, inputs: int, width: int, norm: str) -> None:
        """A convolution of one pixel, spelled as a linear layer over the last dimension."""
        self.one = nn.Linear(inputs, width)

    def run_point(self, x: Tensor) -> Tensor:
        return self.act(self.one(x.permute(0, 2, 3, 1))).permute(0, 3, 1, 2)

    def make_residual(self, inputs: int, width: int, norm: str) -> None:
        self.one, self.two = nn.Conv2d(inputs, width, 1), nn.Conv2d(width, inputs, 1)
        self.norm, self.outputs = make_norm(norm, width), inputs

    def run_residual(self, x: Tensor) -> Tensor:
        return x + self.two(self.act(self.norm(self.one(x))))

    def make_sum(self, inputs: int, width: int, norm: str) -> None:
        self.one, self.two = nn.Conv2d(inputs, width, 1), nn.Conv2d(inputs, width, 3, padding=1)
        self.norm = make_norm(norm, width)

    def run_sum(self, x: Tensor) -> Tensor:
        return self.norm(self.act(self.one(x)) + self.two(x))

    def make_cat(self, inputs: int, width: int, norm: str) -> None:
        self.one, self.two = nn.Conv2d(inputs, width, 1), nn.Conv2d(inputs, 3, 3, padding=1)
        self.outputs, self.norm = width + 3, make_norm(norm, width + 3)

    def run_cat(self, x: Tensor) -> Tensor:
        return self.act(self.norm(torch.cat([self.one(x), self.two(x)], 1)))

    def make_dense(self, inputs: int, width: int, norm: str) -> None:
        self.one, self.norm, self.outputs = nn.Conv2d(inputs, width, 1), make_norm(norm, inputs), inputs + width

    def run_dense(self, x: Tensor) -> Tensor:
        return torch.cat([x, self.act(self.one(self.norm(x)))], 1)

    def make_depthwise(self, inputs: int, width: int, norm: str) -> None:
        self.one = nn.Conv2d(inputs, inputs, 3, padding=1, groups=inputs)
        self.norm, self.outputs = make_norm(norm, inputs), inputs

    def run_depthwise(self, x: Tensor) -> Tensor:
        return self.act(self.norm(self.one(x)))

    def make_multiplied(self, inputs: int, width: int, norm: str) -> None:
        self.one, self.outputs = nn.Conv2d(inputs, 2 * inputs, 3, padding=1, groups=inputs), 2 * inputs

    def run_multiplied(self, x: Tensor) -> Tensor:
        return self.act(self.one(x))

    def make_grouped(self, inputs: int, width: int, norm: str) -> None:
        groups = next(g for g in (3, 2, 1) if inputs % g == 0)
        self.outputs = groups * width
        self.one, self.norm = nn.Conv2d(inputs, self.outputs, 1, groups=groups), make_norm(norm, self.outputs)

    def run_grouped(self, x: Tensor) -> Tensor:
        return self.act(self.norm(self.one(x)))

    def make_gate(self, inputs: int, width: int, norm: str) -> None:
        self.one, self.two = nn.Conv2d(inputs, width, 1), nn.Conv2d(inputs, width, 1)
        self.norm = make_norm(norm, width)

    def run_gate(self, x: Tensor) -> Tensor:
        return self.norm(self.one(x)) * torch.sigmoid(self.two(x))

    def make_squeeze(self, inputs: int, width: int, norm: str) -> None:
        self.one, self.two, self.outputs = nn.Linear(inputs, width), nn.Linear(width, inputs), inputs

    def run_squeeze(self, x: Tensor) -> Tensor:
        scale = torch.sigmoid(self.two(self.act(self.one(x.mean((2, 3))))))
        return x * scale[:, :, None, None]

    def make_glu(self, inputs: int, width: int, norm: str) -> None:
        self.one, self.norm = nn.Conv2d(inputs, 2 * width, 1), make_norm(norm, width)

    def run_glu(self, x: Tensor) -> Tensor:
        return self.norm(F.glu(self.one(x), dim=1))

    def make_chunk(self, inputs: int, width: int, norm: str) -> None:
        self.one, self.outputs = nn.Conv2d(inputs, 2 * width, 1), 2 * width

    def run_chunk(self, x: Tensor) -> Tensor:
        left, right = self.one(x).chunk(2, 1)
        return torch.cat([self.act(right), left * right], 1)

    def make_again(self, inputs: int, width: int, norm: str) -> None:
        """One square layer, two times."""
        self.one, self.norm, self.outputs = nn.Conv2d(inputs, inputs, 1), make_norm(norm, inputs), inputs

    def run_again(self, x: Tensor) -> Tensor:
        return self.act(self.one(self.act(self.one(self.norm(x)))))

    def make_scale(self, inputs: int, width: int, norm: str) -> None:
        self.gamma, self.outputs = nn.Parameter(torch.rand(inputs, 1, 1) + 0.5), inputs
        self.beta = nn.Parameter(torch.rand(1, inputs, 1, 1))

    def run_scale(self, x: Tensor) -> Tensor:
        return self.act(self.gamma * x + self.beta)

    def make_up(self, inputs: int, width: int, norm: str) -> None:
        self.one, self.norm = nn.ConvTranspose2d(inputs, width, 2, stride=2), make_norm(norm, width)

    def run_up(self, x: Tensor) -> Tensor:
        return F.max_pool2d(self.act(self.norm(self.one(x))), 2)

    def make_whiten(self, inputs: int, width: int, norm: str) -> None:
        self.norm, self.outputs = nn.GroupNorm(1, inputs), inputs

    def run_whiten(self, x: Tensor) -> Tensor:
        return self.act(self.norm(x))

    def make_pool(self, inputs: int, width: int, norm: str) -> None:
        self.outputs, self.average = inputs, width % 2 == 0

    def run_pool(self, x: Tensor) -> Tensor:
        pool = F.avg_pool2d if self.average else F.max_pool2d
        return pool(x, 3, 1, 1)

    def make_slice(self, inputs: int, width: int, norm: str) -> None:
        """The size of the first part is written down: what follows it may grow, it may not."""
        self.one, self.outputs, self.first = nn.Conv2d(inputs, width + 2, 1), width + 2, 2

    def run_slice(self, x: Tensor) -> Tensor:
        x = self.one(x)
        return torch.cat([x[:, self.first :], self.act(x[:, : self.first])], 1)


KINDS = sorted(name.removeprefix("make_") for name in vars(Block) if name.startswith("make_"))
HEADS = ["mean", "flatten", "pooled", "norm", "token"]


class RandomNet(nn.Module):
    def __init__(self, blocks: list[tuple[str, int, str, str]], head: str, hidden: int) -> None:
        super().__init__()
        width, self.blocks, self.head = 3, nn.Sequential(), head
        for kind, size, norm, act in blocks:
            block = Block(kind, width, size, norm, act)
            self.blocks.append(block)
            width = block.outputs
        inputs = {"flatten": 16 * width, "pooled": 4 * width}.get(head, width)
        self.norm: nn.Module = nn.LayerNorm(width) if head == "norm" else nn.BatchNorm1d(inputs)
        if head in ("pooled", "token"):  # where no example would reach it
            self.norm = nn.Identity()
        self.fc1, self.fc2 = nn.Linear(inputs, hidden), nn.Linear(hidden, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = self.blocks(x)
        if self.head == "flatten":
            x = self.norm(x.flatten(1))
        elif self.head == "pooled":
            x = F.adaptive_max_pool2d(x, 2)
            x = x.contiguous().view(x.size(0), -1)
        elif self.head == "token":
            x = x.flatten(2).transpose(1, 2)[:, 0]
        else:
            x = self.norm(x.mean((2, 3)))
        return self.fc2(F.silu(self.fc1(x)))


sizes = st.sampled_from([1, 2, 3, 4, 5, 6, 8])  # 4 is also the number of images, and of pixels on a side
norms = st.sampled_from(["none", "batch", "group", "each", "instance", "plain"])
blocks = st.tuples(st.sampled_from(KINDS), sizes, norms, st.sampled_from(sorted(ACTIVATIONS)))
nets = st.tuples(st.lists(blocks, min_size=1, max_size=5), st.sampled_from(HEADS), sizes)


def loss(model: nn.Module, batch: Batch) -> Tensor:
    return F.cross_entropy(model(*batch[0]), batch[1])


def draw(seed: int, count: int = 4) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    images = torch.randn(count, 3, 4, 4, generator=generator)
    return images, (images.mean((2, 3)) * torch.tensor([1.0, -1.0, 2.0])).argmax(1)


ENTRY = Entry("random", nn.Identity, lambda: draw(9)[:1], lambda: [((x,), y) for x, y in [draw(9)]], loss, grows={})


def check_laws(model: nn.Module, anatomy: firefly.Anatomy) -> None:
    """ε = 0 preserves f, and the grown network is the over-grown one with the rest switched off."""
    model, example = copy.deepcopy(model).double().eval(), (draw(9)[0].double(),)
    expected = run(model, example)
    names = [width.name for width in anatomy.growable()]
    for kinds in ([firefly.Split()], [firefly.New(2)], [firefly.Unlock()], [firefly.Split(), firefly.New(2)]):
        over = OverGrown(model, anatomy, names, kinds, torch.Generator().manual_seed(0), fold=False)
        assert_epsilon_zero_preserves(over, example, expected, 1e-11)
    blind = grow_blindly(model, in_double(ENTRY), anatomy=anatomy)
    assert_grown_is_overgrown(model, blind, example, 1e-11)


def check_growth(model: nn.Module, anatomy: firefly.Anatomy) -> None:
    """A growth does not raise the loss, its optimiser fits, and what it says of the model is true."""
    batches: list[Batch] = [((x,), y) for x, y in (draw(seed, 8) for seed in range(3))]
    optimizer = torch.optim.Adam(model.parameters(), lr=0.003)

    def train() -> None:
        for batch in batches:
            optimizer.zero_grad()
            loss(model, batch).backward()
            optimizer.step()

    train()
    growth = grow(model, ENTRY, batches=batches, anatomy=anatomy, optimizer=optimizer)
    assert growth.loss_after <= 1.01 * growth.loss_before + 1e-6
    assert_optimizer_fits(model, optimizer)
    after = firefly.trace(model, draw(9)[0])
    grown = {name: size for name, (_, size) in growth.widths.items()}
    if [w.name for w in after] == [w.name for w in anatomy]:  # of other sizes groups may be read in another way
        assert [w.size * w.block for w in after] == [grown.get(w.name, w.size) * w.block for w in anatomy]
    assert growth.parameters[1] == after.parameters() == sum(p.numel() for p in model.parameters())
    train()
    assert loss(model, batches[0]).isfinite()


@settings(
    max_examples=40,
    deadline=None,
    derandomize=True,
    database=None,
    suppress_health_check=list(HealthCheck),
    phases=[Phase.explicit, Phase.generate, Phase.shrink],
)
@given(net=nets)
def test_laws_hold_for_random_nets(net: tuple[list[tuple[str, int, str, str]], str, int]) -> None:
    torch.manual_seed(0)
    model = RandomNet(*net)
    anatomy = firefly.trace(model, draw(9)[0])
    assert anatomy["fc1"].pinned is None and anatomy["fc1"].size == net[2]
    assert anatomy["fc2"].pinned
    event(f"{len(anatomy.growable())} widths grow")
    assert_close(run(model, (draw(9)[0],)), run(copy.deepcopy(model), (draw(9)[0],)), 0.0)
    check_laws(model, anatomy)
    check_growth(model, anatomy)
