"""Transformers: images and text, heads of every make."""

import math
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from zoo.entry import IMAGES, TEXT, specimen


class FusedAttention(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.num_heads, self.head_dim = heads, width // heads
        self.qkv = nn.Linear(width, 3 * width)
        self.proj = nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        B, N, _ = x.shape
        qkv = self.qkv(x).reshape(B, N, 3, self.num_heads, self.head_dim).permute(2, 0, 3, 1, 4)
        q, k, v = qkv.unbind(0)
        x = F.scaled_dot_product_attention(q, k, v)
        return self.proj(x.transpose(1, 2).flatten(2))


class ViTBlock(nn.Module):
    def __init__(self, attn: nn.Module, width: int, hidden: int) -> None:
        super().__init__()
        self.norm1, self.attn, self.norm2 = nn.LayerNorm(width), attn, nn.LayerNorm(width)
        self.mlp = nn.Sequential(nn.Linear(width, hidden), nn.GELU(), nn.Linear(hidden, width))

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attn(self.norm1(x))
        return x + self.mlp(self.norm2(x))


class ViT(nn.Module):
    """Patches, a class token and positions; the blocks are given."""

    def __init__(self, width: int, *blocks: nn.Module) -> None:
        super().__init__()
        self.patch = nn.Conv2d(3, width, 4, stride=4)
        self.cls = nn.Parameter(torch.randn(1, 1, width) / 10)
        self.pos = nn.Parameter(torch.randn(1, 5, width) / 10)
        self.blocks = nn.Sequential(*blocks)
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, 4)

    def forward(self, x: Tensor) -> Tensor:
        x = self.patch(x).flatten(2).transpose(1, 2)
        x = torch.cat([self.cls.expand(x.shape[0], -1, -1), x], dim=1) + self.pos
        return self.head(self.norm(self.blocks(x))[:, 0])


@specimen(
    "vit",
    IMAGES,
    grows={"blocks.0.attn.qkv": 4, "blocks.0.mlp.0": 24, "blocks.1.attn.qkv": 2, "blocks.1.mlp.0": 24},
    pinned={"patch": "layer norm", "head": "output"},
)
def vit() -> nn.Module:
    return ViT(16, ViTBlock(FusedAttention(16, 4), 16, 24), ViTBlock(FusedAttention(16, 2), 16, 24))


class TorchAttention(nn.MultiheadAttention):
    def forward(self, x: Tensor) -> Tensor:  # type: ignore[override]
        return super().forward(x, x, x, need_weights=False)[0]


@specimen("vit_own_multihead", IMAGES, grows={"blocks.0.mlp.0": 24}, pinned={"patch": "layer norm", "head": "output"})
def vit_own_multihead() -> nn.Module:
    """A subclass may do anything in its forward, so that its heads stay."""
    return ViT(16, ViTBlock(TorchAttention(16, 4, batch_first=True), 16, 24))


