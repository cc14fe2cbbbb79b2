r"""Tags of a sentence by a chain: logsumexp over all sequences of tags, Viterbi, and a sparse map in their place.

    score(y) = Σ_t u_t(y_t) + Σ_t A(y_{t−1}, y_t)            log Z = LSE_y score(y)            P(y_t = s) = ∂ log Z / ∂u_t(s)

The sum over Sᵀ sequences is a product of T matrices in log space. Products are associative, so it may be taken by halves, in log₂ T
steps (`by_halves`), or one place after the other (`in_order`),

    v_t(s) = max_Ω { v_{t−1}(r) + A(r, s) : r } + u_t(s)            max_Ω(x) = max_p ⟨p, x⟩ − Ω(p), whose slope is the map

with LSE for max_Ω of softmax. Any other map gives a chain of its own (Mensch & Blondel 2018, arXiv:1802.03676): the slope is then
how often each tag is passed by a walk that goes back by that map's probabilities, exactly 0 for many tags of a sparse one. With max
itself it is Viterbi's algorithm, whose walk is the best sequence, or one of several. Only with softmax is max_Ω associative, so
that only its chain can be taken by halves.

The truth is known: sentences come from a hidden Markov model, whose own tags P(y_t | words) err least of all taggers.

    python examples/tagging.py
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any

import torch
from torch import Tensor, nn

import softmaxima as sm
from softmaxima_lab.commands.example import count, run

TAGS, WORDS, LENGTH = 5, 20, 24


def max_omega(x: Tensor, map: str) -> Tensor:
    """max_Ω of x [batch, n, …] over axis 1: LSE, or of any map by its Fenchel–Young loss, which of a label y is max_Ω(x) − x_y."""
    if map == "softmax":
        return sm.logsumexp(x, 1)
    top, label = x.detach().max(1)
    nothing = top == -math.inf  # no tag leads here
    x = x.masked_fill(nothing.unsqueeze(1), 0.0)
    value = sm.fenchel_young_loss(x, label, map=map, reduction="none") + x.gather(1, label.unsqueeze(1)).squeeze(1)
    return value.masked_fill(nothing, -math.inf)


def in_order(unary: Tensor, transitions: Tensor, map: str = "softmax") -> Tensor:
    """log Z [batch] of u [batch, T, S] and A [S, S], or what stands in its place for another map."""
    v = unary[:, 0]
    for t in range(1, unary.shape[1]):
        v = max_omega(v.unsqueeze(-1) + transitions, map) + unary[:, t]
    return max_omega(v, map)


def by_halves(unary: Tensor, transitions: Tensor) -> Tensor:
    """The same log Z by ⌈log₂ T⌉ rounds of products, all of a round at once."""
    steps = transitions + unary[:, 1:].unsqueeze(-2)  # [batch, T − 1, S, S]
    while steps.shape[1] > 1:
        paired, left = steps[:, : steps.shape[1] // 2 * 2], steps[:, steps.shape[1] // 2 * 2 :]
        steps = torch.cat((sm.logmatmulexp(paired[:, ::2], paired[:, 1::2]), left), 1)
    ends = unary[:, 0] if unary.shape[1] == 1 else sm.logmatmulexp(unary[:, :1], steps[:, 0]).squeeze(1)
    return sm.logsumexp(ends)


def marginals(unary: Tensor, transitions: Tensor, map: str = "softmax") -> Tensor:
    """[batch, T, S], the slope by u: probabilities of each tag, or how often a sparse walk passes it."""
    u, transitions = unary.detach().requires_grad_(), transitions.detach()
    value = by_halves(u, transitions) if map == "softmax" else in_order(u, transitions, map)
    return torch.autograd.grad(value.sum(), u)[0]


def best(unary: Tensor, transitions: Tensor) -> Tensor:
    """[batch, T], the sequence of the largest score, or one of several: Viterbi's, from left to right and back."""
    v, pointers = unary[:, 0], []
    for t in range(1, unary.shape[1]):
        reached, origin = (v.unsqueeze(-1) + transitions).max(1)
        pointers.append(origin)
        v = reached + unary[:, t]
    tags = [v.argmax(-1, keepdim=True)]
    for origin in reversed(pointers):
        tags.append(origin.gather(1, tags[-1]))
    return torch.cat(tags[::-1], 1)


