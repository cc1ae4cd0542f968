"""Growth in Lightning runs that are resumed, changed, or train several networks."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader

import firefly

lightning = pytest.importorskip("lightning.pytorch")

from lit import Net, make_callback, make_loader, make_net, make_trainer  # noqa: E402

from checkpoint.runs import same  # noqa: E402
from firefly.integrations.lightning import load_from_checkpoint  # noqa: E402

pytestmark = [
    pytest.mark.filterwarnings("ignore:.*LeafSpec:FutureWarning"),
    pytest.mark.filterwarnings("ignore:.*does not have many workers:UserWarning"),
    pytest.mark.filterwarnings("ignore:.*but have no `val_dataloader`:UserWarning"),
    pytest.mark.filterwarnings("ignore:The dirpath has changed:UserWarning"),
    pytest.mark.filterwarnings("ignore:Be aware that when using `ckpt_path`:UserWarning"),
    pytest.mark.filterwarnings("ignore:.*Checkpoint directory .* exists:UserWarning"),
    pytest.mark.filterwarnings("ignore:.*lr_scheduler.step.*before.*optimizer.step:UserWarning"),
]


def fit(folder, callbacks, ckpt=None, net=make_net, validation=True, **options):
    module = net()
    trainer = make_trainer(folder, *callbacks, **{"max_epochs": 4} | options)
    trainer.fit(module, make_loader(), make_loader() if validation else None, ckpt_path=ckpt)
    return module


@pytest.mark.parametrize(("unit", "monitor"), [("epoch", "accuracy"), ("epoch", "loss_epoch"), ("step", "accuracy")])
def test_a_resumed_run_goes_on_with_the_metric(tmp_path, unit, monitor):
    def run(folder, ckpt=None):
        callback = make_callback(unit=unit, monitor=monitor, schedule=firefly.Plateau(patience=1, threshold=9.0))
        module = fit(folder, [callback], ckpt)
        return [growth["parameters"] for growth in callback.history], module.state_dict()

    one = run(tmp_path)
    assert len(one[0]) == 1
    for epoch in (0, 1):  # before the growth, and at the moment of it
        assert same(one, run(tmp_path / "resumed", tmp_path / f"epoch={epoch}.ckpt"))


def test_a_run_resumed_at_the_last_step_of_an_epoch_grows(tmp_path):
    def run(folder, ckpt=None):
        save = lightning.callbacks.ModelCheckpoint(folder / "steps", "{step}", save_top_k=-1, every_n_train_steps=4)
        return fit(folder, [make_callback(), save], ckpt, validation=False).state_dict()

    one = run(tmp_path)
    assert same(one, run(tmp_path / "resumed", tmp_path / "steps" / "step=8.ckpt"))
    assert one["net.0.weight"].shape != make_net().net[0].weight.shape


def test_a_run_is_resumed_with_another_schedule(tmp_path):
    fit(tmp_path, [make_callback(schedule=firefly.Every(1))], max_epochs=2)
    callback = make_callback(schedule=firefly.Plateau(patience=1, threshold=9.0), monitor="accuracy")
    fit(tmp_path / "other", [callback], tmp_path / "epoch=1.ckpt", max_epochs=6)
    assert len(callback.history) == 2  # the metric is known from the end of epoch 2 on; after 4 it has not improved
    with pytest.raises(firefly.FireflyError, match="name the one that is logged"):
        make_callback(schedule=firefly.Plateau())


class Watched(Net):
    """Notes what the trainer gives it, and not what a growth does."""

    def __init__(self):
        super().__init__()
        self.rows = []

    def training_step(self, batch, batch_idx):
        return F.cross_entropy(self.net(batch[0]), batch[1])

    def on_train_batch_start(self, batch, batch_idx):
        self.rows += batch[0][:, 0].tolist()


def test_a_growth_in_the_middle_of_a_pass_takes_nothing_from_it(tmp_path):
    module, callback = Watched(), make_callback(unit="step", schedule=firefly.Every(3))
    loader = DataLoader(make_loader().dataset, 16, num_workers=1, persistent_workers=True)
    make_trainer(tmp_path, callback, max_epochs=2).fit(module, loader)
    assert len(callback.history) == 2
    assert module.rows == 2 * loader.dataset.tensors[0][:, 0].tolist()


def test_a_compiled_module_grows(tmp_path):
    module, callback = Watched(), make_callback()
    make_trainer(tmp_path, callback).fit(torch.compile(module, backend="eager"), make_loader())
    assert len(callback.history) == 2 and module.net[0].out_features + module.net[3].out_features == 12 + 6


class Carrying(Net):
    def __init__(self):
        super().__init__()
        firefly.carry_architecture(self)


def test_a_module_that_carries_its_architecture_needs_nothing_else_to_load(tmp_path):
    average = lightning.callbacks.EMAWeightAveraging(decay=0.9)
    fit(tmp_path, [make_callback(), average], net=Carrying)
    path = tmp_path / "epoch=3.ckpt"
    loaded = Carrying.load_from_checkpoint(path)
    assert len(firefly.architecture(loaded)["history"]) == 1
    (found,) = make_trainer(tmp_path / "test").validate(Carrying(), make_loader(), ckpt_path=path, verbose=False)
    (known,) = make_trainer(tmp_path / "test").validate(loaded, make_loader(), verbose=False)
    assert found == known
    fit(tmp_path / "without", [], path, net=Carrying, max_epochs=5)
    fit(tmp_path / "with", [make_callback(), lightning.callbacks.EMAWeightAveraging()], path, Carrying, max_epochs=5)


class Gan(lightning.LightningModule):
    automatic_optimization = False

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.generator = nn.Sequential(nn.Linear(2, 6), nn.ReLU(), nn.Linear(6, 4))
        self.critic = nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.ReLU(), nn.Linear(6, 1))
        self.seen = []

    def compute_loss(self, batch):
        self.seen.append(len(batch[0]))
        return F.softplus(-self.critic(self.generator(batch[0][:, :2]))).mean()

    def compute_other(self, batch):
        return F.softplus(self.critic(self.generator(batch[0][:, :2]).detach())).mean() + self.critic(batch[0]).mean()

    def training_step(self, batch, batch_idx):
        for optimizer, loss in zip(self.optimizers(), (self.compute_loss(batch), self.compute_other(batch))):
            optimizer.zero_grad()
            self.manual_backward(loss, retain_graph=True)
        for optimizer in self.optimizers():
            optimizer.step()

    def configure_optimizers(self):
        return [torch.optim.Adam(part.parameters(), 0.01) for part in (self.generator, self.critic)]


def test_two_networks_grow_each_with_its_optimizer_and_nothing_else_is_touched(tmp_path):
    def make_callbacks():
        mine = make_callback(network="generator", loss=Gan.compute_loss, schedule=firefly.Milestones(0, 2))
        return mine, make_callback(network="critic", loss=Gan.compute_other, schedule=firefly.Milestones(1, 2))

    class Watch(lightning.Callback):
        def on_train_batch_start(self, trainer, module, *rest):
            if trainer.global_step == 8:  # of two optimisers, four batches: the generator has grown, the critic not yet
                assert module.generator[0].out_features > 6
                self.tracked = int(module.critic[1].num_batches_tracked), len(module.seen)

    plain, watch, callbacks = {"gradient_clip_val": None, "precision": "32-true"}, Watch(), make_callbacks()
    module = fit(tmp_path, [*callbacks, watch], net=Gan, max_epochs=3, validation=False, **plain)
    assert watch.tracked == (4 * 3, 4) and len(module.seen) == 12  # a growth of the other one leaves no trace
    assert [len(one.history) for one in callbacks] == [1, 1]
    loaded = load_from_checkpoint(Gan, tmp_path / "epoch=2.ckpt")
    assert loaded.generator[0].out_features > 6 and loaded.critic[1].num_features > 6
    resumed = make_callbacks()
    fit(tmp_path / "resumed", resumed, tmp_path / "epoch=2.ckpt", Gan, max_epochs=4, validation=False, **plain)
    assert [len(one.history) for one in resumed] == [2, 2]


def test_loading_takes_the_class_first(tmp_path):
    for wrong in ("last.ckpt", Net()):
        with pytest.raises(firefly.FireflyError, match="takes the class of the module first"):
            load_from_checkpoint(wrong, Net)
