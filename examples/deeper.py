"""A network that grows deeper and wider: three thin convolutions learn handwritten digits (as in App. B.2, small).

    python examples/deeper.py

Dormant residual layers are put between the layers. They cost nothing and change nothing until a growth wakes them.
"""

import argparse

import torch
from torch import nn

import firefly
from firefly.vision import digits


def loss(model, batch):
    images, labels = batch
    return nn.functional.cross_entropy(model(images), labels)


def block(inputs: int, outputs: int) -> list[nn.Module]:
    return [nn.Conv2d(inputs, outputs, 3, stride=2, padding=1), nn.BatchNorm2d(outputs), nn.ReLU()]


def main(epochs: int, images: int, report: str | None) -> list[dict]:
    torch.manual_seed(0)
    x, y, test_x, test_y = digits.load()  # 14 x 14 pixels, shipped with the package
    batches = list(zip(x[:images].split(100), y[:images].split(100)))

    model = nn.Sequential(*block(1, 4), *block(4, 4), *block(4, 4), nn.Flatten(), nn.Linear(4 * 4, 10))
    layers = firefly.deepen(model, x[:2], count=3)  # <- three dormant layers in each of three places
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    grower = firefly.Firefly(
        model,
        x[:2],
        neighborhood=[firefly.Split(), firefly.New(8)],
        budget=firefly.Neurons(12) & firefly.Layers(2),  # <- at most two new layers in each growth
        schedule=firefly.Every(2, times=3),
    )
    print(f"{len(layers)} dormant layers: {', '.join(layers)}")

    for epoch in range(epochs):
        for batch in batches:
            optimizer.zero_grad()
            value = loss(model, batch)
            value.backward()
            optimizer.step()
        print(f"epoch {epoch + 1}: loss {value.item():.3f}")
        if grower.due(epoch):
            print(grower.grow(loss, batches, optimizer))

    model.eval()
    with torch.no_grad():
        accuracy = (model(test_x).argmax(1) == test_y).float().mean().item()
    print(f"test accuracy {accuracy:.2%} with {sum(p.numel() for p in model.parameters()):,} parameters")
    if report:
        from firefly.report import write

        print(write(report, grower.history))
    return grower.history


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--epochs", type=int, default=8)
    parser.add_argument("--images", type=int, default=2000)
    parser.add_argument("--report", help="a folder for a page with pictures of the network")
    main(**vars(parser.parse_args()))
