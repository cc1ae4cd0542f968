"""What goes by numbers: messages of a graph, bags of words, experts; and states that are carried along."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from zoo.entry import DOCUMENTS, TEXT, specimen


@specimen("graph_messages", DOCUMENTS, grows={"embed": 6, "one": 5, "two": 7, "three": 9}, pinned={"head": "output"})
class GraphMessages(nn.Module):
    """Every word tells its neighbours something, three times, each time in another way."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(20, 6)
        self.one, self.two, self.three = nn.Linear(6, 5), nn.Linear(5, 7), nn.Linear(7, 9)
        self.head = nn.Linear(9, 4)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embed(tokens).flatten(0, 1)  # (nodes, features)
        source = torch.arange(len(x), device=x.device)
        target = source // 8 * 8 + (source * 3 + 1) % 8
        x = F.relu(self.one(x))
        x = x + torch.zeros_like(x).index_add_(0, target, x[source])
        x = F.relu(self.two(x))
        x = torch.zeros(len(x), x.shape[1], dtype=x.dtype).scatter_add_(0, target[:, None].expand_as(x), x)
        x = F.relu(self.three(x))
        x = x.scatter_reduce(0, target[:, None].expand(-1, x.shape[1]), x, reduce="amax")
        return self.head(x.view(len(tokens), -1, x.shape[1]).mean(1))


