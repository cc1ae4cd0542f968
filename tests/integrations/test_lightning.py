"""Growth inside Lightning: everything that the trainer keeps goes on, and a fresh process resumes and loads."""

import copy
import csv
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.optim.swa_utils import AveragedModel

import firefly

lightning = pytest.importorskip("lightning.pytorch")

from lit import Net, make_callback, make_loader, make_net, make_trainer  # noqa: E402

from checkpoint.runs import run_in_fresh_process, same  # noqa: E402
from firefly.integrations.lightning import load_from_checkpoint  # noqa: E402

pytestmark = [
    pytest.mark.filterwarnings("ignore:.*LeafSpec:FutureWarning"),
    pytest.mark.filterwarnings("ignore:.*does not have many workers:UserWarning"),
    pytest.mark.filterwarnings("ignore:.*but have no `val_dataloader`:UserWarning"),
    pytest.mark.filterwarnings("ignore:The dirpath has changed:UserWarning"),
    pytest.mark.filterwarnings("ignore:.*Checkpoint directory .* exists:UserWarning"),
    pytest.mark.filterwarnings("ignore:.*lr_scheduler.step.*before.*optimizer.step:UserWarning"),
]


def make_average():
    return lightning.callbacks.EMAWeightAveraging(decay=0.9)


def test_the_module_grows_and_what_trains_it_goes_on(tmp_path):
    module, callback, average = make_net(), make_callback(), make_average()
    trainer = make_trainer(tmp_path, callback, average)
    trainer.fit(module, make_loader())
    grown = firefly.architecture(module)
    assert len(callback.history) == len(grown["history"]) == 2  # at the start of epochs 2 and 4, not after the last
    assert grown["widths"]["net.0"] + grown["widths"]["net.3"] == 12 + 6
    (optimizer,) = trainer.optimizers
    assert {id(p) for group in optimizer.param_groups for p in group["params"]} == {id(p) for p in module.parameters()}
    assert all(state["exp_avg"].shape == p.shape and state["step"] == 24 for p, state in optimizer.state.items())
    scheduler = trainer.lr_scheduler_configs[0].scheduler
    assert scheduler.last_epoch == 6 and scheduler.get_last_lr() == [optimizer.param_groups[0]["lr"]]
    assert [p.shape for p in average._average_model.module.parameters()] == [p.shape for p in module.parameters()]
    logged = {name.removeprefix("firefly/"): value for name, value in trainer.callback_metrics.items()}
    assert logged["parameters"] == grown["parameters"] and logged["neurons"] == 3
    assert logged["loss_after"] <= logged["loss_before"] and "loss" in logged


def resume(folder):
    module = make_net()
    trainer = make_trainer(folder / "resumed", make_callback(), make_average())
    trainer.fit(module, make_loader(), ckpt_path=folder / "epoch=3.ckpt")
    loaded = load_from_checkpoint(Net, folder / "epoch=5.ckpt", weights_only=True)
    torch.save(loaded.state_dict(), folder / "loaded.pt")


def in_fresh_process(folder):
    run_in_fresh_process(f"test_lightning.resume(Path({str(folder)!r}))")


@pytest.mark.parametrize("go_on", [resume, pytest.param(in_fresh_process, marks=pytest.mark.slow)])
def test_a_run_resumes_bit_identically_and_loads(tmp_path, go_on):
    make_trainer(tmp_path, make_callback(), make_average()).fit(make_net(), make_loader())
    go_on(tmp_path)
    one, other = (torch.load(folder / "epoch=5.ckpt") for folder in (tmp_path, tmp_path / "resumed"))
    for part in ("state_dict", "current_model_state", "optimizer_states", "lr_schedulers", "averaging_state"):
        assert same(one[part], other[part]), part
    for history in (one["firefly"]["history"], other["firefly"]["history"]):
        assert [growth["parameters"] for growth in history] == [g["parameters"] for g in one["firefly"]["history"]]
    assert same(dict(one["state_dict"]), dict(torch.load(tmp_path / "loaded.pt")))


