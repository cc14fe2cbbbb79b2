"""The networks below the heads of a comparison: small, and the same for every head."""

from __future__ import annotations

import torch
from torch import Tensor, nn

CONTEXT = 4  # words that are read
EMBEDDING, HIDDEN, FEATURES = 64, 128, 32  # numbers: of a word, of a hidden layer, and of a picture


class LastWords(nn.Module):
    """tanh(W e + b) of the vectors e of the last words, as of Bengio et al. (2003)."""

    def __init__(self, classes: int) -> None:
        super().__init__()
        self.embedding, self.hidden = nn.Embedding(classes, EMBEDDING), nn.Linear(CONTEXT * EMBEDDING, HIDDEN)

    def forward(self, words: Tensor) -> Tensor:
        return torch.tanh(self.hidden(self.embedding(words).flatten(1)))


def of_pixels(pixels: int) -> nn.Module:
    """Features of pictures, untrained."""
    return nn.Sequential(nn.Linear(pixels, HIDDEN), nn.ReLU(), nn.Linear(HIDDEN, FEATURES))
