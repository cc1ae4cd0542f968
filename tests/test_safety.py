"""A growth is deterministic, touches nothing it should not, and one that fails leaves everything as it was."""

import copy
import json
import math
import random
import signal
import sys
from collections import UserDict, defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, cast

import numpy
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import firefly
from firefly.stages.batches import hold_batches
from laws import (
    SMALL,
    assert_grown_is_overgrown,
    assert_optimizer_fits,
    assert_untouched,
    equal_trees,
    grow,
    grow_blindly,
    in_double,
    make_trained,
    snapshot,
    trace_entry,
    train,
)
from zoo import ZOO, Entry

sys.path.append(str(Path(__file__).parents[1] / "benchmarks"))

from attacks.interrupts import Aim, interrupt

MODELS = ["mlp_dropout", "vgg", "gpt", "instance_norm"]


def make_ready(name: str) -> tuple[Entry, Any, Any]:
    """A model amid its training: with gradients, a state, mixed modes and a random state of its own."""
    entry = ZOO[name]
    model, optimizer = make_trained(entry, steps=3)
    optimizer.zero_grad()
    entry.loss(model, entry.batches()[0]).backward()
    list(model.modules())[-1].eval()
    trace_entry(name)
    torch.manual_seed(77)
    return entry, model, optimizer


# ---- determinism -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", MODELS)
def test_same_seed_same_growth(name: str) -> None:
    states, growths = [], []
    for seed, noise in ((3, 0), (3, 1), (4, 0)):
        entry, model, optimizer = make_ready(name)
        torch.manual_seed(noise)
        growths.append(grow(model, entry, optimizer=optimizer, seed=seed).to_dict() | {"seconds": None})
        states.append({"model": model.state_dict(), "optimizer": optimizer.state_dict()})
    assert growths[0] == growths[1] and equal_trees(states[0], states[1])
    assert growths[0] != growths[2]


@pytest.mark.parametrize("name", MODELS)
def test_growth_leaves_modes_and_random_state_alone(name: str) -> None:
    entry, model, optimizer = make_ready(name)
    modes, random = [module.training for module in model.modules()], torch.get_rng_state()
    untouched = {n: p.grad.clone() for n, p in model.named_parameters() if p.grad is not None}
    growth = grow(model, entry, optimizer=optimizer)
    assert growth.neurons > 0
    assert [module.training for module in model.modules()] == modes
    assert torch.equal(torch.get_rng_state(), random)
    for path, parameter in model.named_parameters():
        before = untouched.get(path)
        if before is None or before.shape != parameter.shape:  # what grew has gradients that grew along
            assert parameter.grad is None or parameter.grad.shape == parameter.shape, path
        else:
            assert parameter.grad is not None and torch.equal(parameter.grad, before), path


# ---- preview ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", MODELS)
def test_preview_changes_nothing_and_predicts_the_growth(name: str) -> None:
    entry, model, optimizer = make_ready(name)
    grower = firefly.Firefly(model, entry.example(), neighborhood=SMALL, budget=firefly.Neurons(6), steps=5)
    before = snapshot(model, optimizer)
    preview = grower.preview(entry.loss, entry.batches())
    assert_untouched(before, snapshot(model, optimizer))
    assert grower.history == []
    growth = grower.grow(entry.loss, entry.batches(), optimizer)
    assert preview.added == growth.added and preview.widths == growth.widths
    assert preview.loss_after == growth.loss_after and preview.gains == growth.gains
    assert [w.size for w in firefly.trace(model, entry.example())] != [w.size for w in trace_entry(name)]


# ---- failures --------------------------------------------------------------------------------------------------------


class Stop(BaseException):
    """Something that no `except Exception` catches."""


def counted(entry: Entry, act: Callable[[int, Tensor], Tensor]) -> tuple[Callable[..., Tensor], list[int]]:
    """The entry's loss with `act(call, loss)` behind it, and the number of calls."""
    calls = [0]

    def loss(model: nn.Module, batch: Any) -> Tensor:
        value = entry.loss(model, batch)
        calls[0] += 1
        return act(calls[0], value)

    return loss, calls


