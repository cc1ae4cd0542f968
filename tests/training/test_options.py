"""What a search or a stream of tasks asks of `fit`: a word before every epoch, other batches to grow on, an average."""

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from test_fit import NEVER, Pair, interrupt_after, make_data, make_grower, make_net, same, timeless, train
from torch import Tensor, nn

from firefly.baselines import AutoGrow
from firefly.errors import FireflyError
from firefly.stages.capturing import capturing, lent_capture
from firefly.training import History, Step, evaluate
from firefly.training.average import follow, list_weights, pair
from firefly.training.growing import grow_captured

# ---- before every epoch ----------------------------------------------------------------------------------------------


class DropPath(nn.Module):
    """A residual branch that is left out for some images, at a rate that is a buffer."""

    rate: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.branch = nn.Linear(24, 24)
        self.register_buffer("rate", torch.zeros(()))

    def forward(self, x: Tensor) -> Tensor:
        kept = (torch.rand(len(x), 1, device=x.device) >= self.rate).to(x.dtype)
        return x + self.branch(x) * (kept / (1 - self.rate) if self.training else 1)


def make_dropping(seed: int = 1) -> Any:
    model = make_net(seed, dropout=0.0)
    return nn.Sequential(*model[:5], DropPath(), *model[5:])


def set_rate(epoch: int, history: History, model: Any) -> Tensor:
    return model[5].rate.fill_(0.2 * epoch)  # type: ignore[no-any-return]


def test_it_is_asked_before_every_epoch() -> None:
    seen: list[tuple[int, int, Any]] = []
    model, history = train(each_epoch=lambda *given: seen.append((given[0], len(given[1]), given[2])))
    assert seen == [(epoch, epoch, model) for epoch in range(3)] and len(history) == 3


def test_a_rate_that_changes_from_epoch_to_epoch_is_a_buffer() -> None:
    straight, plain = train(make_dropping(), each_epoch=set_rate), train(make_dropping())
    assert straight[0][5].rate == pytest.approx(0.4)
    assert straight[1][0].loss == plain[1][0].loss and straight[1][1].loss != plain[1][1].loss


@pytest.mark.parametrize("calls", [3, 9, 15])
def test_with_it_a_run_resumes_exactly(tmp_path: Path, calls: int) -> None:
    straight, expected = train(make_dropping(), each_epoch=set_rate)
    with pytest.raises(KeyboardInterrupt):
        train(make_dropping(), each_epoch=set_rate, checkpoint=tmp_path, loss=interrupt_after(calls))
    resumed, history = train(make_dropping(9), each_epoch=set_rate, checkpoint=tmp_path, loss=interrupt_after(NEVER))
    assert same(straight, resumed) and timeless(history) == timeless(expected)


def test_true_ends_the_training_and_nothing_else_does(tmp_path: Path) -> None:
    def end(epoch: int, history: History, model: nn.Module) -> Any:
        return True if epoch == 2 else torch.ones(1)

    model, history = train(each_epoch=end, epochs=9, checkpoint=tmp_path)
    assert len(history) == 2
    again, history = train(make_net(9), each_epoch=end, epochs=9, checkpoint=tmp_path)
    assert len(history) == 2 and same(model, again)
    longer, history = train(make_net(9), epochs=9, checkpoint=tmp_path)
    assert len(history) == 9 and same(longer, train(epochs=9)[0])


def test_an_interrupt_in_it_loses_nothing(tmp_path: Path) -> None:
    def interrupt(epoch: int, history: History, model: nn.Module) -> None:
        if epoch == 2:
            model[0].weight.data.zero_()  # type: ignore[index,union-attr,operator]
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train(each_epoch=interrupt, checkpoint=tmp_path)
    assert same(train(make_net(9), checkpoint=tmp_path)[0], train()[0])


# ---- growth ----------------------------------------------------------------------------------------------------------


class Watcher:
    """A grower that keeps the batches it is given, and whether it was lent a captured step."""

    def __init__(self) -> None:
        self.seen: list[list[Pair]] = []
        self.lent: list[Any] = []

    def due(self, epoch: int, metric: float | None) -> bool:
        return True

    def grow(self, loss: Any, batches: Any, optimizer: Any) -> None:
        self.seen.append(list(batches))
        self.lent.append(lent_capture())


def test_growth_on_other_data() -> None:
    images, labels = make_data(64)
    watcher = Watcher()
    train(grower=watcher, grow_on=(torch.full_like(images, 255), labels), augment=False)
    assert len(watcher.seen) == 2
    for batches in watcher.seen:
        assert [len(batch[1]) for batch in batches] == [32, 32]
        assert all((batch[0] > 0.99).all() for batch in batches)
        assert torch.cat([batch[1] for batch in batches]).sort().values.equal(labels.sort().values)


def test_growth_on_batches_of_a_function() -> None:
    watcher = Watcher()
    train(grower=watcher, grow_on=lambda epoch: [f"batch {epoch}"])
    assert watcher.seen == [["batch 0"], ["batch 1"]]


