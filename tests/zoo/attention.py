"""Heads however they are cut: fused, chunked, indexed, one for all queries, with biases of their own."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from zoo.entry import IMAGES, TEXT, specimen
from zoo.transformers import GPTBlock, ViT, ViTBlock


class ChunkedAttention(nn.Module):
    """qkv in three chunks, heads into the batch and back, scores by bmm, a learnt bias for every head."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads, self.size = heads, width // heads
        self.qkv, self.proj = nn.Linear(width, 3 * width, bias=False), nn.Linear(width, width)
        self.bias = nn.Parameter(torch.randn(heads, 5, 5) / 5)

    def forward(self, x: Tensor) -> Tensor:
        B, N, _ = x.shape
        q, k, v = (
            part.reshape(B, N, self.heads, self.size).transpose(1, 2).reshape(B * self.heads, N, self.size)
            for part in self.qkv(x).chunk(3, dim=-1)
        )
        scores = torch.bmm(q * self.size**-0.5, k.transpose(1, 2)).view(B, self.heads, N, N) + self.bias
        y = torch.bmm(scores.softmax(-1).view(B * self.heads, N, N), v)
        return self.proj(y.view(B, self.heads, N, self.size).transpose(1, 2).flatten(2))


class IndexedAttention(nn.Module):
    """Heads before q, k, v in the fused rows; a table of biases by relative place, with a column for every head."""

    places: Tensor

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.num_heads, self.head_dim = heads, width // heads
        self.qkv, self.proj = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.table = nn.Parameter(torch.randn(9, heads) / 3)
        self.register_buffer("places", torch.arange(5)[:, None] - torch.arange(5) + 4)

    def forward(self, x: Tensor) -> Tensor:
        B, N, _ = x.shape
        qkv = self.qkv(x).view(B, N, self.num_heads, 3, self.head_dim).permute(3, 0, 2, 1, 4)
        q, k, v = qkv[0], qkv[1], qkv[2]
        bias = self.table[self.places.view(-1)].view(N, N, -1).permute(2, 0, 1).unsqueeze(0)
        scores = (q @ k.transpose(-2, -1)) * self.head_dim**-0.5 + bias
        return self.proj((scores.softmax(dim=-1) @ v).transpose(1, 2).reshape(B, N, -1))


@specimen(
    "vit_fused",
    IMAGES,
    grows={"blocks.0.attn.qkv": 4, "blocks.0.mlp.0": 24, "blocks.1.attn.qkv": 2, "blocks.1.mlp.0": 24},
    pinned={"patch": "layer norm", "head": "output"},
)
def vit_fused() -> nn.Module:
    return ViT(16, ViTBlock(ChunkedAttention(16, 4), 16, 24), ViTBlock(IndexedAttention(16, 2), 16, 24))


class SingleAttention(nn.Module):
    """Four heads of queries share one of keys and values: a neuron is the one with its four."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.queries, self.size = 4, width // 4
        self.q, self.o = nn.Linear(width, width), nn.Linear(width, width)
        self.kv = nn.Linear(width, 2 * self.size)

    def forward(self, x: Tensor) -> Tensor:
        shape = (*x.shape[:-1], -1, self.size)
        k, v = (part.view(shape).transpose(1, 2) for part in self.kv(x).chunk(2, -1))
        k, v = (part.repeat_interleave(self.queries, dim=1) for part in (k, v))
        y = F.scaled_dot_product_attention(self.q(x).view(shape).transpose(1, 2), k, v, is_causal=True)
        return self.o(y.transpose(1, 2).flatten(2))


class SharedAttention(nn.Module):
    """Queries alone have heads; keys and values stretch over them."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.q, self.o = nn.Linear(width, width), nn.Linear(width, width)
        self.k, self.v = nn.Linear(width, width // heads), nn.Linear(width, width // heads)

    def forward(self, x: Tensor) -> Tensor:
        q = self.q(x).unflatten(-1, (self.heads, -1)).transpose(1, 2)
        k, v = self.k(x).unsqueeze(1), self.v(x).unsqueeze(1)
        scores = q @ k.transpose(-2, -1) / q.shape[-1] ** 0.5
        return self.o((scores.softmax(-1) @ v).transpose(1, 2).flatten(2))


class Queries(nn.Module):
    """A language model with both ways of having more queries than keys."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.norm, self.head = nn.Embedding(11, 16), nn.LayerNorm(16), nn.Linear(16, 11)
        self.blocks = nn.ModuleList(GPTBlock(16, 4, 24, 10) for _ in range(2))
        self.blocks[0].attn, self.blocks[1].attn = SingleAttention(16), SharedAttention(16, 2)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embed(tokens)
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


specimen(
    "multi_query",
    TEXT,
    grows={"blocks.0.attn.kv": 1, "blocks.0.fc": 24, "blocks.1.attn.q": 2, "blocks.1.fc": 24},
    pinned={"embed": "layer norm", "head": "output"},
)(Queries)


class CrossAttention(nn.Module):
    """Attention to other words, with a table of biases for every head, or with none: then zeros."""

    def __init__(self, width: int, heads: int, biased: bool) -> None:
        super().__init__()
        self.heads, self.size = heads, width // heads
        self.q, self.k, self.v = (nn.Linear(width, width, bias=False) for _ in range(3))
        self.o = nn.Linear(width, width, bias=False)
        self.bias = nn.Embedding(15, heads) if biased else None

    def forward(self, x: Tensor, other: Tensor) -> Tensor:
        q, k, v = (
            layer(y).view(len(x), -1, self.heads, self.size).transpose(1, 2)
            for layer, y in ((self.q, x), (self.k, other), (self.v, other))
        )
        scores = q @ k.transpose(2, 3)
        if self.bias is None:
            bias = torch.zeros(1, self.heads, x.shape[1], other.shape[1], dtype=x.dtype, device=x.device)
        else:
            near = torch.arange(x.shape[1], device=x.device)[:, None] - torch.arange(other.shape[1], device=x.device)
            bias = self.bias(near + 7).permute(2, 0, 1).unsqueeze(0)
        return self.o((scores + bias).softmax(-1).matmul(v).transpose(1, 2).reshape(len(x), -1, self.heads * self.size))


@specimen(
    "cross_attention",
    TEXT,
    grows={"itself.q": 4, "other.q": 2},
    pinned={"embed": "layer norm", "head": "output"},
)
class Translator(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed, self.norm, self.head = nn.Embedding(11, 16), nn.LayerNorm(16), nn.Linear(16, 11)
        self.itself, self.other = CrossAttention(16, 4, biased=True), CrossAttention(16, 2, biased=False)

    def forward(self, tokens: Tensor) -> Tensor:
        words = self.norm(self.embed(tokens))
        x = words + self.itself(words, words)
        return self.head(self.norm(x + self.other(self.norm(x), words)))