@dataclass(frozen=True)
class Language:
    """A hidden Markov model, by the logarithms of its probabilities."""

    first: Tensor  # [S]
    transitions: Tensor  # [S, S]
    emissions: Tensor  # [S, words]

    def sentences(self, count: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        """(words, tags), [count, T] each."""
        draw = lambda log_p: torch.multinomial(log_p.exp(), 1, generator=generator).squeeze(-1)
        tags = [draw(self.first.expand(count, -1))]
        for _ in range(LENGTH - 1):
            tags.append(draw(self.transitions[tags[-1]]))
        y = torch.stack(tags, 1)
        return draw(self.emissions[y.flatten()]).view(count, LENGTH), y

    def scores(self, words: Tensor) -> tuple[Tensor, Tensor]:
        """(u, A) of the posterior."""
        unary = self.emissions.T[words]
        return torch.cat((unary[:, :1] + self.first, unary[:, 1:]), 1), self.transitions


def language(generator: torch.Generator) -> Language:
    """Words that two or three tags share, and tags that follow one another with preferences."""
    random = lambda *shape: torch.randn(*shape, generator=generator, dtype=torch.float64)
    return Language(*(sm.log_softmax(3.0 * random(*shape)) for shape in ((TAGS,), (TAGS, TAGS), (TAGS, WORDS))))


class Chain(nn.Module):
    """u and A that learn, from what a sequence scores below max_Ω: a loss that is convex, and ≥ 0."""

    def __init__(self, map: str) -> None:
        super().__init__()
        self.map = map
        self.first, self.transitions, self.emissions = (
            nn.Parameter(torch.zeros(*shape, dtype=torch.float64)) for shape in ((TAGS,), (TAGS, TAGS), (WORDS, TAGS))
        )

    def scores(self, words: Tensor) -> tuple[Tensor, Tensor]:
        unary = self.emissions[words]
        return torch.cat((unary[:, :1] + self.first, unary[:, 1:]), 1), self.transitions

    def forward(self, words: Tensor, tags: Tensor) -> Tensor:
        unary, transitions = self.scores(words)
        score = unary.gather(-1, tags.unsqueeze(-1)).sum((1, 2)) + transitions[tags[:, :-1], tags[:, 1:]].sum(1)
        value = by_halves(unary, transitions) if self.map == "softmax" else in_order(unary, transitions, self.map)
        return (value - score).mean()


def trained(map: str, words: Tensor, tags: Tensor, steps: int) -> Chain:
    chain = Chain(map)
    optimizer = torch.optim.LBFGS(chain.parameters(), max_iter=steps, line_search_fn="strong_wolfe")

    def loss() -> Tensor:
        optimizer.zero_grad()
        value = chain(words, tags) + 1e-4 * sum(parameter.square().sum() for parameter in chain.parameters())
        value.backward()
        return value

    optimizer.step(loss)  # pyright: ignore[reportArgumentType]
    return chain


def milliseconds(length: int, generator: torch.Generator, turns: int = 5) -> tuple[float, float]:
    """The least that log Z of one sentence and its slope take by halves, and in order."""
    unary = torch.randn(1, length, TAGS, generator=generator, dtype=torch.float64)
    transitions = torch.randn(TAGS, TAGS, generator=generator, dtype=torch.float64)

    def taken(function: Callable[[Tensor, Tensor], Tensor]) -> float:
        u, begin = unary.clone().requires_grad_(), time.perf_counter()
        torch.autograd.grad(function(u, transitions).sum(), u)
        return 1e3 * (time.perf_counter() - begin)

    by_halves(unary, transitions)
    return min(taken(by_halves) for _ in range(turns)), min(taken(in_order) for _ in range(turns))


def main(
    sentences: Annotated[int, count("To learn from.")] = 300,
    tests: Annotated[int, count("Other sentences, on which taggers are compared.", least=2)] = 1000,
    steps: Annotated[int, count("Of training.")] = 60,
    seed: Annotated[int, count("Of the language and its sentences.", least=0)] = 3,
) -> dict[str, Any]:
    """Prints the table; returns what it shows, and the shares of one sentence."""
    generator = torch.Generator().manual_seed(seed)
    truth = language(generator)
    (words, tags), (new_words, new_tags) = truth.sentences(sentences, generator), truth.sentences(tests, generator)
    scores = truth.scores(new_words)
    exact = marginals(*scores)
    shares = {"truth": exact, "truth, without its chain": sm.softmax(scores[0])}
    for map in ("softmax", "entmax15", "sparsemax"):
        chain = trained(map, words, tags, steps)
        shares[f"{map} chain"] = marginals(*chain.scores(new_words), map)
    right = {name: (p.argmax(-1) == new_tags).double().mean(-1) for name, p in shares.items()}  # of each sentence
    right["truth, best sequence"] = (best(*scores) == new_tags).double().mean(-1)
    results: dict[str, Any] = {"sentences": sentences, "tests": tests, "taggers": {}}
    print(f"{TAGS} tags, {WORDS} words, {sentences} sentences of {LENGTH} words; {tests} others")
    print("tagger                      right, %    points from truth   tags with a share   mean |share − P|")
    for name, each in right.items():
        less, p = each - right["truth"], shares.get(name)
        error = less.std().item() / tests**0.5
        found = {"right": each.mean().item(), "less": less.mean().item(), "error": error}
        line = f"{name:26} {100 * found['right']:9.2f} {100 * found['less']:12.2f} ± {100 * error:4.2f}"
        if p is not None:
            found |= {"support": (p > 0).double().sum(-1).mean().item(), "distance": (p - exact).abs().mean().item()}
            line += f" {found['support']:19.2f} {found['distance']:18.4f}"
        results["taggers"][name] = found
        print(line)
    print("length of one sentence   log Z and its slope by halves, ms   in order, ms")
    results["milliseconds"] = {length: milliseconds(length, generator) for length in (LENGTH, 200, 1000)}
    for length, (halves, ordered) in results["milliseconds"].items():
        print(f"{length:22} {halves:35.2f} {ordered:14.2f}")
    results["one sentence"] = {"tags": new_tags[0].tolist(), **{name: p[0].tolist() for name, p in shares.items()}}
    return results


if __name__ == "__main__":
    run(main, __doc__)