def test_earlier_and_bare_checkpoints_come_back_into_the_grown_module(tmp_path):
    module = make_net()
    trainer = make_trainer(tmp_path, make_callback(), max_epochs=3)
    trainer.checkpoint_callback.save_weights_only = True
    trainer.fit(module, make_loader())
    before = firefly.architecture(module)
    assert len(before["history"]) == 1
    trainer.validate(module, make_loader(), ckpt_path=tmp_path / "epoch=1.ckpt", verbose=False)
    assert firefly.architecture(module)["history"] == [] and module.net[0].out_features == 6
    trainer.validate(module, make_loader(), ckpt_path=tmp_path / "epoch=2.ckpt", verbose=False)
    assert firefly.architecture(module) == before
    assert "on_load_checkpoint" not in vars(Net)


def test_plateau_looks_at_a_logged_metric(tmp_path):
    callback = make_callback(schedule=firefly.Plateau(patience=1, threshold=9.0), monitor="loss_epoch")
    make_trainer(tmp_path, callback, max_epochs=3).fit(make_net(), make_loader())
    assert len(callback.history) == 1
    callback = make_callback(schedule=firefly.Plateau(), monitor="los")
    with pytest.raises(firefly.FireflyError, match=r"monitor='los' was not logged.*loss_epoch"):
        make_trainer(tmp_path, callback, max_epochs=3).fit(make_net(), make_loader())


def test_steps_can_be_counted(tmp_path):
    callback = make_callback(unit="step", schedule=firefly.Milestones(1, 5, 11))
    logger = lightning.loggers.CSVLogger(tmp_path)
    trainer = make_trainer(
        tmp_path, callback, max_epochs=3, logger=logger, accumulate_grad_batches=2, log_every_n_steps=4
    )
    trainer.fit(make_net(), make_loader())
    with open(tmp_path / "lightning_logs" / "version_0" / "metrics.csv") as file:
        logged = [int(float(row["firefly/parameters"])) for row in csv.DictReader(file) if row["firefly/parameters"]]
    assert [growth["parameters"][1] for growth in callback.history] == logged
    assert len(callback.history) == 1 and trainer.global_step == 6  # nothing after the last step
    with pytest.raises(firefly.FireflyError, match="unit='hour'"):
        make_callback(unit="hour")


def test_by_steps_a_metric_is_asked_for_after_each_validation(tmp_path):
    plateau = firefly.Plateau(patience=2, threshold=9.0)
    callback = make_callback(unit="step", schedule=plateau, monitor="accuracy")
    trainer = make_trainer(tmp_path, callback, max_epochs=3, val_check_interval=2)
    trainer.fit(make_net(), make_loader(), make_loader())
    assert len(callback.history) == 1  # after the third of six validations; the sixth is after the last step


class Pair(Net):
    def __init__(self):
        super().__init__()
        self.head = nn.Linear(3, 3)

    def training_step(self, batch, batch_idx):
        return super().training_step([self.head(self.net(batch[0])) @ torch.ones(3, 4), batch[1]], 0)


class Manual(Net):
    automatic_optimization = False

    def training_step(self, batch, batch_idx):
        return None


@pytest.mark.parametrize(("kind", "match"), [(Pair, "several networks .net, head."), (Manual, "FireflyCallback.loss=")])
def test_steps_that_cannot_be_understood_are_refused(tmp_path, kind, match):
    with pytest.raises(firefly.FireflyError, match=match):
        make_trainer(tmp_path, make_callback(), max_epochs=3, gradient_clip_val=None).fit(kind(), make_loader())


def test_a_network_can_be_named(tmp_path):
    module = Pair()
    callback = make_callback(network="net", example=torch.randn(4, 4))
    make_trainer(tmp_path, callback, max_epochs=3).fit(module, make_loader())
    assert callback.history[0]["parameters"][1] > callback.history[0]["parameters"][0]
    assert module.head.in_features == 3


