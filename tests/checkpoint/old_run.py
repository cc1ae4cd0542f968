"""The run whose checkpoint by Firefly 0.1.0 lies in `version-0.1.0`: a small network, deepened, trained and grown."""

import torch
from torch import Tensor, nn

OUTPUTS = [-0.046065375, 0.522299647, -1.158932328]  # summed over the example, in eval mode


def make() -> nn.Sequential:
    torch.manual_seed(0)
    stem = nn.Sequential(nn.Conv2d(1, 3, 3, padding=1), nn.BatchNorm2d(3), nn.ReLU())
    return nn.Sequential(stem, nn.Conv2d(3, 3, 3, groups=3), nn.ReLU(), nn.Flatten(), nn.Linear(48, 3))


def example() -> Tensor:
    return torch.randn(4, 1, 6, 6, generator=torch.Generator().manual_seed(1))


def batches() -> list[tuple[Tensor, Tensor]]:
    generator = torch.Generator().manual_seed(2)
    return [(torch.randn(8, 1, 6, 6, generator=generator), torch.arange(8) % 3) for _ in range(4)]


def loss(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
    return nn.functional.cross_entropy(model(batch[0]), batch[1])
