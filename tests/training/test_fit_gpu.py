"""On a GPU: the captured step computes what the plain one does, leaves no trace, and is made anew after a growth."""

import copy
import gc
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from test_fit import Pair, make_data, make_grower, make_net, train
from test_options import make_dropping, set_rate
from torch import Tensor, nn

import firefly
from firefly.method import Method
from firefly.training import History, Step, captured, evaluate
from firefly.training.capture import keep
from firefly.training.engine import Engine
from firefly.training.optimizer import list_state, make_optimizer
from firefly.training.recipe import Recipe, make_loss
from firefly.training.resident import Batches, draw, upload

pytestmark = pytest.mark.gpu


@pytest.fixture(autouse=True)
def plain_float32(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rounding as on a CPU, so that paths can be compared."""
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)
    monkeypatch.setattr(torch.backends.cuda.matmul, "allow_tf32", False)


def run(device: str = "cuda", **how: Any) -> tuple[nn.Module, History]:
    model = how.pop("model", None) or make_net(dropout=0.0)
    return train(model, device=device, test=make_data(60), **({"precision": "float32"} | how))


def losses(history: History) -> list[float]:
    return [row.loss for row in history.epochs]


@pytest.mark.parametrize("precision", ["float32", "bf16"])
@pytest.mark.parametrize("channels_last", [False, True])
def test_graph_equals_eager(precision: str, channels_last: bool) -> None:
    eager, plain = run(graph=False, precision=precision, channels_last=channels_last)
    graph, fast = run(graph=True, precision=precision, channels_last=channels_last)
    tolerance = 1e-4 if precision == "float32" else 2e-2
    assert losses(fast) == pytest.approx(losses(plain), rel=tolerance)
    for one, other in zip(eager.state_dict().values(), graph.state_dict().values()):
        torch.testing.assert_close(one, other, rtol=tolerance, atol=tolerance)


def test_gpu_equals_cpu() -> None:
    assert losses(run()[1]) == pytest.approx(losses(run("cpu")[1]), rel=1e-3)


@pytest.mark.parametrize("kind", [torch.optim.Adam, torch.optim.AdamW, torch.optim.RMSprop])
def test_other_optimizers(kind: Any) -> None:
    results = []
    for device in ("cpu", "cuda"):
        model = make_net(dropout=0.0).to(device)
        optimizer = kind(model.parameters(), lr=1e-3)
        results.append(losses(run(device, model=model, optimizer=optimizer)[1]))
        assert optimizer.param_groups[0]["lr"] == 1e-3
    assert results[1] == pytest.approx(results[0], rel=1e-3)


@pytest.mark.filterwarnings("ignore")
def test_compiled_step_is_close() -> None:
    assert losses(run(compile=True)[1]) == pytest.approx(losses(run()[1]), rel=1e-2)


def make_engine(precision: str = "bf16") -> Engine:
    model, device = make_net(dropout=0.0).cuda(), torch.device("cuda", torch.cuda.current_device())
    data = upload(make_data(), device, augment=True, channels_last=True)
    recipe = Recipe(2, batch=32, lr=0.05, schedule="constant", precision=precision, channels_last=True)
    return Engine(model, data, make_optimizer(model, recipe), recipe)


def test_warm_up_changes_nothing() -> None:
    engine = make_engine()
    engine.prepare()
    before, random = keep(engine.list_tensors()), torch.cuda.get_rng_state()
    assert engine.step is not None
    engine.step.capture()
    torch.cuda.synchronize()
    assert len(before) > 20 and all(tensor.equal(values) for tensor, values in before)
    assert torch.cuda.get_rng_state().equal(random)
    assert all(not state.any() for state in list_state(engine.optimizer))


def test_capture_happens_once_while_nothing_changes() -> None:
    engine = make_engine()
    first = float(engine.train(0, draw(engine.data, 32, 0, 0)))
    assert engine.step is not None and engine.step.graph is not None
    graph = engine.step.graph
    second = float(engine.train(1, draw(engine.data, 32, 0, 1)))
    assert engine.step.graph is graph and second < first


class Widener:
    """A grower that widens the hidden linear layer from 8 to 12 neurons, with outgoing weights of zero."""

    def __init__(self, model: Any) -> None:
        self.model = model

    def due(self, epoch: int, metric: float | None) -> bool:
        return epoch == 0

    def grow(self, loss: Any, batches: Any, optimizer: Any) -> None:
        hidden, head = self.model[5], self.model[8]
        generator = torch.Generator().manual_seed(0)
        more = torch.randn(4, 24, generator=generator).to(hidden.weight.device) * 0.1
        for layer, name, extra, dim in (
            (hidden, "weight", more, 0),
            (hidden, "bias", more[:, 0] * 0, 0),
            (head, "weight", torch.zeros_like(head.weight)[:, :4], 1),
        ):
            old = getattr(layer, name)
            new = nn.Parameter(torch.cat([old.detach(), extra], dim))
            state = optimizer.state.pop(old)
            old_buffer = state["momentum_buffer"]
            optimizer.state[new] = {"momentum_buffer": torch.cat([old_buffer, torch.zeros_like(extra)], dim)}
            setattr(layer, name, new)
            parameters = optimizer.param_groups[0]["params"]
            parameters[:] = [new if parameter is old else parameter for parameter in parameters]


@pytest.mark.parametrize("precision", ["float32", "bf16"])
def test_recaptures_after_growth(precision: str) -> None:
    results = []
    for graph in (False, True):
        model: Any = make_net(dropout=0.0)
        _, history = run(model=model, epochs=4, grower=Widener(model), graph=graph, precision=precision)
        assert history[0].grown and history[1].parameters > history[0].parameters and model[5].weight.shape[0] == 12
        results.append(losses(history))
    assert results[1] == pytest.approx(results[0], rel=1e-3 if precision == "float32" else 2e-2)


def test_grows_with_firefly() -> None:
    model = make_net(dropout=0.0)
    _, history = run(model=model, epochs=5, grower=make_grower(model), precision="bf16")
    assert [row.grown for row in history.epochs] == [False, True, False, True, False]
    assert history[-1].loss < history[0].loss


def test_step_reads_its_buffers_and_notices_new_tensors() -> None:
    class Box:
        weight = torch.ones(3, device="cuda")

    inputs = torch.zeros(3, device="cuda")
    total = torch.zeros((), device="cuda")

    def fn() -> Tensor:
        total.add_((inputs[: len(Box.weight)] * Box.weight[:3]).sum())
        return Box.weight * 2

    step = Step(fn, lambda: [Box.weight, total])
    for value in (1.0, 2.0):
        inputs.fill_(value)
        assert step().shape == (3,)
    assert total.item() == 9 and not step.refresh()
    Box.weight = torch.ones(5, device="cuda")
    assert step.refresh() and step().shape == (5,)
    assert total.item() == 15


def test_garbage_collected_during_a_capture_does_not_break_it() -> None:
    """A graph in a cycle of references dies when the collector finds it; not while another is being recorded."""
    total = torch.zeros((), device="cuda")

    def leave_garbage() -> None:
        step = Step(lambda: total.add_(1), [total])
        step()
        step.itself = step  # type: ignore[attr-defined]

    def fn() -> Tensor:
        crowd: list[Any] = [[] for _ in range(2000)]  # for the collector to count
        return total.add_(len(crowd) / 2000)

    thresholds = gc.get_threshold()
    gc.disable()
    leave_garbage()
    try:
        gc.set_threshold(1000, 1, 1)
        step = Step(fn, [total], warmup=0)
        gc.enable()
        step()
    finally:
        gc.set_threshold(*thresholds)
        gc.enable()
    assert gc.isenabled() and total.item() == 2


def test_dropout_differs_from_step_to_step_and_follows_the_seed() -> None:
    first, second, other = (run(model=make_net(dropout=0.5), seed=seed)[1] for seed in (0, 0, 1))
    assert losses(first) == pytest.approx(losses(second), rel=1e-4) != losses(other)


def test_interrupted_training_resumes(tmp_path: Path) -> None:
    def interrupt(history: History) -> bool:
        if len(history) == 2:
            raise KeyboardInterrupt
        return False

    _, expected = run(epochs=4)
    with pytest.raises(KeyboardInterrupt):
        run(epochs=4, checkpoint=tmp_path, stop=interrupt)
    model, history = run(epochs=4, checkpoint=tmp_path, model=make_net(seed=99, dropout=0.0))
    assert losses(history) == pytest.approx(losses(expected), rel=1e-4)
    assert evaluate(model, make_data(60), precision="float32").accuracy == history.accuracy


def test_a_loss_that_waits_for_the_gpu_is_refused() -> None:
    code = """
import torch
from torch import nn
from firefly.errors import FireflyError
from firefly.training import fit

def loss(model, batch):
    value = nn.functional.cross_entropy(model(batch[0]), batch[1])
    return value * (2 if value.item() > 0 else 1)

try:
    fit(nn.Linear(4, 2), (torch.randn(64, 4), torch.arange(64) % 2), 1, batch=16, loss=loss, progress=False)
except FireflyError as error:
    print(error)
"""
    answer = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=200)
    assert "cannot be captured as a CUDA graph" in answer.stdout, answer.stderr


def test_batches_lie_on_the_gpu() -> None:
    seen: list[Pair] = []

    class Watcher(Widener):
        def grow(self, loss: Any, batches: Any, optimizer: Any) -> None:
            seen.extend(batches[:2])

    model = make_net(dropout=0.0)
    run(model=model, epochs=2, grower=Watcher(model))
    assert len(seen) == 2 and all(images.is_cuda and labels.is_cuda for images, labels in seen)


def test_a_captured_growth_equals_a_plain_one() -> None:
    growths, weights = [], []
    for method in (Method(), captured()):
        model = make_net(dropout=0.0).cuda()
        data = upload(make_data(96), torch.device("cuda"))
        batches = Batches(data, draw(data, 32, 0, 0))
        how: dict[str, Any] = {"neighborhood": [firefly.Split(), firefly.New(4)], "steps": 40, "method": method}
        growths.append(firefly.grow(model, make_loss(0.0), batches, example=batches[0][0][:2], **how))
        weights.append(model.state_dict())
    assert growths[0].added == growths[1].added
    assert growths[1].loss_overgrown == pytest.approx(growths[0].loss_overgrown, rel=1e-4)
    for one, other in zip(weights[0].values(), weights[1].values()):
        torch.testing.assert_close(one, other, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("graph", [True, False])
def test_fit_captures_the_growth_of_any_grower(monkeypatch: pytest.MonkeyPatch, graph: bool) -> None:
    captures: list[Any] = []
    whole = Step.capture
    monkeypatch.setattr(Step, "capture", lambda step: (captures.append(step), whole(step)))

    class Own:
        """An object of a user's that calls `firefly.grow` by itself."""

        def __init__(self, model: nn.Module) -> None:
            self.model = model

        def due(self, epoch: int, metric: float | None) -> bool:
            return epoch == 1

        def grow(self, loss: Any, batches: Any, optimizer: Any) -> None:
            captures.clear()
            firefly.grow(self.model, loss, batches, example=torch.zeros(2, 3, 8, 8), optimizer=optimizer, steps=4)
            assert len(captures) == graph
            grown.append(self)

    grown: list[Any] = []
    for make in (make_grower, Own):
        model = make_net(dropout=0.0)
        grower: Any = make(model)
        captures.clear()
        before = {key: value for key, value in vars(grower).items() if key not in ("history", "_anatomy")}
        options = copy.deepcopy(before.get("options"))
        run(model=model, grower=grower, epochs=3, graph=graph)
        assert all(getattr(grower, key) is value for key, value in before.items())
        assert before.get("options") == options
    assert len(grown) == 1


@pytest.mark.parametrize("graph", [True, False])
def test_the_growth_of_a_firefly_is_captured(monkeypatch: pytest.MonkeyPatch, graph: bool) -> None:
    captures: list[Any] = []
    whole = Step.capture
    monkeypatch.setattr(Step, "capture", lambda step: (captures.append(step), whole(step)))
    model = make_net(dropout=0.0)
    grower = make_grower(model)
    run(model=model, grower=grower, epochs=3, graph=graph)
    assert len(grower.history) == 1 and len(captures) == 3 * graph  # training, growth, training


# ---- what a search or a stream of tasks asks for ---------------------------------------------------------------------


@pytest.mark.parametrize("precision", ["float32", "bf16"])
def test_cutout_average_and_a_changing_rate_inside_the_graph(precision: str) -> None:
    """Without the random branches of drop-path: the captured step draws other numbers than the plain one."""

    class Scaled(nn.Module):
        rate: Tensor

        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("rate", torch.ones(()))

        def forward(self, x: Tensor) -> Tensor:
            return x * self.rate

    results = []
    ways = [("cuda", False), ("cuda", True), *[("cpu", False)] * (precision == "float32")]
    for device, graph in ways:
        net = make_net(dropout=0.0)
        model: Any = nn.Sequential(*net[:5], Scaled(), *net[5:])
        how: dict[str, Any] = {"cutout": 3, "ema": 0.9, "epochs": 4, "graph": graph, "precision": precision}
        how["each_epoch"] = lambda epoch, history, model: model[5].rate.fill_(1 / (1 + epoch))
        _, history = run(device, model=model, **how)
        average: Any = history.average
        results.append(
            (losses(history), [tensor.cpu() for tensor in average.state_dict().values()], history[-1].test_loss)
        )
        assert average[5].rate.item() < 1 and average[1].num_batches_tracked == 24
    tolerance = 1e-3 if precision == "float32" else 3e-2
    for one in results[1:]:
        assert one[0] == pytest.approx(results[0][0], rel=tolerance)
        assert one[2] == pytest.approx(results[0][2], rel=tolerance)
        for first, second in zip(results[0][1], one[1]):
            torch.testing.assert_close(first, second, rtol=10 * tolerance, atol=10 * tolerance)


def test_drop_path_draws_anew_in_every_step_and_follows_its_rate() -> None:
    model = make_dropping()
    _, history = run(model=model, each_epoch=set_rate, graph=True)
    _, plain = run(model=make_dropping(), graph=True)
    assert model[5].rate.item() == pytest.approx(0.4)
    assert history[0].loss == pytest.approx(plain[0].loss, rel=1e-4) and history[1].loss != plain[1].loss


def test_the_average_grows_along_and_resumes(tmp_path: Path) -> None:
    def go(seed: int = 1, **how: Any) -> tuple[Any, History]:
        model = make_net(seed, dropout=0.0)
        how = {"ema": 0.9, "epochs": 5, "cutout": 2, "grow_on": make_data(96), "grower": make_grower(model)} | how
        return run(model=model, **how)

    def interrupt(history: History) -> bool:
        if len(history) == 3:
            raise KeyboardInterrupt
        return False

    _, expected = go()
    with pytest.raises(KeyboardInterrupt):
        go(checkpoint=tmp_path, stop=interrupt)
    model, history = go(99, checkpoint=tmp_path)
    average: Any = history.average
    assert [row.grown for row in history.epochs] == [False, True, False, True, False]
    assert [one.shape for one in model.parameters()] == [one.shape for one in average.parameters()]
    assert losses(history) == pytest.approx(losses(expected), rel=2e-2)
    assert evaluate(average, make_data(60), precision="float32").accuracy == history.accuracy


@pytest.mark.parametrize("kind", [torch.optim.SGD, torch.optim.AdamW])
def test_an_interrupt_in_the_first_epoch_leaves_no_state(tmp_path: Path, kind: Any) -> None:
    """The state that the warm-up of a capture brings is gone, too."""
    model = make_net(dropout=0.0).cuda()
    optimizer = kind(model.parameters(), lr=0.01)
    untouched = [parameter.detach().clone() for parameter in model.parameters()]

    def interrupt(history: History) -> bool:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(model=model, optimizer=optimizer, checkpoint=tmp_path, stop=interrupt)
    assert all(map(torch.equal, model.parameters(), untouched)) and not optimizer.state
    again = make_net(seed=9, dropout=0.0).cuda()
    _, history = run(model=again, optimizer=kind(again.parameters(), lr=0.01), checkpoint=tmp_path)
    fresh = make_net(dropout=0.0).cuda()
    _, expected = run(model=fresh, optimizer=kind(fresh.parameters(), lr=0.01))
    assert losses(history) == pytest.approx(losses(expected), rel=1e-4)
