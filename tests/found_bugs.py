"""Properties that do not hold yet, each with its smallest reproduction; pytest does not collect this file by itself.

Run `pytest tests/found_bugs.py`. A test that passes belongs into the test file of its room.
"""

import copy
import signal
from collections import defaultdict
from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import firefly
from firefly.descent import Method
from laws import (
    assert_epsilon_zero_preserves,
    assert_grown_is_overgrown,
    assert_untouched,
    count_flops,
    grow_blindly,
    in_double,
    run,
    snapshot,
    train,
)
from laws import grow as grow_entry
from zoo import ZOO

X = torch.randn(16, 8, generator=torch.Generator().manual_seed(0))
Y = torch.randint(4, (16,), generator=torch.Generator().manual_seed(1))
BATCH = ((X,), Y)


class Stop(BaseException):
    pass


def entropy(model: nn.Module, batch: Any) -> Tensor:
    return F.cross_entropy(model(*batch[0]), batch[1])


def grow(model: nn.Module, **options: Any) -> firefly.Growth:
    return firefly.grow(model, options.pop("loss", entropy), [BATCH], **{"example": X, "steps": 3, **options})


# ---- trace -----------------------------------------------------------------------------------------------------------


def test_trace_leaves_the_random_state_alone() -> None:
    model: Any = ZOO["mlp"].make()
    torch.manual_seed(5)
    before = torch.get_rng_state()
    firefly.trace(model, X)
    assert torch.equal(before, torch.get_rng_state())


def test_grower_leaves_the_random_state_alone() -> None:
    model: Any = ZOO["mlp"].make()
    torch.manual_seed(5)
    before = torch.get_rng_state()
    firefly.Firefly(model, X, steps=2).preview(entropy, [BATCH])
    assert torch.equal(before, torch.get_rng_state())


@pytest.mark.parametrize("name", ["unused_layer", "tied_linears", "instance_norm", "gpt"])
def test_flops_are_counted_once(name: str) -> None:
    """A parameter that nothing uses in this mode makes trace export twice, and both graphs are counted."""
    assert firefly.trace(ZOO[name].make(), ZOO[name].example()).flops() == count_flops(ZOO[name])


def test_flops_are_the_same_in_both_modes() -> None:
    """In eval mode no one uses num_batches_tracked: exported twice, counted twice."""
    entry = ZOO["vgg"]
    model = entry.make()
    training = firefly.trace(model.train(), entry.example()).flops()
    assert firefly.trace(model.eval(), entry.example()).flops() == training


class Middle(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.c = nn.Linear(8, 16), nn.Linear(16, 12), nn.Linear(12, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.c(torch.relu(self.b(self.middle(self.a(x)))))

    def middle(self, x: Tensor) -> Tensor:
        return x


def test_sort_pins() -> None:
    """aten.sort returns two tensors; its rule returns one, and trace raises TypeError."""

    class Sorted(Middle):
        def middle(self, x: Tensor) -> Tensor:
            return x.sort(dim=1).values

    assert firefly.trace(Sorted(), X)["a"].pinned


def test_changing_the_precision_does_not_pin() -> None:
    """x.to(dtype) leaves an aten._assert_tensor_metadata in the graph, for which there is no rule."""

    class Cast(Middle):
        def middle(self, x: Tensor) -> Tensor:
            return x.double().tanh().to(torch.float32)

    assert firefly.trace(Cast(), X)["a"].pinned is None


def test_a_mask_stays_a_mask() -> None:
    """A buffer that is multiplied into a weight (pruning, autoregressive masks) gets a δ of its own."""

    class Masked(nn.Module):
        mask: Tensor

        def __init__(self) -> None:
            super().__init__()
            self.fc, self.head = nn.Linear(8, 16), nn.Linear(16, 4)
            self.register_buffer("mask", (torch.rand(16, 8) > 0.5).float())

        def forward(self, x: Tensor) -> Tensor:
            return self.head(torch.relu(F.linear(x, self.fc.weight * self.mask, self.fc.bias)))

    torch.manual_seed(0)
    model = Masked()
    if firefly.trace(model, X).growable():
        grow(model)
    assert set(model.mask.unique().tolist()) <= {0.0, 1.0}


def test_an_example_of_one_image_will_do() -> None:
    """A batch norm in train mode refuses a batch of one; trace could use eval mode, or say so."""
    model = nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 4))
    assert firefly.trace(model, X[:1])["0"].pinned is None


