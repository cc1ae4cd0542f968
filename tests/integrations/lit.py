"""A small Lightning module, its data, and trainers that write nothing but checkpoints."""

import lightning.pytorch as lightning
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import firefly
from firefly.integrations.lightning import FireflyCallback

torch.set_num_threads(1)


class Net(lightning.LightningModule):
    def __init__(self, hidden=6):
        super().__init__()
        self.save_hyperparameters()
        self.net = nn.Sequential(
            nn.Linear(4, hidden), nn.BatchNorm1d(hidden), nn.ReLU(), nn.Linear(hidden, hidden), nn.ReLU(),
            nn.Linear(hidden, 3),
        )  # fmt: skip

    def training_step(self, batch, batch_idx):
        x, y = batch
        loss = F.cross_entropy(self.net(x), y)
        self.log("loss", loss, on_step=True, on_epoch=True)
        return loss

    def validation_step(self, batch, batch_idx):
        self.log("accuracy", (self.net(batch[0]).argmax(1) == batch[1]).float().mean())

    def configure_optimizers(self):
        optimizer = torch.optim.AdamW(self.parameters(), 0.01)
        return [optimizer], [torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 8)]


def make_loader():
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(64, 4, generator=generator)
    y = (x @ torch.randn(4, 3, generator=generator)).argmax(1)
    return DataLoader(TensorDataset(x, y), 16)


def make_callback(**options):
    return FireflyCallback(**{"schedule": firefly.Every(2), "steps": 4, "budget": firefly.Neurons(3)} | options)


def make_trainer(folder, *callbacks, of=lightning, **options):
    quiet = {"logger": False, "enable_progress_bar": False, "enable_model_summary": False, "accelerator": "cpu"}
    save = of.callbacks.ModelCheckpoint(folder, "{epoch}", save_top_k=-1)
    given = quiet | {"max_epochs": 6, "precision": "bf16-mixed", "gradient_clip_val": 0.5} | options
    return of.Trainer(callbacks=[*callbacks, save], default_root_dir=folder, **given)


def make_net():
    torch.manual_seed(0)
    return Net()
