"""Net2Net: copies that change nothing without noise, of random neurons, in every width alike or anywhere."""

from collections import Counter

import pytest
import torch
from torch import Tensor, nn

import firefly
from firefly.baselines.net2net import net2net
from laws import assert_close, assert_optimizer_fits, grow, in_double, make_trained, run, trace_entry
from zoo import ZOO

SPLIT = [firefly.Split()]
MODELS = ["mlp", "vgg", "resnet", "mobilenet_v1", "embedding_mean", "vit"]


def widen(model: nn.Module, name: str, **options) -> firefly.Growth:
    options = {"method": net2net(), "neighborhood": SPLIT} | options
    return grow(model, in_double(ZOO[name]), **options)


def find_pairs(before: Tensor, after: Tensor) -> list[tuple[int, int]]:
    """(neuron, copy) along the first dimension, by the mean of the two."""
    pairs = []
    for copy in range(len(before), len(after)):
        means = (after[: len(before)] + after[copy]) / 2
        pairs.append((int((means - before).flatten(1).norm(dim=1).argmin()), copy))
    return pairs


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("name", MODELS)
def test_without_noise_the_function_is_the_same(name: str, training: bool) -> None:
    entry = in_double(ZOO[name])
    model, optimizer = make_trained(entry)
    model.train(training)
    before = {mode: run(model, entry.example(), mode) for mode in (True, False)}  # train mode moves the statistics
    growth = widen(model, name, method=net2net(noise=0), optimizer=optimizer)
    assert growth.neurons == int(0.3 * sum(size for size, _ in growth.widths.values()) + 1e-9)
    assert growth.output_change < 1e-12
    for mode in (False, True):
        assert_close(run(model, entry.example(), mode), before[mode], 1e-12)
    assert_optimizer_fits(model, optimizer)


def test_a_copy_is_a_copy() -> None:
    """Rows, norms and statistics are those of the original, the columns that read them are halved."""
    model, _ = make_trained(in_double(ZOO["vgg"]))
    model.eval()
    old = {name: value.clone() for name, value in model.state_dict().items()}
    widen(model, "vgg", method=net2net(noise=0), widths=["features.4"], budget=firefly.Neurons(5))
    new = model.state_dict()
    pairs = find_pairs(old["features.4.weight"], new["features.4.weight"])
    assert len({i for i, _ in pairs}) == 5  # nobody twice
    for i, copy in pairs:
        for name in ("4.weight", "4.bias", "5.weight", "5.bias", "5.running_mean", "5.running_var"):
            assert torch.equal(new[f"features.{name}"][copy], old[f"features.{name}"][i])
            assert torch.equal(new[f"features.{name}"][:12], old[f"features.{name}"])
        for reader in (i, copy):
            assert torch.equal(new["features.7.weight"][:, reader], old["features.7.weight"][:, i] / 2)


@pytest.mark.parametrize("name", ["vgg", "resnet"])
def test_noise_is_a_share_of_each_row(name: str) -> None:
    """In every tensor that makes a width the two rows differ by N(0, (noise·std of the row)²); biases do not."""
    for width in trace_entry(name).growable():
        model = in_double(ZOO[name]).make()
        old = {key: value.clone() for key, value in model.state_dict().items()}
        widen(model, name, widths=[width.name], budget=firefly.Neurons(fraction=1.0), method=net2net(noise=0.1))
        for tensor in width.makers:
            first, second = model.get_parameter(tensor).detach().chunk(2)
            if first.ndim == 1:
                assert torch.equal(first, old[tensor]) and torch.equal(second, old[tensor])
            else:
                assert torch.allclose((first + second) / 2, old[tensor])
                shares = (first - second).flatten(1) / old[tensor].flatten(1).std(1, correction=0, keepdim=True)
                assert shares.mean().abs() < 0.03 and 0.08 < shares.std() < 0.12, tensor


def test_noise_changes_little_and_breaks_the_tie() -> None:
    entry = in_double(ZOO["mlp_dropout"])  # smooth, without a kink
    changes = []
    for noise in (0.02, 0.04):
        model, _ = make_trained(entry)
        model.eval()
        changes.append(widen(model, "mlp_dropout", method=net2net(noise)).output_change)
    assert 0 < changes[0] < 0.01 and 3.9 < changes[1] / changes[0] < 4.1  # both ways at once: of second order
    for noise, tied in ((0.05, False), (0, True)):
        model = entry.make().eval()
        widen(model, "mlp_dropout", widths=["fc1"], budget=firefly.Neurons(fraction=1.0), method=net2net(noise))
        entry.loss(model, entry.batches()[0]).backward()
        first, second = model.fc1.weight.grad.chunk(2)
        assert torch.allclose(first, second, rtol=1e-4) == tied


