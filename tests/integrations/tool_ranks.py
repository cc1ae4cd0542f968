"""A script for torchrun: one tool on several ranks; each rank writes down the weights that it has in the end."""

import os
import sys
from pathlib import Path

import torch
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

import firefly
from zoo import ZOO


def run_accelerate(folder):
    from accelerate import Accelerator

    generator = torch.Generator().manual_seed(0)
    data = TensorDataset(torch.randn(64, 8, generator=generator), torch.arange(64) % 4)

    def prepare():
        accelerator, model = Accelerator(cpu=True), firefly.carry_architecture(ZOO["mlp"].make())
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
        return accelerator, *accelerator.prepare(model, optimizer, DataLoader(data, 8))

    accelerator, model, optimizer, batches = prepare()
    grower = firefly.Firefly(model, data.tensors[0][:4], schedule=firefly.Every(1), steps=3, budget=firefly.Neurons(4))

    def loss(model, batch):
        return F.cross_entropy(model(batch[0]), batch[1])

    def train(accelerator, model, optimizer, batches):
        for batch in batches:
            accelerator.backward(loss(model, batch))
            optimizer.step()
            optimizer.zero_grad()

    for epoch in range(2):
        train(accelerator, model, optimizer, batches)
        if grower.due(epoch):
            grower.grow(loss, batches, optimizer)
    accelerator.save_state(folder / "state")
    train(accelerator, model, optimizer, batches)
    again, small, *rest = prepare()
    again.load_state(folder / "state")
    train(again, firefly.rewrap(small), *rest)
    assert all(map(torch.equal, model.parameters(), small.parameters()))
    return accelerator.unwrap_model(small)


def run_transformers(folder):
    from texts import add_growth, make_trainer

    trainer = make_trainer(folder, num_train_epochs=3, per_device_train_batch_size=4, save_strategy="no")
    add_growth(trainer)
    trainer.train()
    return trainer.model


if __name__ == "__main__":
    model = {"accelerate": run_accelerate, "transformers": run_transformers}[sys.argv[1]](Path(sys.argv[2]))
    rank = torch.distributed.get_rank()
    torch.save((len(firefly.architecture(model)["history"]), dict(model.state_dict())), f"{sys.argv[2]}/{rank}.pt")
    torch.distributed.destroy_process_group()
    os._exit(0)  # torch's threads abort a process now and then that ends by itself
