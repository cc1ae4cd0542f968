"""Four small networks and streams of small tasks, on which the promise of continual learning is tested."""

from __future__ import annotations

import hashlib
from collections.abc import Callable

import torch
from torch import Generator, Tensor, nn

import firefly
from firefly.continual import Master
from firefly.training import Recipe

Data = tuple[Tensor, Tensor]
CLASSES = (3, 2, 5, 4, 2, 3)  # of six tasks
RECIPE = Recipe(1, batch=16, lr=0.05, momentum=0.9, weight_decay=0.1, augment=False, device="cpu")
EXAMPLE = torch.zeros(2, 1, 6, 6)


def make_mlp(classes: int) -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(36, 5), nn.ReLU(), nn.Linear(5, 4), nn.Tanh(), nn.Linear(4, classes))


def make_vgg(classes: int) -> nn.Module:
    first = [nn.Conv2d(1, 4, 3, padding=1, bias=False), nn.BatchNorm2d(4), nn.ReLU(), nn.MaxPool2d(2)]
    second = [nn.Conv2d(4, 5, 3, padding=1, bias=False), nn.BatchNorm2d(5), nn.ReLU()]
    return nn.Sequential(*first, *second, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(5, classes))


class ResNet(nn.Module):
    """Its stem and the second convolution of the block make the same width."""

    def __init__(self, classes: int) -> None:
        super().__init__()
        self.stem, self.norm = nn.Conv2d(1, 4, 3, padding=1, bias=False), nn.BatchNorm2d(4)
        self.one, self.norm1 = nn.Conv2d(4, 3, 3, padding=1), nn.BatchNorm2d(3)
        self.two, self.norm2 = nn.Conv2d(3, 4, 3, padding=1, bias=False), nn.BatchNorm2d(4)
        self.head = nn.Linear(4, classes)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.relu(self.norm(self.stem(x)))
        x = torch.relu(x + self.norm2(self.two(torch.relu(self.norm1(self.one(x))))))
        return self.head(x.mean((2, 3)))


def make_depthwise(classes: int) -> nn.Module:
    stem = [nn.Conv2d(1, 4, 3, padding=1, bias=False), nn.BatchNorm2d(4), nn.ReLU()]
    deep = [nn.Conv2d(4, 4, 3, padding=1, groups=4), nn.BatchNorm2d(4), nn.ReLU(), nn.Conv2d(4, 6, 1), nn.ReLU()]
    return nn.Sequential(*stem, *deep, nn.Flatten(), nn.Linear(6 * 36, classes))


NETS: dict[str, Callable[[int], nn.Module]] = {
    "mlp": make_mlp,
    "vgg": make_vgg,
    "resnet": ResNet,
    "depthwise": make_depthwise,
}


def draw_task(number: int, count: int = 48) -> Data:
    """Noisy copies of one picture per class."""
    generator, classes = Generator().manual_seed(number), CLASSES[number % len(CLASSES)]
    pictures = torch.randn(classes, 1, 6, 6, generator=generator)
    labels = torch.arange(count) % classes
    return pictures[labels] + 0.5 * torch.randn(count, 1, 6, 6, generator=generator), labels


def learn_task(master: Master, number: int, pick: str = "all", **how: object) -> None:
    options: dict[str, object] = {"budget": firefly.Neurons(4), "steps": 3, "evaluate_on": 1, "recipe": RECIPE, **how}
    train, valid = draw_task(number), draw_task(number, 12)
    classes = CLASSES[number % len(CLASSES)]
    master.learn(f"task {number}", train, valid, classes=classes, pick=pick, seed=number, **options)


@torch.no_grad()
def hash_logits(model: nn.Module) -> str:
    images = torch.randn(7, 1, 6, 6, generator=Generator().manual_seed(99))
    return hashlib.sha256(model.eval()(images).numpy().tobytes()).hexdigest()