def test_rows_of_one_weight_move_too() -> None:
    """A row of one weight has no standard deviation; it moves by a share of the neuron's own size."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(1, 6), nn.Tanh(), nn.Linear(6, 1))
    x = torch.randn(8, 1)
    before = model[0].weight.detach().clone()
    firefly.grow(
        model, lambda m, b: m(b).square().mean(), [x], example=x, neighborhood=SPLIT, budget=firefly.Neurons(6),
        method=net2net(0.1),
    )  # fmt: skip
    apart = (model[0].weight[:6] - model[0].weight[6:]).abs() / before.abs()
    assert apart.min() > 0 and apart.max() < 1


def test_everywhere_takes_the_same_share_and_anywhere_does_not() -> None:
    for name in ("vgg", "resnet"):
        growth = widen(in_double(ZOO[name]).make(), name)
        for before, after in growth.widths.values():
            assert abs(after - before - 0.3 * before) <= 1
    counts = [
        widen(in_double(ZOO["vgg"]).make(), "vgg", method=net2net(everywhere=False), seed=seed) for seed in range(6)
    ]
    assert {growth.neurons for growth in counts} == {9}
    assert len({tuple(after for _, after in growth.widths.values()) for growth in counts}) > 2


def who_grew(seed: int) -> tuple[str, int]:
    model = ZOO["mlp"].make()
    old = {name: value.clone() for name, value in model.state_dict().items()}
    growth = grow(
        model, ZOO["mlp"], neighborhood=SPLIT, budget=firefly.Neurons(1), method=net2net(0, everywhere=False), seed=seed
    )  # fmt: skip
    (width,) = growth.added
    ((i, _),) = find_pairs(old[f"{width}.weight"], model.state_dict()[f"{width}.weight"])
    return width, i


def test_every_neuron_has_its_chance() -> None:
    seen = Counter(who_grew(seed) for seed in range(112))  # 4 expected for each of 28
    assert len(seen) > 20 and max(seen.values()) < 14
    assert 40 <= sum(count for (width, _), count in seen.items() if width == "0") <= 88  # 64 expected
    assert who_grew(3) == who_grew(3)


def test_a_seed_decides_everything_and_the_data_nothing() -> None:
    entry = ZOO["vgg"]
    models = [entry.make().eval() for _ in range(3)]
    for model, seed, sign in zip(models, (3, 3, 4), (1, -1, 1)):
        grow(
            model,
            entry,
            neighborhood=SPLIT,
            method=net2net(),
            seed=seed,
            loss=lambda m, b, s=sign: s * entry.loss(m, b),
        )
    assert all(map(torch.equal, models[0].state_dict().values(), models[1].state_dict().values()))
    assert not torch.equal(models[0].features[0].weight, models[2].features[0].weight)


def test_what_is_left_of_the_budget_is_said() -> None:
    """A neuron of the last width costs too much, both of the first have been taken: a third copy would fit."""
    model = nn.Sequential(nn.Linear(1, 2), nn.Tanh(), nn.Linear(2, 4), nn.Tanh(), nn.Linear(4, 200))
    x = torch.randn(8, 1)
    growth = firefly.grow(
        model, lambda m, b: m(b).square().mean(), [x], example=x, neighborhood=SPLIT, budget=firefly.Parameters(100),
        method=net2net(everywhere=False),
    )  # fmt: skip
    assert growth.widths == {"0": (2, 4), "2": (4, 4)}
    assert growth.notes == ("some budget is left: the neurons that would fit have been taken already",)


def test_what_it_cannot_do_is_said() -> None:
    entry = ZOO["mlp"]
    model = entry.make()
    with pytest.raises(firefly.FireflyError, match="each of its 16 once at most: grow by less and more often"):
        grow(model, entry, neighborhood=SPLIT, budget=firefly.Neurons(30), method=net2net())
    with pytest.raises(firefly.FireflyError, match="more than the 28 candidates"):
        grow(model, entry, neighborhood=SPLIT, budget=firefly.Neurons(30), method=net2net(everywhere=False))
    for neighborhood in ([firefly.New(4)], [firefly.Split(), firefly.New(4)]):
        with pytest.raises(firefly.FireflyError, match=r"neighborhood=\[firefly.Split\(\)\]"):
            grow(model, entry, neighborhood=neighborhood, method=net2net())
    for noise in (-0.1, float("nan"), "much"):
        with pytest.raises(firefly.FireflyError, match="noise="):
            net2net(noise)
    assert model[0].weight.shape == (16, 8)
