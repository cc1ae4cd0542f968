"""Embeddings and recurrent layers."""

import torch
from torch import Tensor, nn

from zoo.entry import DOCUMENTS, TEXT, specimen


@specimen("embedding_mean", DOCUMENTS, grows={"embed": 12, "fc": 10}, pinned={"head": "output"})
class EmbeddingMean(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(20, 12)
        self.fc, self.head = nn.Linear(12, 10), nn.Linear(10, 4)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.head(torch.relu(self.fc(self.embed(tokens).mean(dim=1))))


@specimen("embedding_linear", TEXT, grows={"0": 12}, pinned={"1": "output"})
def embedding_linear() -> nn.Module:
    return nn.Sequential(nn.Embedding(11, 12), nn.Linear(12, 11))


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(20, 8)
        self.head = nn.Sequential(nn.Linear(10, 12), nn.ReLU(), nn.Linear(12, 4))


@specimen("lstm", DOCUMENTS, grows={"head.0": 12}, pinned={"lstm": "lstm", "head.2": "output"})
class LSTM(Recurrent):
    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTM(8, 10, batch_first=True)

    def forward(self, tokens: Tensor) -> Tensor:
        states, _ = self.lstm(self.embed(tokens))
        return self.head(states[:, -1])


@specimen("gru", DOCUMENTS, grows={"head.0": 12}, pinned={"gru": "gru", "head.2": "output"})
class GRU(Recurrent):
    def __init__(self) -> None:
        super().__init__()
        self.gru = nn.GRU(8, 10, batch_first=True)

    def forward(self, tokens: Tensor) -> Tensor:
        _, last = self.gru(self.embed(tokens))
        return self.head(last[-1])
