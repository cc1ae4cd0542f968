"""A small GPT that reads letters, and the text that comes with Python: of `find_pays.py` and `growth_pays.py`."""

from pydoc_data.topics import topics
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from firefly.training.resident import upload

Pair = tuple[Tensor, Tensor]


class Block(nn.Module):
    """Causal attention and an MLP, each behind a layer norm; heads and the MLP's width are its own."""

    def __init__(self, width: int, heads: int, each: int, hidden: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.q, self.k, self.v = (nn.Linear(width, heads * each) for _ in range(3))
        self.out = nn.Linear(heads * each, width)
        self.up, self.down = nn.Linear(width, hidden), nn.Linear(hidden, width)

    def forward(self, x: Tensor) -> Tensor:
        batch, time, _ = x.shape
        h = self.norm1(x)
        q, k, v = (part(h).view(batch, time, self.heads, -1).transpose(1, 2) for part in (self.q, self.k, self.v))
        attended = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(attended.transpose(1, 2).reshape(batch, time, -1))
        return x + self.down(F.gelu(self.up(self.norm2(x))))


class GPT(nn.Module):
    """A small one that reads letters; with fewer heads, or a smaller MLP, it has a stream of the same width."""

    def __init__(
        self,
        width: int = 128,
        depth: int = 4,
        heads: int = 8,
        each: int = 16,
        hidden: int = 512,
        letters: int = 100,
        time: int = 128,
    ) -> None:
        super().__init__()
        self.embed, self.place = nn.Embedding(letters, width), nn.Embedding(time, width)
        self.blocks = nn.ModuleList(Block(width, heads, each, hidden) for _ in range(depth))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, letters, bias=False)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """As GPT-2 draws them."""
        for module in self.modules():
            if isinstance(module, (nn.Linear, nn.Embedding)):
                nn.init.normal_(module.weight, std=0.02)
            if isinstance(module, nn.Linear) and module.bias is not None:
                nn.init.zeros_(module.bias)

    def forward(self, letters: Tensor) -> Tensor:
        x = self.embed(letters) + self.place(torch.arange(letters.shape[1], device=letters.device))
        for block in self.blocks:
            x = block(x)
        out: Tensor = self.head(self.norm(x))
        return out


def read_text(time: int = 128) -> Pair:
    """The manual that comes with Python, `pydoc_data.topics`, in stretches; for each letter the one after it."""
    text = "\n".join(topics[name] for name in sorted(topics)).encode("ascii", "ignore")
    letters = torch.tensor(list(text)).clamp(31, 126) - 31  # 31 for the end of a line and other signs
    whole = letters[: len(letters) // time * time + 1] if len(letters) % time else letters[: 1 - time]
    return whole[:-1].view(-1, time), whole[1:].view(-1, time)


def take_apart(pair: Any, count: int) -> tuple[Pair, Pair]:
    """The last ones are set apart."""
    return (pair[0][:-count], pair[1][:-count]), (pair[0][-count:], pair[1][-count:])


def sum_text(model: nn.Module, batch: Pair) -> Tensor:
    """The loss per letter of a batch."""
    return F.cross_entropy(model(batch[0]).float().flatten(0, 1), batch[1].flatten())


@torch.no_grad()
def judge_text(model: nn.Module, held: Any) -> float:
    """The loss per letter."""
    resident = upload(held, next(model.parameters()).device)
    model.eval()
    parts = zip(resident.images.split(120), resident.labels.split(120))
    return sum((sum_text(model, (x, y)) * len(x)).item() for x, y in parts) / len(resident)