@pytest.mark.parametrize("error", [KeyboardInterrupt, ValueError, Stop])
@pytest.mark.parametrize("name", MODELS)
def test_an_error_at_any_call_of_the_loss_leaves_everything_as_it_was(name: str, error: type[BaseException]) -> None:
    entry, model, optimizer = make_ready(name)
    batches = entry.batches()[:2]
    loss, calls = counted(entry, lambda call, value: value)
    grow(copy.deepcopy(model), entry, loss=loss, batches=batches)
    total = calls[0]
    before = snapshot(model, optimizer)
    places = sorted({1, 2, 3, 5, total // 3, total // 2, 2 * total // 3, total - 2, total - 1, total})

    def fail_at(place: int) -> Callable[[int, Tensor], Tensor]:
        def act(call: int, value: Tensor) -> Tensor:
            if call == place:
                raise error("as planned")
            return value

        return act

    for place in places:
        loss, calls = counted(entry, fail_at(place))
        with pytest.raises(error):
            grow(model, entry, loss=loss, batches=batches, optimizer=optimizer)
        assert calls[0] == place
        assert_untouched(before, snapshot(model, optimizer))
    assert grow(model, entry, batches=batches, optimizer=optimizer).neurons > 0


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_a_loss_that_is_not_finite_is_an_error_or_chooses_nothing(value: float) -> None:
    entry, model, optimizer = make_ready("vgg")
    batches = entry.batches()[:2]
    loss, calls = counted(entry, lambda call, loss: loss)
    grow(copy.deepcopy(model), entry, loss=loss, batches=batches)
    before = snapshot(model, optimizer)
    for place in (1, 5, calls[0] // 2):
        loss, _ = counted(entry, lambda call, loss, place=place: loss * value if call >= place else loss)  # type: ignore[misc]
        try:
            growth = grow(model, entry, loss=loss, batches=batches, optimizer=optimizer)
        except firefly.FireflyError as problem:
            assert "inf" in str(problem) or "nan" in str(problem)
        else:
            assert growth.neurons == 0 and growth.notes
        assert_untouched(before, snapshot(model, optimizer))


class Breaking(defaultdict[Any, Any]):
    """An optimiser's state in which the n-th write from now on fails."""

    left = 0

    def __setitem__(self, key: Any, value: Any) -> None:
        self.left -= 1
        if self.left == 0:
            raise Stop
        super().__setitem__(key, value)


@pytest.mark.parametrize("place", [1, 2, 4])
@pytest.mark.parametrize("name", ["vgg", "gpt"])
def test_an_error_inside_the_commit_leaves_everything_as_it_was(name: str, place: int) -> None:
    entry, model, optimizer = make_ready(name)
    optimizer.state = Breaking(dict, optimizer.state)
    before = snapshot(model, optimizer)
    optimizer.state.left = place
    with pytest.raises(Stop):
        grow(model, entry, optimizer=optimizer)
    assert_untouched(before, snapshot(model, optimizer))
    assert grow(model, entry, optimizer=optimizer).neurons > 0


def test_a_failed_commit_leaves_the_average_as_it_was_too() -> None:
    entry, model, optimizer = make_ready("vgg")
    average = torch.optim.swa_utils.AveragedModel(model)
    optimizer.state = Breaking(dict, optimizer.state)
    before = snapshot(model, optimizer), snapshot(average)
    optimizer.state.left = 2
    with pytest.raises(Stop):
        grow(model, entry, also=[average], optimizer=optimizer)
    assert_untouched(before[0], snapshot(model, optimizer))
    assert_untouched(before[1], snapshot(average))


def test_an_attribute_that_cannot_be_set_stops_the_commit_and_all_is_restored() -> None:
    """The head's in_features is among the last attributes to be set, when most of the model has grown."""
    entry, model, optimizer = make_ready("vgg")

    class Stubborn(nn.Linear):
        sets = -1

        def __setattr__(self, name: str, value: Any) -> None:
            if name == "in_features":
                Stubborn.sets -= 1
                if Stubborn.sets == 0:
                    raise Stop
            super().__setattr__(name, value)

    model.get_submodule("head").__class__ = Stubborn
    twin = copy.deepcopy(model)
    Stubborn.sets = 0
    assert grow(twin, entry, widths=["features.7"]).neurons > 0
    before, last = snapshot(model, optimizer), -Stubborn.sets
    Stubborn.sets = last
    with pytest.raises(Stop):
        grow(model, entry, optimizer=optimizer, widths=["features.7"])
    assert_untouched(before, snapshot(model, optimizer))


def test_an_interrupt_about_the_commit_leaves_a_growth_undone_or_written_down() -> None:
    entry, files = (
        ZOO["mlp"],
        ("/firefly/descent.py", "/firefly/stages/commit.py", "/firefly/surgery/", "/contextlib.py"),
    )

    def make() -> tuple[nn.Module, Any, firefly.Firefly]:
        model, optimizer = make_trained(entry, steps=1)
        return model, optimizer, firefly.Firefly(model, entry.example(), neighborhood=SMALL, steps=2)

    lines = []
    for _ in range(2):  # torch imports things when it is first used
        (_, optimizer, grower), aim = make(), Aim(files=files)
        assert interrupt(lambda: grower.grow(entry.loss, entry.batches(), optimizer), aim) == "done"  # noqa: B023
        lines.append(aim.seen)
    undone = 0
    for at in range(lines[-1] - 1000, lines[-1], 50):
        model, optimizer, grower = make()
        before = snapshot(model, optimizer)
        assert interrupt(lambda: grower.grow(entry.loss, entry.batches(), optimizer), Aim(at, files)) == "interrupted"  # noqa: B023
        assert_optimizer_fits(model, optimizer)
        sizes = [width.size for width in grower.anatomy]
        assert sizes == [width.size for width in firefly.trace(model, entry.example())]
        if not grower.history:
            undone += 1
            assert_untouched(before, snapshot(model, optimizer))
        else:
            assert grower.history[0]["parameters"][1] == sum(p.numel() for p in model.parameters())
    assert 0 < undone < 20


# ---- errors for people -----------------------------------------------------------------------------------------------

WRONG: dict[str, tuple[dict[str, Any], str]] = {
    "vector loss": ({"loss": lambda model, batch: model(*batch[0])}, r"scalar tensor.*shape \(16, 4\)"),
    "float loss": ({"loss": lambda model, batch: 0.5}, "scalar tensor.*float"),
    "no loss": ({"loss": 3}, "function.*int"),
    "none for a loss": ({"loss": None}, "function.*NoneType"),
    "a criterion": ({"loss": nn.CrossEntropyLoss()}, "function.*CrossEntropyLoss"),
    "complex loss": ({"loss": lambda model, batch: model(*batch[0]).sum() * 1j}, r"scalar tensor.*torch\.complex64"),
    "nan loss": ({"loss": lambda model, batch: model(*batch[0]).sum() * float("nan")}, "nan.*finite"),
    "no batches": ({"batches": []}, "no batches"),
    "an empty generator": ({"batches": iter(())}, "no batches"),
    "batches of the wrong kind": ({"batches": 7}, "iterable.*int"),
    "unknown width": ({"widths": ["fc7"]}, "no width 'fc7'.*0, 2, 4"),
    "pinned width": ({"widths": ["4"]}, "'4' cannot grow.*output"),
    "a number of widths": ({"widths": 3}, "widths=3: give names"),
    "numbers of widths": ({"widths": [0, 2]}, r"widths=\[0, 2\]: give names"),
    "another anatomy": ({"anatomy": trace_entry("vgg")}, "anatomy is of another model"),
    "no bystanders": ({"bystanders": None}, r"bystanders holds None.*\[discriminator\]"),
    "nobody locked": ({"neighborhood": firefly.Unlock(locked={})}, r"no candidate of unlock.*firefly\.New"),
    "no width left": ({"widths": lambda width: False}, "nothing can grow"),
    "empty neighborhood": ({"neighborhood": []}, "at most once"),
    "two of a kind": ({"neighborhood": [firefly.New(2), firefly.New(3)]}, "at most once"),
    "a kind of its own": ({"neighborhood": ["split"]}, "'split'.*firefly.Split"),
    "no budget": ({"budget": 12}, "budget=12.*firefly.Neurons"),
    "no steps": ({"steps": 0}, "steps=0"),
    "no rate": ({"lr": 0.0}, r"lr=0\.0"),
    "rank": ({"rank": "random"}, "rank='random'.*'decrease' or 'magnitude'"),
    "path": ({"path": "long"}, "path='long'.*'joint' or 'single'"),
    "no optimizer": ({"optimizer": "adam"}, "optimizer.*str"),
    "another optimizer": ({"optimizer": torch.optim.SGD(nn.Linear(2, 2).parameters())}, "none of this model's"),
}


@pytest.mark.parametrize("what", list(WRONG))
def test_errors_name_the_thing_and_leave_the_model(what: str) -> None:
    entry, model, optimizer = make_ready("mlp")
    options, words = WRONG[what]
    before = snapshot(model, optimizer)
    with pytest.raises(firefly.FireflyError, match=words):
        grow(model, entry, **{"optimizer": optimizer, **options})
    assert_untouched(before, snapshot(model, optimizer))


def test_more_errors() -> None:
    lone, x = torch.nn.Linear(4, 3), torch.randn(2, 4)
    with pytest.raises(firefly.FireflyError, match=r"nothing can grow.*output of the model"):
        firefly.grow(lone, lambda model, batch: model(batch).square().mean(), [x], example=x)
    for given in ((3, float("nan")), (3, -0.1), (3, 0.1, 0), (3, 0.1, math.inf)):
        with pytest.raises(firefly.FireflyError, match=r"New\("):
            firefly.New(*given)
    for epsilon in (0, True):
        with pytest.raises(firefly.FireflyError, match=r"Split\("):
            firefly.Split(epsilon)
    for make in (firefly.Layers, firefly.Multiples):
        with pytest.raises(firefly.FireflyError, match=r"\(True\): needs a whole number"):
            make(True)
    with pytest.raises(firefly.FireflyError, match=r"Unlock\(locked=\[1\]\): give \{width"):
        firefly.Unlock(locked=cast(Any, [1]))
    with pytest.raises(firefly.FireflyError, match="has no module 3"):
        firefly.deepen(nn.Sequential(lone, nn.ReLU(), nn.Linear(3, 2)), x, sites=cast(Any, 3))
    with pytest.raises(firefly.FireflyError, match=r"shape \(0, 4\)"):
        firefly.trace(lone, x[:0])
    for count in (0, -1, 2.5):
        with pytest.raises(firefly.FireflyError, match="whole number"):
            firefly.New(cast(Any, count))
    with pytest.raises(firefly.FireflyError, match="neighborhood"):
        firefly.Firefly(ZOO["mlp"].make(), ZOO["mlp"].example(), neighborhood=[])
    with pytest.raises(firefly.FireflyError, match=r"nn\.Module"):
        firefly.Firefly(cast(Any, "mlp"), ZOO["mlp"].example())
    with pytest.raises(firefly.FireflyError, match="widths=3: give names"):
        firefly.Firefly(ZOO["mlp"].make(), ZOO["mlp"].example(), widths=cast(Any, 3))
    for state in ({}, 3):
        with pytest.raises(firefly.FireflyError, match="no state of a grower"):
            firefly.Firefly(ZOO["mlp"].make(), ZOO["mlp"].example()).load_state_dict(cast(Any, state))


def test_a_grower_remembers_widths_that_can_be_named_only_once() -> None:
    entry, model, _ = make_ready("mlp")
    grower = firefly.Firefly(model, entry.example(), widths=(name for name in ("0", "2")), steps=2)
    assert [list(grower.grow(entry.loss, entry.batches()).widths) for _ in range(2)] == [["0", "2"]] * 2


# ---- batches ---------------------------------------------------------------------------------------------------------


def test_batches_of_every_kind_give_the_same_growth() -> None:
    entry = ZOO["mlp"]

    def generate() -> Iterator[Any]:
        yield from entry.batches()

    class Loader:
        def __iter__(self) -> Iterator[Any]:
            return generate()

    kinds: list[Any] = [entry.batches(), tuple(entry.batches()), generate(), iter(entry.batches()), Loader()]
    growths = [grow(entry.make(), entry, batches=batches, steps=9).to_dict() | {"seconds": 0} for batches in kinds]
    assert all(growth == growths[0] for growth in growths)


def test_chance_in_the_loss_is_repeated_and_left_alone_whosever_it_is() -> None:
    """As a mixup draws it: by NumPy or by Python."""
    entry = ZOO["mlp"]

    def loss(model: nn.Module, batch: Any) -> Tensor:
        share = numpy.random.beta(1, 1) * random.random()  # noqa: NPY002
        return share * entry.loss(model, batch) + (1 - share) * model(*batch[0]).abs().mean()

    def state() -> Any:
        _, key, place, *_ = numpy.random.get_state()  # noqa: NPY002
        return random.getstate(), key.tolist(), place

    growths = []
    for _ in range(2):
        before = random.random(), numpy.random.random(), state()  # noqa: NPY002
        growths.append(grow(entry.make(), entry, loss=loss, steps=9).to_dict() | {"seconds": 0})
        assert state() == before[2]
    assert growths[0] == growths[1]


@pytest.mark.parametrize("kind", [dict, UserDict])
def test_a_loss_may_use_up_its_batch(kind: Any) -> None:
    """Whoever trains an epoch shows each batch once, so that it may pop the labels and scale the images in place."""
    entry = ZOO["mlp"]
    batches = [kind(x=inputs[0].clone(), y=labels) for inputs, labels in entry.batches()]

    def greedy(model: nn.Module, batch: Any) -> Tensor:
        labels, x = batch.pop("y"), batch["x"]
        return F.cross_entropy(model(x.mul_(2)), labels)

    def gentle(model: nn.Module, batch: Any) -> Tensor:
        return F.cross_entropy(model(batch["x"] * 2), batch["y"])

    growths = [grow(entry.make(), entry, batches=batches, loss=loss, steps=9) for loss in (gentle, greedy)]
    first, second = (growth.to_dict() | {"seconds": 0} for growth in growths)
    assert first == second
    assert all(torch.equal(batch["x"], inputs[0]) for batch, (inputs, _) in zip(batches, entry.batches()))


def test_data_loader_is_shuffled_by_the_seed_alone() -> None:
    entry = ZOO["mlp"]
    inputs = torch.cat([batch[0][0] for batch in entry.batches()])
    labels = torch.cat([batch[1] for batch in entry.batches()])
    data = torch.utils.data.TensorDataset(inputs, labels)

    def loss(model: nn.Module, batch: Any) -> Tensor:
        return nn.functional.cross_entropy(model(batch[0]), batch[1])

    found = []
    for noise in (1, 2):
        model = entry.make()
        torch.manual_seed(noise)
        random = torch.get_rng_state()
        loader = torch.utils.data.DataLoader(data, batch_size=8, shuffle=True)
        found.append(grow(model, entry, loss=loss, batches=loader, evaluate_on=4).to_dict() | {"seconds": 0})
        assert torch.equal(torch.get_rng_state(), random)
    assert found[0] == found[1]


def test_an_endless_generator_is_read_for_as_many_steps_as_there_are() -> None:
    entry, read = ZOO["mlp"], [0]

    def generate() -> Iterator[Any]:
        while True:
            read[0] += 1
            yield entry.batches()[read[0] % 4]

    assert grow(entry.make(), entry, batches=generate(), steps=6, evaluate_on=2).neurons > 0
    assert read[0] <= 8


class Shuffled:
    """A loader that gives its batches in another order every time."""

    def __init__(self, count: int) -> None:
        self.count, self.random = count, torch.Generator().manual_seed(0)

    def __iter__(self) -> Iterator[int]:
        yield from torch.randperm(self.count, generator=self.random).tolist()


@pytest.mark.parametrize("count", [2, 3, 7, 8, 20])
@pytest.mark.parametrize("kind", [range, Shuffled, lambda count: iter(range(count))])
def test_step_one_does_not_see_the_batches_of_the_scores(kind: Any, count: int) -> None:
    batches, held = hold_batches(kind(count), steps=100, count=4)
    assert len(held) == min(4, count // 2)
    assert sorted([*held, *batches]) == list(range(count))
    again = list(batches)
    assert len(again) == count - len(held)
    assert not {*held} & {*again}


def test_a_single_batch_serves_for_both() -> None:
    batches, held = hold_batches([5], steps=3, count=8)
    assert list(batches) == held == [5]


def test_batches_that_can_be_read_only_once_do_not_hang() -> None:
    """An iterable whose second reading is empty: what the first one brought serves again."""
    entry = ZOO["mlp"]

    class Once:
        def __init__(self) -> None:
            self.left = iter(entry.batches()[:3])

        def __iter__(self) -> Iterator[Any]:
            yield from self.left

    def give_up(*_: Any) -> None:
        raise TimeoutError

    previous = signal.signal(signal.SIGALRM, give_up)
    signal.alarm(20)
    try:
        assert grow(entry.make(), entry, batches=Once(), steps=10, evaluate_on=2).neurons > 0
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, previous)


# ---- schedules and history -------------------------------------------------------------------------------------------


def due(schedule: Any, metrics: list[float | None]) -> list[int]:
    return [epoch for epoch, metric in enumerate(metrics) if schedule.due(epoch, metric)]


def test_schedules() -> None:
    nothing: list[float | None] = [None] * 30
    assert due(firefly.Every(10), nothing) == [9, 19, 29]
    assert due(firefly.Every(10, times=2), nothing) == [9, 19]
    assert due(firefly.Milestones(3, 4, 20), nothing) == due(firefly.Milestones([3, 4, 20]), nothing) == [3, 4, 20]
    losses: list[Any] = [3.0, 2.0, 2.1, 2.0, 1.0, 1.0, 1.0, 1.0, 0.5, 0.5, 0.5]
    assert due(firefly.Plateau(patience=2), losses) == [3, 6, 10]
    assert due(firefly.Plateau(patience=2, mode="max"), [-loss for loss in losses]) == [3, 6, 10]
    for schedule, given in ((firefly.Every, [0]), (firefly.Milestones, []), (firefly.Plateau, [0])):
        with pytest.raises(firefly.FireflyError, match=schedule.__name__):
            cast(Any, schedule)(*given)
    with pytest.raises(firefly.FireflyError, match="metric"):
        firefly.Plateau().due(3)


@pytest.mark.parametrize("cut", range(1, 10))
def test_a_plateau_goes_on_from_its_state(cut: int) -> None:
    losses = [3.0, 2.0, 2.1, 2.0, 1.0, 1.0, 1.0, 1.0, 0.5, 0.5, 0.5]
    whole, first, second = (firefly.Plateau(patience=2) for _ in range(3))
    expected = [whole.due(epoch, loss) for epoch, loss in enumerate(losses)]
    found = [first.due(epoch, loss) for epoch, loss in enumerate(losses[:cut])]
    second.load_state_dict(json.loads(json.dumps(first.state_dict())))
    found += [second.due(cut + epoch, loss) for epoch, loss in enumerate(losses[cut:])]
    assert found == expected


@pytest.mark.parametrize("name", ["vgg", "resnet"])
def test_a_model_grows_again_and_again(name: str) -> None:
    entry = ZOO[name]
    model, optimizer = make_trained(entry, steps=4)
    options: dict[str, Any] = {"neighborhood": SMALL, "budget": firefly.Neurons(fraction=0.2), "steps": 10}
    grower = firefly.Firefly(model, entry.example(), schedule=firefly.Milestones(0, 1, 2), **options)
    sizes = [sum(width.size for width in grower.anatomy.growable())]
    for epoch in range(3):
        assert grower.due(epoch)
        growth = grower.grow(entry.loss, entry.batches(), optimizer)
        assert growth.loss_after <= 1.01 * growth.loss_before
        assert_optimizer_fits(model, optimizer)
        fresh = firefly.trace(model, entry.example())
        assert grower.anatomy == fresh
        sizes.append(sum(width.size for width in fresh.growable()))
        train(model, entry, optimizer, 2)
    assert sizes == sorted(set(sizes)) and sizes[1] - sizes[0] == int(0.2 * sizes[0])
    assert [step["parameters"][1] for step in grower.history[:2]] == [s["parameters"][0] for s in grower.history[1:]]
    assert json.loads(json.dumps(grower.history)) == grower.history

    model = copy.deepcopy(model).double().eval()
    double = in_double(entry)
    blind = grow_blindly(model, double, anatomy=None)
    assert_grown_is_overgrown(model, blind, double.example(), 1e-12)


def test_a_grower_goes_on_from_its_state() -> None:
    entry = ZOO["mlp"]
    grown = []
    for restart in (False, True):
        model = entry.make()
        grower = firefly.Firefly(model, entry.example(), neighborhood=SMALL, schedule=firefly.Plateau(1), steps=5)
        grower.due(0, 1.0)
        grower.grow(entry.loss, entry.batches())
        if restart:
            state = json.loads(json.dumps(grower.state_dict()))
            grower = firefly.Firefly(model, entry.example(), neighborhood=SMALL, schedule=firefly.Plateau(1), steps=5)
            grower.load_state_dict(state)
        assert grower.due(1, 1.0)
        grower.grow(entry.loss, entry.batches())
        assert len(grower.history) == 2
        grown.append(model.state_dict())
    assert equal_trees(*grown)


def test_an_anatomy_that_no_longer_fits_is_traced_again() -> None:
    entry = ZOO["mlp"]
    model: Any = entry.make()
    grower = firefly.Firefly(model, entry.example(), steps=2)
    assert grower.anatomy["0"].size == 16
    model[0], model[2] = nn.Linear(8, 20), nn.Linear(20, 12)
    assert grower.anatomy["0"].size == 20
    model[0].requires_grad_(False)
    assert "frozen" in (grower.anatomy["0"].pinned or "")
