"""Avalanche: its hooks, called in the documented order, keep a master that forgets nothing."""

from __future__ import annotations

from collections.abc import Iterable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import firefly
from firefly.continual import Master, metrics
from firefly.errors import FireflyError
from firefly.integrations.avalanche import FireflyPlugin

EXAMPLE = torch.zeros(2, 1, 6, 6)
HOW: dict[str, Any] = {"budget": firefly.Neurons(4), "steps": 3, "evaluate_on": 1}


def make(classes: int) -> nn.Module:
    first = [nn.Conv2d(1, 4, 3, padding=1, bias=False), nn.BatchNorm2d(4), nn.ReLU()]
    second = [nn.Conv2d(4, 5, 3, padding=1), nn.ReLU()]
    return nn.Sequential(*first, *second, nn.Flatten(), nn.Linear(5 * 36, classes))


def draw(task: int, classes: int, label: int | None = None) -> SimpleNamespace:
    """An experience: noisy copies of one picture per class."""
    generator = torch.Generator().manual_seed(task)
    pictures, labels = torch.randn(classes, 1, 6, 6, generator=generator), torch.arange(48) % classes
    images = pictures[labels] + 0.3 * torch.randn(48, 1, 6, 6, generator=generator)
    told = {"task_label": task if label is None else label, "current_experience": task}
    return SimpleNamespace(dataset=(images, labels), classes_in_this_experience=list(range(classes)), **told)


class Strategy:
    """What Avalanche's SupervisedTemplate does, as its documentation tells it: who calls which hook when."""

    def __init__(self, plugin: Any, model: nn.Module, epochs: int = 4, peek: Any = None) -> None:
        self.plugin, self.model, self.train_epochs, self.device = plugin, model, epochs, torch.device("cpu")
        self.optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, weight_decay=0.1)
        self._criterion, self.peek = nn.CrossEntropyLoss(), peek
        self.experience: Any = None
        self.dataloader: Any = []
        self.sizes: list[int] = []

    def call(self, hook: str) -> None:
        if hasattr(self.plugin, hook):
            getattr(self.plugin, hook)(self, some="word")

    def load(self) -> None:
        images, labels = self.experience.dataset
        tasks = torch.full_like(labels, self.experience.task_label)
        self.dataloader = [tuple(part[k : k + 16] for part in (images, labels, tasks)) for k in range(0, 48, 16)]

    def train(self, *experiences: Any) -> None:
        self.model.train()
        self.call("before_training")
        for self.experience in experiences:
            self.call("before_train_dataset_adaptation")
            self.call("after_train_dataset_adaptation")
            self.load()
            self.call("before_training_exp")
            for _ in range(self.train_epochs):
                self.call("before_training_epoch")
                self.train_epoch()
                self.call("after_training_epoch")
                if self.peek is not None:  # as PeriodicEval does
                    self.eval(self.peek)
            self.call("after_training_exp")
        self.call("after_training")
        self.experience, self.dataloader = None, []

    def train_epoch(self) -> None:
        self.sizes.append(sum(p.numel() for p in self.model.parameters()))
        for images, labels, _ in self.dataloader:
            self.call("before_training_iteration")
            self.optimizer.zero_grad()
            self.call("before_forward")
            answers = self.model(images)
            self.call("after_forward")
            loss = self._criterion(answers, labels)
            self.call("before_backward")
            loss.backward()
            self.call("after_backward")
            self.call("before_update")
            self.optimizer.step()
            self.call("after_update")
            self.call("after_training_iteration")

    @torch.no_grad()
    def eval(self, experiences: Iterable[Any]) -> list[Tensor]:
        before = self.experience, self.dataloader, {name: one.training for name, one in self.model.named_modules()}
        self.model.eval()
        answers = []
        self.call("before_eval")
        for self.experience in experiences:
            self.call("before_eval_dataset_adaptation")
            self.call("after_eval_dataset_adaptation")
            self.load()
            self.call("before_eval_exp")
            answers.append(self.model(self.experience.dataset[0]))
            self.call("after_eval_exp")
        self.call("after_eval")
        self.experience, self.dataloader, modes = before
        for name, module in self.model.named_modules():
            module.train(modes[name])
        return answers


