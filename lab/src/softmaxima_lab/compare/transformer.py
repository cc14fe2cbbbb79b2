"""A small Transformer whose attention takes any map, for texts and for pictures in patches.

x ← x + attention(norm x),    x ← x + W₂ relu(W₁ norm x)    in each layer
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

from softmaxima.attn import MultiheadAttention
from softmaxima.integrations.pairs import FUNCTIONS
from softmaxima_lab.compare.attention_plan import Variant

PLACES = 0.3  # how far apart positions begin: as much smaller, attention takes hundreds of steps to tell them


@dataclass(frozen=True)
class Shape:
    """Of a Transformer."""

    size: int
    heads: int
    layers: int

    @property
    def words(self) -> str:
        return f"{self.layers} layers of {self.heads} heads, {self.size} wide"


class BetweenOneAndTwo(nn.Module):
    """α = 1 + σ(a), as Correia et al. (2019), arXiv:1909.00015, keep it."""

    def forward(self, a: Tensor) -> Tensor:
        return 1 + torch.sigmoid(a)

    def right_inverse(self, alpha: Tensor) -> Tensor:
        return torch.logit(alpha - 1)


def attention_layer(variant: Variant, shape: Shape) -> MultiheadAttention:
    """Self-attention with that map."""
    options: dict[str, Any] = {name: FUNCTIONS[value] if name == "f" else value for name, value in variant.params.items()}
    if variant.learnt == "alpha":
        options["alpha"] = nn.Parameter(torch.full((shape.heads,), 1.5))
    elif variant.learnt == "sink":
        options["sink"] = nn.Parameter(torch.zeros(shape.heads))
    layer = MultiheadAttention(shape.size, shape.heads, batch_first=True, map=variant.map, **options)
    if variant.learnt == "alpha":
        parametrize.register_parametrization(layer, "alpha", BetweenOneAndTwo())
    return layer


class Layer(nn.Module):
    """Attention, then a position by itself."""

    def __init__(self, variant: Variant, shape: Shape) -> None:
        super().__init__()
        self.before, self.between = nn.LayerNorm(shape.size), nn.LayerNorm(shape.size)
        self.attention = attention_layer(variant, shape)
        self.alone = nn.Sequential(nn.Linear(shape.size, 4 * shape.size), nn.ReLU(), nn.Linear(4 * shape.size, shape.size))

    def forward(self, x: Tensor, causal: bool, wants_weights: bool) -> tuple[Tensor, Tensor | None]:
        h = self.before(x)
        seen, p = self.attention(h, h, h, need_weights=wants_weights, average_attn_weights=False, is_causal=causal)
        x = x + seen
        return x + self.alone(self.between(x)), p


class Transformer(nn.Module):
    """Scores of classes, after every token where it is causal, else after a token of its own, the first."""

    def __init__(self, variant: Variant, shape: Shape, embedding: nn.Module, length: int, classes: int, causal: bool) -> None:
        super().__init__()
        self.causal, self.embedding = causal, embedding
        self.own = None if causal else nn.Parameter(torch.zeros(shape.size))
        self.places = nn.Parameter(PLACES * torch.randn(length + (not causal), shape.size))
        self.layers = nn.ModuleList(Layer(variant, shape) for _ in range(shape.layers))
        self.out = nn.Sequential(nn.LayerNorm(shape.size), nn.Linear(shape.size, classes))

    def forward(self, tokens: Tensor) -> Tensor:
        """[rows, length, classes] where it is causal, else [rows, classes]."""
        return self._run(tokens, False)[0]

    def weights(self, tokens: Tensor) -> Tensor:
        """p [layers, rows, heads, queries, keys]."""
        return torch.stack(self._run(tokens, True)[1])

    def learnt(self, name: str) -> list[list[float]]:
        """What has been learnt under that name, of each layer and head."""
        return [getattr(layer.attention, name).tolist() for layer in self.layers]

    def _run(self, tokens: Tensor, wants_weights: bool) -> tuple[Tensor, list[Tensor]]:
        x, found = self.embedding(tokens), []
        if self.own is not None:
            x = torch.cat((self.own.expand(x.shape[0], 1, -1), x), 1)
        x = x + self.places[: x.shape[1]]
        for layer in self.layers:
            x, p = layer(x, self.causal, wants_weights)
            found.append(p)
        return self.out(x if self.causal else x[:, 0]), found