@specimen("embedding_bag", DOCUMENTS, grows={"bag": 12, "best": 8, "mix": 10}, pinned={"head": "output"})
class EmbeddingBag(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.bag, self.best = nn.EmbeddingBag(20, 12, mode="mean"), nn.EmbeddingBag(20, 8, mode="max")
        self.mix, self.head = nn.Linear(20, 10), nn.Linear(10, 4)

    def forward(self, tokens: Tensor) -> Tensor:
        both = torch.cat([self.bag(tokens), self.best(tokens)], dim=1)
        return self.head(torch.relu(self.mix(torch.tanh(both))))


class Expert(nn.Module):
    def __init__(self, width: int, hidden: int) -> None:
        super().__init__()
        self.gate, self.up = nn.Linear(width, hidden, bias=False), nn.Linear(width, hidden, bias=False)
        self.down = nn.Linear(hidden, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.down(F.silu(self.gate(x)) * self.up(x))


class PickedExperts(nn.Module):
    """All experts in one tensor; every word goes through the one that it picks."""

    def __init__(self, width: int, hidden: int, count: int) -> None:
        super().__init__()
        self.gate_up = nn.Parameter(torch.randn(count, 2 * hidden, width) / 4)
        self.down = nn.Parameter(torch.randn(count, width, hidden) / 4)

    def forward(self, x: Tensor, numbers: Tensor) -> Tensor:
        gate, up = (self.gate_up[numbers] @ x.unsqueeze(-1)).squeeze(-1).chunk(2, dim=-1)
        return torch.bmm(self.down[numbers], (F.silu(gate) * up).unsqueeze(-1)).squeeze(-1)


@specimen(
    "experts",
    TEXT,
    grows={"experts.0.gate": 10, "experts.1.gate": 8, "picked.gate_up": 6, "all_in": 5},
    pinned={"embed": "layer norm", "router": "softmax", "head": "output"},
)
class Experts(nn.Module):
    """A mixture three times: modules, tensors of which one slice is picked, and a product over all experts."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.norm = nn.Embedding(11, 8), nn.LayerNorm(8)
        self.router, self.head = nn.Linear(8, 2), nn.Linear(8, 11)
        self.experts = nn.ModuleList([Expert(8, 10), Expert(8, 8)])
        self.picked = PickedExperts(8, 6, 2)
        self.all_in, self.all_out = nn.Parameter(torch.randn(2, 8, 5) / 3), nn.Parameter(torch.randn(2, 5, 8) / 3)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.norm(self.embed(tokens)).flatten(0, 1)
        share = torch.softmax(self.router(x), -1)  # (words, experts)
        y = sum(expert(x) * share[:, k : k + 1] for k, expert in enumerate(self.experts))
        y = y + self.picked(x, share.argmax(-1))
        hidden = torch.relu(torch.bmm(x.expand(2, -1, -1), self.all_in))
        y = y + (torch.bmm(hidden, self.all_out) * share.t().unsqueeze(-1)).sum(0)
        return self.head(self.norm(x + y)).view(*tokens.shape, -1)


@specimen(
    "experts_by_mask",
    TEXT,
    grows={"experts.0": 8, "experts.1": 9, "experts.2": 10},
    pinned={"embed": "layer norm", "router": "softmax", "head": "output"},
)
class ExpertsByMask(nn.Module):
    """Only the words that pick an expert go through it; how many these are depends on values."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.norm = nn.Embedding(11, 6), nn.LayerNorm(6)
        self.router, self.head = nn.Linear(6, 3), nn.Linear(6, 11)
        self.experts = nn.ModuleList(nn.Linear(6, size) for size in (8, 9, 10))
        self.back = nn.ModuleList(nn.Linear(size, 6) for size in (8, 9, 10))

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.norm(self.embed(tokens))
        words = x.flatten(0, 1)
        share = torch.softmax(self.router(words), -1)
        pick, out = share.argmax(-1), torch.zeros_like(words)
        mask = pick == 0
        out[mask] += self.expert(0, words[mask]) * share[mask][:, :1]
        (rows,) = torch.where(pick == 1)
        out = out.index_add(
            0, rows, self.expert(1, words[None, rows].reshape(-1, words.shape[1])) * share[rows, 1, None]
        )
        rows = (pick == 2).nonzero().squeeze(1)
        out.index_add_(0, rows, self.expert(2, words.index_select(0, rows)) * share[rows, 2:])
        return self.head(self.norm(x + out.view_as(x)))

    def expert(self, number: int, x: Tensor) -> Tensor:
        return self.back[number](F.relu(self.experts[number](x)))


@specimen("state_space", TEXT, grows={"enter": 10}, pinned={"embed": "layer norm", "head": "output"})
class StateSpace(nn.Module):
    """A state for every channel, zeros at first, that a learnt decay carries from word to word; a gate beside it."""

    def __init__(self) -> None:
        super().__init__()
        self.channels, self.states = 10, 4
        self.embed, self.norm, self.head = nn.Embedding(11, 8), nn.LayerNorm(8), nn.Linear(8, 11)
        self.enter, self.leave = nn.Linear(8, 20), nn.Linear(10, 8)
        self.conv = nn.Conv1d(10, 10, 3, padding=2, groups=10)
        self.decay, self.skip = nn.Parameter(torch.rand(10, 4)), nn.Parameter(torch.ones(10))
        self.into = nn.Linear(10, 4)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.norm(self.embed(tokens))
        y, gate = self.enter(x).transpose(1, 2).chunk(2, dim=1)
        y = F.silu(self.conv(y)[..., : tokens.shape[1]])  # (batch, channels, words)
        write = self.into(y.transpose(1, 2))  # (batch, words, states)
        state = torch.zeros(len(tokens), self.channels, self.states, dtype=x.dtype)
        out = []
        for t in range(tokens.shape[1]):
            state = state * torch.exp(-self.decay) + y[:, :, t, None] * write[:, t, None]
            out.append(state.mean(-1))
        y = torch.stack(out, dim=-1) + self.skip[:, None] * y
        return self.head(self.norm(x + self.leave((y * F.silu(gate)).transpose(1, 2))))


@specimen("spatial_gate", TEXT, grows={"mlp": 12}, pinned={"embed": "layer norm", "head": "output"})
class SpatialGate(nn.Module):
    """One half of the channels, mixed over the words, gates the other half."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.norm, self.head = nn.Embedding(11, 8), nn.LayerNorm(8), nn.Linear(8, 11)
        self.mlp, self.words, self.leave = nn.Linear(8, 24), nn.Linear(8, 8), nn.Linear(12, 8)
        nn.init.ones_(self.words.bias)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.norm(self.embed(tokens))
        u, v = F.gelu(self.mlp(x)).chunk(2, dim=-1)
        u = u * self.words(v.transpose(-1, -2)).transpose(-1, -2)
        return self.head(self.norm(x + self.leave(u)))
