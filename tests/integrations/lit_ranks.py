"""A script that Lightning starts once for each rank: fit with growth, then each rank writes down what it has."""

import sys
from pathlib import Path

import torch
from lit import make_callback, make_loader, make_net, make_trainer

if __name__ == "__main__":
    folder = Path(sys.argv[1])
    module = make_net()
    trainer = make_trainer(folder, make_callback(), max_epochs=4, strategy="ddp", devices=2, precision="32-true")
    trainer.fit(module, make_loader())
    torch.save(module.state_dict(), folder / f"rank {trainer.global_rank}.pt")