def test_parameters_in_a_list_go_by_their_own_names() -> None:
    class Listed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.ws = nn.ParameterList([torch.randn(8, 16), torch.randn(16, 12), torch.randn(12, 4)])

        def forward(self, x: Tensor) -> Tensor:
            return torch.relu(torch.relu(x @ self.ws[0]) @ self.ws[1]) @ self.ws[2]

    assert list(firefly.trace(Listed(), X).widths) == ["ws.0", "ws.1", "ws.2"]


def test_names_of_widths_survive_a_growth() -> None:
    """The second width of a layer is named after its place, 'a[8:16]', which is another one after growth."""

    class Halves(Middle):
        def middle(self, x: Tensor) -> Tensor:
            return torch.cat([x[:, 8:], x[:, :8]], 1)

    torch.manual_seed(0)
    model = Halves()
    before = firefly.trace(model, X)
    grow_blindly(model, ZOO["mlp"], example=X, anatomy=before)
    assert list(firefly.trace(model, X).widths) == list(before.widths)


def test_the_proof_is_not_blind() -> None:
    """A width is proven on outputs that do not depend on it (a dead relu): what must not grow is offered."""

    class Literal(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.one, self.fc, self.head = nn.Linear(8, 7), nn.Linear(7, 1), nn.Linear(1, 4)
            nn.init.constant_(self.fc.bias, -10.0)

        def forward(self, x: Tensor) -> Tensor:
            x = self.one(x)
            return self.head(torch.relu(self.fc(torch.cat([x[:, 2:], torch.tanh(x[:, :2])], 1))))

    torch.manual_seed(0)
    assert firefly.trace(Literal(), X)["one"].pinned


def test_flops_of_a_registered_layer_are_counted() -> None:
    class Own(nn.Linear):
        pass

    model = nn.Sequential(Own(8, 16), nn.ReLU(), Own(16, 4))
    plain = firefly.trace(model, X).flops()
    firefly.register(Own, makes={"weight": 0, "bias": 0}, reads={"weight": 1}, sizes={"out_features": "makes"})
    assert firefly.trace(model, X).flops() == plain == 2 * (8 * 16 + 16 * 4)


# ---- the over-grown network ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["mlp", "module_twice", "resnext"])
def test_delta_is_halved_where_it_reads_a_split_neuron(name: str) -> None:
    """Two neighbouring widths split: the new directions of the second read both copies of the first in full."""
    entry = in_double(ZOO[name])
    model = entry.make().eval()
    blind = grow_blindly(model, entry, neighborhood=[firefly.Split()])
    assert_grown_is_overgrown(model, blind, entry.example(), 1e-12)


def test_measuring_newborn_statistics_leaves_other_norms_alone() -> None:
    """measure_births writes the running statistics of norms that do not grow, and keeps what it wrote."""
    entry = in_double(ZOO["vgg"])
    model = entry.make().eval()
    expected = run(model, entry.example())
    blind = grow_blindly(model, entry, widths=["features.0"], preview=True, neighborhood=[firefly.New(2)])
    assert_epsilon_zero_preserves(blind.over, entry.example(), expected, 1e-12)


def test_newborn_statistics_of_an_instance_norm_are_measured() -> None:
    """momentum = None means "a plain average" to batch norms, and "never" to instance norms."""
    entry = ZOO["instance_norm"]
    model = entry.make().eval()
    assert grow_entry(model, entry, neighborhood=[firefly.New(6)], widths=["6"]).neurons > 0
    assert (model.get_buffer("7.running_mean")[10:] != 0).all()


# ---- the choice ------------------------------------------------------------------------------------------------------


def test_ranking_by_magnitude_takes_no_kind_that_was_not_asked_for() -> None:
    growth = grow(ZOO["mlp"].make(), neighborhood=[firefly.New(2)], rank="magnitude", budget=firefly.Neurons(10))
    assert sum(kinds["split"] for kinds in growth.added.values()) == 0


def test_candidates_are_those_of_the_neighborhood() -> None:
    assert grow(ZOO["mlp"].make(), neighborhood=[firefly.New(3)], widths=["0"]).candidates == 3


def test_a_budget_that_is_used_up_needs_no_excuse() -> None:
    method = Method(score=lambda over, *_: {n: (e > 0).float() for n, e in over.epsilon.items()}, trust=False)
    options = {"neighborhood": [firefly.New(3)], "widths": ["0"], "budget": firefly.Neurons(3), "method": method}
    growth = grow(ZOO["mlp"].make(), **options)
    assert growth.neurons == 3 and not growth.notes


def test_a_budget_too_small_for_any_neuron_is_said() -> None:
    growth = grow(ZOO["mlp"].make(), budget=firefly.Parameters(3))
    assert growth.neurons == 0 and growth.notes


# ---- the commit ------------------------------------------------------------------------------------------------------


def test_marks_on_parameters_are_kept() -> None:
    model: Any = ZOO["mlp"].make()
    model[0].weight.no_decay = True
    grow(model, widths=["0"])
    assert getattr(model[0].weight, "no_decay", False)


def test_hooks_on_parameters_are_kept_or_refused() -> None:
    """Gradient clipping or a step per parameter hangs on hooks, which the new parameter does not have."""
    model: Any = ZOO["mlp"].make()
    seen: list[Any] = []
    for parameter in model.parameters():
        parameter.register_post_accumulate_grad_hook(lambda p: seen.append(p.shape))
    try:
        grow(model)
    except firefly.FireflyError:
        return
    entropy(model, BATCH).backward()
    assert len(seen) == 6


def test_channels_last_of_volumes_is_kept() -> None:
    entry = ZOO["conv3d"]
    model: Any = entry.make().to(memory_format=torch.channels_last_3d)  # type: ignore[call-overload]
    grow_entry(model, entry)
    assert model.get_parameter("4.weight").is_contiguous(memory_format=torch.channels_last_3d)


class Breaking(defaultdict[Any, Any]):
    """An optimiser's state that cannot be written: the commit fails at its end."""

    armed = False

    def __setitem__(self, key: Any, value: Any) -> None:
        if self.armed:
            self.armed = False
            raise Stop
        super().__setitem__(key, value)


def test_a_failed_commit_leaves_the_average_as_it_was() -> None:
    """The models in `also` are committed first, and stay grown when the commit of the model fails."""
    entry = ZOO["mlp"]
    model = entry.make()
    optimizer: Any = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    train(model, entry, optimizer, 1)
    average = torch.optim.swa_utils.AveragedModel(model)
    optimizer.state = Breaking(dict, optimizer.state)
    before, optimizer.state.armed = snapshot(average), True
    with pytest.raises(Stop):
        grow(model, also=[average], optimizer=optimizer)
    assert_untouched(before, snapshot(average))


def test_an_average_of_another_architecture_is_refused_with_words() -> None:
    with pytest.raises(firefly.FireflyError):
        grow(ZOO["mlp"].make(), also=[nn.Sequential(nn.Linear(8, 5))])


def test_what_was_frozen_since_does_not_grow() -> None:
    """Firefly keeps its anatomy, which still offers a layer that the user froze in the meantime."""
    model: Any = ZOO["mlp"].make()
    grower = firefly.Firefly(model, X, steps=3)
    assert grower.anatomy["0"].pinned is None
    model[0].requires_grad_(False)
    assert grower.anatomy["0"].pinned


# ---- the optimiser ---------------------------------------------------------------------------------------------------

STANDING: dict[str, Any] = {
    "rmsprop": lambda p: torch.optim.RMSprop(p, lr=0.0, momentum=0.9, eps=1e-12),  # its momentum is normalised already
    "adadelta": lambda p: torch.optim.Adadelta(p, lr=0.0, eps=1e-12),  # so are its deltas
    "adamax": lambda p: torch.optim.Adamax(p, lr=0.0),  # exp_inf is like the gradient
    "asgd": lambda p: torch.optim.ASGD(p, lr=0.0, t0=0.0),  # ax is like the parameter
}


def test_lbfgs_goes_on_or_is_refused() -> None:
    """Its flat history and its cached number of parameters do not fit the grown model."""
    model: Any = ZOO["mlp"].make()
    optimizer = torch.optim.LBFGS(model.parameters(), lr=0.1)

    def closure() -> Tensor:
        optimizer.zero_grad()
        value = entropy(model, BATCH)
        value.backward()
        return value

    optimizer.step(closure)
    try:
        grow(model, optimizer=optimizer)
    except firefly.FireflyError:
        return
    optimizer.step(closure)


# ---- batches ---------------------------------------------------------------------------------------------------------


def test_batches_that_can_be_read_once_do_not_hang() -> None:
    class Once:
        def __init__(self) -> None:
            self.left = iter([BATCH] * 3)

        def __iter__(self) -> Iterator[Any]:
            yield from self.left

    def give_up(*_: Any) -> None:
        raise TimeoutError

    previous = signal.signal(signal.SIGALRM, give_up)
    signal.alarm(10)
    try:
        firefly.grow(ZOO["mlp"].make(), entropy, Once(), example=X, steps=10)
    except firefly.FireflyError:
        pass
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, previous)


@pytest.mark.parametrize("name", list(STANDING))
def test_state_is_the_one_that_the_grown_network_would_have(name: str) -> None:
    """As in test_optimizer.py: exact copies share their parent's gradient, half each."""
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
            torch.testing.assert_close(carried[parameter_name][key], value, rtol=1e-5, atol=1e-16, msg=key)