def test_growth_elsewhere_leaves_training_as_it_is(tmp_path: Path) -> None:
    def go(seed: int = 1, **how: Any) -> tuple[Any, History]:
        model = make_net(seed, dropout=0.0)
        return train(model, epochs=4, grower=make_grower(model), grow_on=make_data(96), **how)

    straight, expected = go()
    assert not same(straight, train(model := make_net(dropout=0.0), epochs=4, grower=make_grower(model))[0])
    with pytest.raises(KeyboardInterrupt):
        go(loss=interrupt_after(30), checkpoint=tmp_path)
    resumed, history = go(9, checkpoint=tmp_path, loss=interrupt_after(NEVER))
    assert same(straight, resumed) and timeless(history) == timeless(expected)


def test_nothing_of_the_grower_is_changed() -> None:
    model = make_net(dropout=0.0)
    grower = make_grower(model)
    known = {key: value for key, value in vars(grower).items() if key not in ("history", "_anatomy")}
    before = {key: copy.deepcopy(value) for key, value in known.items() if isinstance(value, (dict, list))}
    train(model, epochs=3, grower=grower)
    assert all(getattr(grower, key) is value for key, value in known.items())
    assert all(getattr(grower, key) == value for key, value in before.items()) and len(grower.history) == 1


def test_a_captured_step_is_lent_to_any_grower_and_taken_back() -> None:
    watcher = Watcher()
    for graph in (True, False):
        grow_captured(watcher, None, [], None, None, graph)  # type: ignore[arg-type]
    assert watcher.lent == [Step, None] and lent_capture() is None
    with pytest.raises(KeyError), capturing(Step):
        raise KeyError
    assert lent_capture() is None


# ---- the average -----------------------------------------------------------------------------------------------------


def test_the_average_follows_step_by_step() -> None:
    model = make_net()
    twin, own = copy.deepcopy(model), copy.deepcopy(model)
    optimizer = torch.optim.SGD(model.parameters(), 0.05, 0.9)
    weights = iter([weight for epoch in range(3) for weight in list_weights(0.8, epoch, 6)])

    def by_hand(*_: Any) -> None:
        weight = next(weights)
        for there, here in zip((*twin.parameters(), *twin.buffers()), (*model.parameters(), *model.buffers())):
            if there.is_floating_point():
                there.data += weight * (here.detach() - there.data)

    optimizer.register_step_post_hook(by_hand)
    _, history = train(model, optimizer=optimizer, ema=0.8, test=make_data(60))
    average: Any = history.average
    assert average is not None and next(weights, None) is None
    for name, tensor in average.state_dict().items():
        if tensor.is_floating_point():
            torch.testing.assert_close(tensor, twin.state_dict()[name])
            assert not tensor.equal(model.state_dict()[name])
    assert average[1].num_batches_tracked == model[1].num_batches_tracked == 18
    assert same(
        model, train(own, optimizer=torch.optim.SGD(own.parameters(), 0.05, 0.9))[0]
    )  # the model itself is as without it
    assert history.accuracy == evaluate(average, make_data(60)).accuracy
    assert history[-1].test_loss == pytest.approx(evaluate(average, make_data(60)).loss)


def test_the_decay_is_less_at_first() -> None:
    weights = list_weights(0.99, 0, 2000)
    assert weights[0] == 0.9 and weights == sorted(weights, reverse=True)
    assert weights[-1] == pytest.approx(0.01) and list_weights(0.99, 5, 400) == weights[2000:] + [weights[-1]] * 400
    assert list_weights(0.5, 1, 5) == pytest.approx([0.5] * 5, abs=0.1)


@pytest.mark.parametrize("calls", [3, 22, 50])
def test_the_average_grows_along_and_resumes_exactly(tmp_path: Path, calls: int) -> None:
    def go(seed: int = 1, **how: Any) -> tuple[Any, History]:
        model = make_net(seed, dropout=0.0)
        return train(model, epochs=5, grower=make_grower(model), ema=0.9, test=make_data(30), **how)

    straight, expected = go()
    average: Any = expected.average
    shapes = [[tensor.shape for tensor in one.state_dict().values()] for one in (straight, average)]
    assert shapes[0] == shapes[1] and sum(row.grown for row in expected.epochs) == 2
    with pytest.raises(KeyboardInterrupt):
        go(loss=interrupt_after(calls), checkpoint=tmp_path)
    resumed, history = go(9, checkpoint=tmp_path, loss=interrupt_after(NEVER))
    assert same(straight, resumed) and timeless(history) == timeless(expected)
    assert history.average is not None and same(history.average, average)


def test_an_average_that_cannot_grow_along_is_refused() -> None:
    with pytest.raises(FireflyError, match="ema with a AutoGrow, whose grow takes no `also`"):
        train(ema=0.9, grower=AutoGrow(lambda stage: None))

    class Careless(Watcher):
        def grow(self, loss: Any, batches: Any, optimizer: Any, also: Any = ()) -> None:
            model[8].bias = nn.Parameter(torch.zeros(4))
            model[8].weight = nn.Parameter(torch.zeros(4, 8))

    model: Any = make_net()
    with pytest.raises(FireflyError, match="its average has not"):
        train(model, ema=0.9, grower=Careless())


def test_tied_weights_stay_tied_in_the_average() -> None:
    model: Any = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 4))
    model[2].weight = model[0].weight
    twin = copy.deepcopy(model)
    with torch.no_grad():
        model[0].weight.add_(1)
    pairs = pair(model, twin)
    follow(pairs, torch.tensor(0.25))
    assert len(pairs.own) == 3 and twin[2].weight is twin[0].weight
    torch.testing.assert_close(twin[0].weight, model[0].weight - 0.75)
