"""Growth in TensorBoard: what is written is what grew, read back by TensorBoard itself."""

import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import firefly
from firefly.errors import FireflyError
from firefly.integrations.tensorboard import log_epoch, log_growth, make_writer

pytest.importorskip("tensorboard")


def grow() -> firefly.Growth:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 4), nn.ReLU(), nn.Linear(4, 3))
    batch = (torch.randn(32, 6), torch.randint(0, 3, (32,)))

    def loss(model: nn.Module, batch: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
        return nn.functional.cross_entropy(model(batch[0]), batch[1])

    return firefly.grow(model, loss, [batch], example=batch[0], budget=firefly.Neurons(2), steps=5)


def read(folder: Path) -> Any:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    return EventAccumulator(str(folder)).Reload()


def test_a_growth_is_read_back(tmp_path: Path) -> None:
    growth = grow()
    for number, given in enumerate((growth, growth.to_dict())):  # as it is, or as plain data
        writer = make_writer(tmp_path / str(number))
        log_growth(writer, given, step=7)
        writer.close()
        events = read(tmp_path / str(number))
        found = {tag: events.Scalars(tag)[0] for tag in events.Tags()["scalars"]}
        assert {event.step for event in found.values()} == {7}
        assert found["network/parameters"].value == growth.parameters[1] and found["width/0"].value == 6
        assert found["growth/loss_after"].value == pytest.approx(growth.loss_after)
        kinds = [sum(added.get(kind, 0) for added in growth.added.values()) for kind in ("split", "new")]
        assert [found["growth/neurons_split"].value, found["growth/neurons_new"].value] == kinds and sum(kinds) == 2
        gains = found["growth/gain_split"].value + found["growth/gain_new"].value
        assert gains == pytest.approx(growth.predicted, rel=1e-4)
        assert "growth/text_summary" in events.Tags()["tensors"]


def test_a_run_taken_up_again_hides_what_it_does_anew(tmp_path: Path) -> None:
    for done, last in ((0, 4), (2, 3)):  # killed after epoch 4, of which 2 were kept
        writer = make_writer(tmp_path, done)
        for epoch in range(done + 1, last + 1):
            log_epoch(writer, {"epoch": epoch, "loss": 10.0 * done + epoch, "test_accuracy": None}, epoch)
        writer.close()
    events = read(tmp_path)
    assert [(one.step, one.value) for one in events.Scalars("training/loss")] == [(1, 1.0), (2, 2.0), (3, 23.0)]
    assert events.Tags()["scalars"] == ["training/loss"]


def test_without_tensorboard_it_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    with pytest.raises(FireflyError, match=r"firefly-descent\[tensorboard\]"):
        make_writer(tmp_path)
