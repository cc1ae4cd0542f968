"""A script for torchrun: one tool on several ranks; each rank writes down the weights that it has in the end."""

import sys
from pathlib import Path

import torch
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

import firefly
from zoo import ZOO


def run_accelerate(folder):
    from accelerate import Accelerator

    accelerator = Accelerator(cpu=True)
    model = firefly.carry_architecture(ZOO["mlp"].make())
    generator = torch.Generator().manual_seed(0)
    data = TensorDataset(torch.randn(64, 8, generator=generator), torch.arange(64) % 4)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    model, optimizer, batches = accelerator.prepare(model, optimizer, DataLoader(data, 8))
    grower = firefly.Firefly(model, data.tensors[0][:4], schedule=firefly.Every(1), steps=3, budget=firefly.Neurons(4))

    def loss(model, batch):
        return F.cross_entropy(model(batch[0]), batch[1])

    for epoch in range(3):
        for batch in batches:
            accelerator.backward(loss(model, batch))
            optimizer.step()
            optimizer.zero_grad()
        if grower.due(epoch):
            grower.grow(loss, batches, optimizer)
    return accelerator.unwrap_model(model)


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
