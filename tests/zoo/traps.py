"""Forwards that a width must not outgrow: whatever a trace offers there has to survive being grown."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from zoo.entry import IMAGES, VECTORS, specimen
from zoo.transformers import FusedAttention, ViT, ViTBlock


@specimen("literal_view", IMAGES, grows={"fc": 10}, pinned={"head": "output"})
class LiteralView(nn.Module):
    """The number of features is written into forward: more channels would be taken for more images."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 6, 3, stride=2, padding=1)
        self.fc, self.head = nn.Linear(96, 10), nn.Linear(10, 4)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.relu(self.conv(x)).view(-1, 96)
        return self.head(torch.relu(self.fc(x)))


@specimen("computed_view", IMAGES, grows={"fc": 10}, pinned={"head": "output"}, either={"conv": 6})
class ComputedView(nn.Module):
    """The same number, read off the tensor: a graph alone cannot tell it from a literal."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 6, 3, stride=2, padding=1)
        self.fc, self.head = nn.Linear(96, 10), nn.Linear(10, 4)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.relu(self.conv(x))
        x = x.view(x.size(0), x.size(1) * x.size(2) * x.size(3))
        return self.head(torch.relu(self.fc(x)))


class FixedAttention(FusedAttention):
    """The size of a head is the stream's width over the number of heads: more heads would be thinner heads."""

    def forward(self, x: Tensor) -> Tensor:
        B, N, C = x.shape
        q, k, v = self.qkv(x).reshape(B, N, 3, self.num_heads, C // self.num_heads).permute(2, 0, 3, 1, 4)
        return self.proj(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(B, N, C))


@specimen("fixed_heads", IMAGES, grows={"blocks.0.mlp.0": 24}, pinned={"patch": "layer norm", "head": "output"})
def fixed_heads() -> nn.Module:
    return ViT(16, ViTBlock(FixedAttention(16, 4), 16, 24))


@specimen("literal_slice", VECTORS, grows={"mix": 10}, pinned={"head": "output"})
class LiteralSlice(nn.Module):
    """The first 6 of 16 neurons gate, the other 10 are gated: what index 6 means depends on the width."""

    def __init__(self) -> None:
        super().__init__()
        self.fc, self.mix, self.head = nn.Linear(8, 16), nn.Linear(10, 10), nn.Linear(10, 4)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.tanh(self.fc(x))
        x = x[:, 6:] * x[:, :6].mean(1, keepdim=True)
        return self.head(torch.relu(self.mix(x)))


@specimen("buffer_scale", VECTORS, grows={"mix": 12}, pinned={"head": "output"}, either={"fc": 16})
class BufferScale(nn.Module):
    """A buffer with a value per neuron that no layer owns."""

    scale: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.fc, self.mix, self.head = nn.Linear(8, 16), nn.Linear(16, 12), nn.Linear(12, 4)
        self.register_buffer("scale", torch.linspace(0.5, 1.5, 16))

    def forward(self, x: Tensor) -> Tensor:
        x = torch.relu(self.fc(x)) * self.scale
        return self.head(torch.relu(self.mix(x)))


@specimen("constant_shift", VECTORS, grows={"mix": 12}, pinned={"head": "output"})
class ConstantShift(nn.Module):
    """A tensor of the width's size made inside forward cannot grow."""

    def __init__(self) -> None:
        super().__init__()
        self.fc, self.mix, self.head = nn.Linear(8, 16), nn.Linear(16, 12), nn.Linear(12, 4)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.relu(self.fc(x) + torch.linspace(-1, 1, 16, device=x.device, dtype=x.dtype))
        return self.head(torch.relu(self.mix(x)))


@specimen("cosine", VECTORS, grows={"fc1": 16})
class Cosine(nn.Module):
    """Features of length one against class vectors of length one: every neuron moves all the others."""

    def __init__(self) -> None:
        super().__init__()
        self.fc1, self.fc2 = nn.Linear(8, 16), nn.Linear(16, 10)
        self.classes = nn.Parameter(torch.randn(4, 10))

    def forward(self, x: Tensor) -> Tensor:
        x = F.normalize(self.fc2(torch.relu(self.fc1(x))), dim=-1)
        return 5 * x @ F.normalize(self.classes, dim=-1).t()