class Twins(Net):
    """What forward runs has an average and a teacher beside it, in the module itself."""

    def __init__(self):
        super().__init__()
        self.average, self.teacher = AveragedModel(self.net), copy.deepcopy(self.net)

    def forward(self, x):
        return self.net(x)

    def training_step(self, batch, batch_idx):
        return F.mse_loss(self(batch[0]), self.teacher(batch[0]).detach() + 1)

    def on_train_batch_end(self, *args):
        self.average.update_parameters(self.net)


class Averaged(Twins):
    """What forward runs is what is averaged: that grows, whichever of the two the step calls."""

    def __init__(self):
        super().__init__()
        del self.teacher

    def training_step(self, batch, batch_idx):
        return F.cross_entropy(self(batch[0]), batch[1])


@pytest.mark.parametrize(("kind", "options"), [(Averaged, {}), (Twins, {"network": "net", "also": ["teacher"]})])
def test_averages_and_teachers_in_the_module_grow_along(tmp_path, kind, options):
    module = kind()
    trainer = make_trainer(tmp_path, make_callback(**options), max_epochs=3)
    trainer.fit(module, make_loader())
    shapes = [p.shape for p in module.net.parameters()]
    twins = [module.average.module, *([module.teacher] if "also" in options else [])]
    assert shapes != [p.shape for p in make_net().parameters()]
    assert all([p.shape for p in twin.parameters()] == shapes for twin in twins)
    trainer.validate(module, make_loader(), ckpt_path=tmp_path / "epoch=0.ckpt", verbose=False)
    assert [p.shape for p in module.parameters()] == [p.shape for p in kind().parameters()]


def test_an_average_of_a_part_is_refused(tmp_path):
    class Part(Pair):
        def __init__(self):
            super().__init__()
            self.average = AveragedModel(self.net)

        def forward(self, x):
            return self.head(self.net(x))

        def training_step(self, batch, batch_idx):
            return F.cross_entropy(self(batch[0]), batch[1])

    with pytest.raises(firefly.FireflyError, match="average of net alone"):
        make_trainer(tmp_path, make_callback(), max_epochs=3).fit(Part(), make_loader())


def test_wrong_options_are_refused_at_once():
    with pytest.raises(firefly.FireflyError, match="schedule=5"):
        make_callback(schedule=5)


def test_metrics_count_no_growth(tmp_path):
    torchmetrics = pytest.importorskip("torchmetrics")

    class Counting(Net):
        def __init__(self):
            super().__init__()
            self.seen = torchmetrics.SumMetric()

        def training_step(self, batch, batch_idx):
            self.seen.update(1.0)  # adds in place
            return super().training_step(batch, batch_idx)

    module, callback = Counting(), make_callback()
    make_trainer(tmp_path, callback, max_epochs=3).fit(module, make_loader())
    assert len(callback.history) == 1 and module.seen.sum_value == 12


def test_pytorch_lightning_is_the_same(tmp_path):
    other = pytest.importorskip("pytorch_lightning")
    module = type("Net", (other.LightningModule,), {**vars(Net)})  # the same methods on the other package's class
    module.__init__ = init_other(other)
    callback = make_callback()
    trainer = make_trainer(tmp_path, callback, of=other, max_epochs=3)
    trainer.fit(module(), make_loader())
    assert len(callback.history) == 1
    loaded = load_from_checkpoint(module, tmp_path / "epoch=2.ckpt")
    assert firefly.architecture(loaded)["history"] and (tmp_path / "epoch=2.ckpt").exists()


def init_other(other):
    def __init__(self):
        other.LightningModule.__init__(self)
        self.net = nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 3))

    return __init__


@pytest.mark.slow
def test_two_ranks_grow_and_train_as_one(tmp_path):
    script = Path(__file__).parent / "lit_ranks.py"
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, script, str(tmp_path)], env=environment, capture_output=True, text=True, timeout=280
    )
    assert done.returncode == 0, done.stdout + done.stderr
    one, other = (dict(torch.load(tmp_path / f"rank {rank}.pt")) for rank in (0, 1))
    assert one["net.0.weight"].shape[0] + one["net.3.weight"].shape[0] == 12 + 3
    weights = [name for name in one if "running" not in name]  # each rank has statistics of its own batches
    assert all(same(one[name], other[name]) for name in weights)
