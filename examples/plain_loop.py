"""A whole training script with growth in it: a thin network learns handwritten digits and becomes wider on the way.

    python examples/plain_loop.py

Only the lines marked with # <- are about growth; the rest is an ordinary PyTorch training loop.
"""

import argparse

import torch
from torch import nn

import firefly
from firefly.vision import digits


def loss(model, batch):
    images, labels = batch
    return nn.functional.cross_entropy(model(images), labels)


def main(epochs: int, images: int) -> float:
    torch.manual_seed(0)
    x, y, test_x, test_y = digits.load()  # 14 x 14 pixels, shipped with the package
    batches = list(zip(x[:images].split(100), y[:images].split(100)))

    model = nn.Sequential(
        *(nn.Conv2d(1, 3, 3, padding=1), nn.BatchNorm2d(3), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Conv2d(3, 3, 3, padding=1), nn.BatchNorm2d(3), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Flatten(), nn.Linear(3 * 9, 10)),
    )
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, epochs)

    grower = firefly.Firefly(  # <- what may grow, how much, and when
        model,
        x[:2],
        neighborhood=[firefly.Split(), firefly.New(8)],
        budget=firefly.Parameters(fraction=0.5),
        schedule=firefly.Every(2, times=2),
    )
    print(grower.anatomy)  # <- the widths that were found

    for epoch in range(epochs):
        for batch in batches:
            optimizer.zero_grad()
            value = loss(model, batch)
            value.backward()
            optimizer.step()
        scheduler.step()
        print(f"epoch {epoch + 1}: loss {value.item():.3f}")
        if grower.due(epoch):  # <-
            print(grower.grow(loss, batches, optimizer))  # <- the same model and optimizer objects go on

    model.eval()
    with torch.no_grad():
        accuracy = (model(test_x).argmax(1) == test_y).float().mean().item()
    print(f"test accuracy {accuracy:.2%} with {sum(p.numel() for p in model.parameters()):,} parameters")
    return accuracy


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--epochs", type=int, default=8)
    parser.add_argument("--images", type=int, default=6000)
    main(**vars(parser.parse_args()))