def test_every_task_is_learnt_grows_and_stays_bit_for_bit() -> None:
    master, stream = Master(make, EXAMPLE), [draw(0, 3), draw(1, 2), draw(2, 5)]
    strategy = Strategy(FireflyPlugin(master, **HOW), make(2))
    learnt: list[Tensor] = []
    for number, experience in enumerate(stream):
        strategy.train(experience)
        learnt.append(strategy.eval([experience])[0])
        accuracy = (learnt[-1].argmax(1) == experience.dataset[1]).float().mean()
        assert accuracy == pytest.approx(master[f"task {number}"].told["accuracy"]) and accuracy > 0.7
    for before, after in zip(learnt, strategy.eval(stream)):
        assert torch.equal(before, after)
    rows = metrics.account(master)
    assert [row["task"] for row in rows] == ["task 0", "task 1", "task 2"]
    assert all(sum(row["grown"].values()) == 4 and row["epochs"]["training"] == 4 for row in rows)
    assert rows[0]["epochs"]["step one"] == 1
    for k in range(3):  # after two of four epochs
        before, *_, after = strategy.sizes[4 * k : 4 * k + 4]
        assert strategy.sizes[4 * k : 4 * k + 4] == [before, before, after, after] and before < after


def test_to_look_on_the_way_changes_nothing() -> None:
    stream = [draw(0, 3), draw(1, 2)]
    answers = []
    for peek in (None, stream):
        torch.manual_seed(0)
        strategy = Strategy(FireflyPlugin(Master(make, EXAMPLE), grow_after=(1, 3), **HOW), make(2), peek=peek)
        strategy.train(*stream)
        answers.append(strategy.eval(stream))
    assert all(torch.equal(one, other) for one, other in zip(*answers))


def test_what_the_strategy_trains_is_what_the_optimiser_holds() -> None:
    strategy = Strategy(FireflyPlugin(Master(make, EXAMPLE), **HOW), make(2))
    strategy.train(draw(0, 3))
    strategy.eval([draw(0, 3), draw(7, 4)])  # the second is unknown yet: a fresh head answers
    held = {id(parameter) for parameter in strategy.optimizer.param_groups[0]["params"]}
    assert held == {id(parameter) for parameter in strategy.model.parameters()}
    assert [id(one) for one in strategy.optimized_param_id.values()] == [id(p) for p in strategy.model.parameters()]


def test_a_training_that_was_interrupted_begins_anew() -> None:
    master, stream = Master(make, EXAMPLE), [draw(0, 3), draw(1, 2)]
    strategy = Strategy(FireflyPlugin(master, **HOW), make(2))
    strategy.train(stream[0])
    train_epoch, strategy.train_epoch = strategy.train_epoch, lambda: pytest.fail("stop")  # type: ignore[method-assign]
    with pytest.raises(pytest.fail.Exception):
        strategy.train(stream[1])
    strategy.train_epoch = train_epoch  # type: ignore[method-assign]
    strategy.train(stream[1])
    assert list(master) == ["task 0", "task 1"]
    assert not strategy.optimizer._optimizer_step_post_hooks  # none holds what was given up


def test_what_is_refused() -> None:
    master = Master(make, EXAMPLE)
    with pytest.raises(FireflyError, match="budgt cannot be given"):
        FireflyPlugin(master, budgt=firefly.Neurons(3))
    with pytest.raises(FireflyError, match="pick='mask'"):
        FireflyPlugin(master, pick="mask")
    with pytest.raises(FireflyError, match="example cannot be given"):
        FireflyPlugin(master, example=1)
    strategy = Strategy(FireflyPlugin(master, grow_after=(), **HOW), make(2), epochs=1)
    strategy.train(draw(0, 3))
    assert not master["task 0"].told["growths"]
    with pytest.raises(FireflyError, match=r"learnt already.*return_task_id=True"):
        strategy.train(draw(1, 3, label=0))
    strategy.optimizer.add_param_group({"params": [nn.Parameter(torch.zeros(1))]})
    with pytest.raises(FireflyError, match="2 parameter groups"):
        strategy.train(draw(2, 3))


def test_inside_avalanche_itself() -> None:
    pytest.importorskip("avalanche", reason="Avalanche is not installed")
    from avalanche.benchmarks import nc_benchmark
    from avalanche.core import SupervisedPlugin
    from avalanche.training.supervised import Naive

    images, labels = draw(0, 4).dataset
    data = torch.utils.data.TensorDataset(images, labels)
    data.targets = labels.tolist()
    how = {"n_experiences": 2, "task_labels": True, "class_ids_from_zero_in_each_exp": True, "seed": 0}
    benchmark = nc_benchmark(data, data, **how)
    master, model = Master(make, EXAMPLE), make(2)
    plugin = FireflyPlugin(master, **HOW)
    assert isinstance(plugin, SupervisedPlugin)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    rest: Any = {"criterion": nn.CrossEntropyLoss(), "train_mb_size": 16, "train_epochs": 4, "eval_every": 1}
    strategy = Naive(model=model, optimizer=optimizer, plugins=[plugin], **rest)
    answers = []
    for experience in benchmark.train_stream:
        strategy.train(experience)
        strategy.eval(benchmark.test_stream)
        answers.append(master.network("task 0")(images))
    assert list(master.tasks) == ["task 0", "task 1"]
    assert torch.equal(*answers)