class MultiheadBlock(nn.Module):
    """nn.MultiheadAttention as it comes: from itself, then from fewer features of the image."""

    def __init__(self) -> None:
        super().__init__()
        self.norm1, self.norm2, self.few = nn.LayerNorm(16), nn.LayerNorm(16), nn.Linear(16, 6)
        self.itself = nn.MultiheadAttention(16, 4, batch_first=True)
        self.other = nn.MultiheadAttention(16, 2, add_bias_kv=True, add_zero_attn=True, kdim=6, vdim=6, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        y = self.norm1(x)
        x = x + self.itself(y, y, y, need_weights=False)[0]
        y, few = self.norm2(x).transpose(0, 1), torch.tanh(self.few(x)).transpose(0, 1)
        mask = torch.ones(len(y), len(y), dtype=torch.bool, device=x.device).triu(3)
        return x + self.other(y, few, few, attn_mask=mask)[0].transpose(0, 1)


@specimen(
    "vit_multihead",
    IMAGES,
    grows={"blocks.0.itself": 4, "blocks.0.few": 6, "blocks.0.other": 2},
    pinned={"patch": "layer norm", "head": "output"},
)
def vit_multihead() -> nn.Module:
    return ViT(16, MultiheadBlock())


@specimen(
    "vit_encoder_layer",
    IMAGES,
    grows={"blocks.0.self_attn": 2, "blocks.0.linear1": 20, "blocks.1.self_attn": 4, "blocks.1.linear1": 24},
    pinned={"patch": "layer norm", "head": "output"},
)
def vit_encoder_layer() -> nn.Module:
    post = nn.TransformerEncoderLayer(16, 4, 24, dropout=0.0, batch_first=True)
    pre = nn.TransformerEncoderLayer(16, 2, 20, dropout=0.1, activation="gelu", batch_first=True, norm_first=True)
    return ViT(16, pre, post)


class CausalAttention(nn.Module):
    mask: Tensor

    def __init__(self, width: int, n_head: int, length: int) -> None:
        super().__init__()
        self.n_head = n_head
        self.q, self.k, self.v = nn.Linear(width, width), nn.Linear(width, width), nn.Linear(width, width)
        self.proj = nn.Linear(width, width)
        self.register_buffer("mask", torch.tril(torch.ones(length, length)).bool())

    def forward(self, x: Tensor) -> Tensor:
        B, T, _ = x.shape
        q = self.q(x).view(B, T, self.n_head, -1).transpose(1, 2)
        k = self.k(x).view(B, T, self.n_head, -1).transpose(1, 2)
        v = self.v(x).view(B, T, self.n_head, -1).transpose(1, 2)
        scores = torch.matmul(q, k.transpose(-2, -1)) / math.sqrt(q.size(-1))
        scores = scores.masked_fill(~self.mask[:T, :T], float("-inf"))
        y = torch.matmul(F.softmax(scores, dim=-1), v)
        return self.proj(y.transpose(1, 2).contiguous().view(B, T, -1))


class GPTBlock(nn.Module):
    def __init__(self, width: int, n_head: int, hidden: int, length: int) -> None:
        super().__init__()
        self.ln1, self.ln2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attn = CausalAttention(width, n_head, length)
        self.fc, self.proj = nn.Linear(width, hidden), nn.Linear(hidden, width)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attn(self.ln1(x))
        return x + self.proj(F.gelu(self.fc(self.ln2(x)), approximate="tanh"))


@specimen(
    "gpt",
    TEXT,
    grows={"blocks.0.attn.q": 4, "blocks.0.fc": 32, "blocks.1.attn.q": 4, "blocks.1.fc": 32},
    pinned={"wte": "layer norm"},
)
class GPT(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.wte, self.wpe = nn.Embedding(11, 16), nn.Embedding(10, 16)
        self.blocks = nn.ModuleList(GPTBlock(16, n_head=4, hidden=32, length=10) for _ in range(2))
        self.norm = nn.LayerNorm(16)
        self.lm_head = nn.Linear(16, 11, bias=False)
        self.lm_head.weight = self.wte.weight

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.wte(tokens) + self.wpe(torch.arange(tokens.size(1), device=tokens.device))
        for block in self.blocks:
            x = block(x)
        return self.lm_head(self.norm(x))


class RMSNorm(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x: Tensor) -> Tensor:
        return self.weight * x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-5)


def interleave(x: Tensor, times: int) -> Tensor:
    return x.repeat_interleave(times, dim=1)


def expand(x: Tensor, times: int) -> Tensor:
    B, _, T, D = x.shape
    return x[:, :, None].expand(-1, -1, times, -1, -1).reshape(B, -1, T, D)


class GroupedAttention(nn.Module):
    """Two query heads per key-value head; a neuron, if any, is one key-value head with its queries."""

    cos: Tensor
    sin: Tensor

    def __init__(self, width: int, repeat: Callable[[Tensor, int], Tensor]) -> None:
        super().__init__()
        self.n_head, self.n_kv_head, self.head_dim, self.repeat = 4, 2, width // 4, repeat
        self.q = nn.Linear(width, self.n_head * self.head_dim, bias=False)
        self.k = nn.Linear(width, self.n_kv_head * self.head_dim, bias=False)
        self.v = nn.Linear(width, self.n_kv_head * self.head_dim, bias=False)
        self.o = nn.Linear(self.n_head * self.head_dim, width, bias=False)
        angle = torch.arange(10)[:, None] / 10 ** torch.linspace(0, 1, self.head_dim // 2)
        self.register_buffer("cos", angle.cos())  # (positions, head_dim / 2)
        self.register_buffer("sin", angle.sin())

    def rotate(self, x: Tensor) -> Tensor:
        cos, sin = self.cos[: x.size(2)], self.sin[: x.size(2)]
        left, right = x.chunk(2, dim=-1)
        return torch.cat([left * cos - right * sin, right * cos + left * sin], dim=-1)

    def forward(self, x: Tensor) -> Tensor:
        B, T, _ = x.shape
        q = self.rotate(self.q(x).view(B, T, self.n_head, self.head_dim).transpose(1, 2))
        k = self.rotate(self.k(x).view(B, T, self.n_kv_head, self.head_dim).transpose(1, 2))
        v = self.v(x).view(B, T, self.n_kv_head, self.head_dim).transpose(1, 2)
        k, v = self.repeat(k, 2), self.repeat(v, 2)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.o(y.transpose(1, 2).reshape(B, T, -1))


class LlamaBlock(nn.Module):
    def __init__(self, width: int, hidden: int, repeat: Callable[[Tensor, int], Tensor]) -> None:
        super().__init__()
        self.attn, self.norm1, self.norm2 = GroupedAttention(width, repeat), RMSNorm(width), RMSNorm(width)
        self.gate, self.up = nn.Linear(width, hidden, bias=False), nn.Linear(width, hidden, bias=False)
        self.down = nn.Linear(hidden, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attn(self.norm1(x))
        y = self.norm2(x)
        return x + self.down(F.silu(self.gate(y)) * self.up(y))


class Llama(nn.Module):
    def __init__(self, repeat: Callable[[Tensor, int], Tensor]) -> None:
        super().__init__()
        self.embed = nn.Embedding(11, 16)
        self.blocks = nn.ModuleList([LlamaBlock(16, 24, repeat)])
        self.norm = RMSNorm(16)
        self.head = nn.Linear(16, 11, bias=False)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embed(tokens)
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


@specimen(
    "llama",
    TEXT,
    grows={"blocks.0.gate": 24},
    pinned={"embed": "RMS norm", "head": "output"},
    either={"blocks.0.attn.q": 2},
)
def llama() -> nn.Module:
    return Llama(interleave)


@specimen(
    "llama_expand",
    TEXT,
    grows={"blocks.0.gate": 24},
    pinned={"embed": "RMS norm", "head": "output"},
    either={"blocks.0.attn.q": 2},
)
def llama_expand() -> nn.Module:
    return Llama(expand)
