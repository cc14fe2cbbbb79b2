r"""A variational autoencoder with categorical latent variables, and what its gradient is estimated of.

    log p(x) ≥ ELBO = E_q[log p(x | D)] − KL(q ‖ p)        D of L one-hot vectors of K classes, from q = softmax(encoder(x))

p is uniform, p(x | D) a Bernoulli of each pixel. The second term is a sum, and exact. The first is an expectation over one-hot
draws, whose gradient by the encoder is what estimators are for. Of S draws there is a tighter bound, E log (1/S) Σ p(x, D_s)/q(D_s)
(Burda, Grosse and Salakhutdinov, arXiv:1509.00519).
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional

from softmaxima.base.randomness import Randomness
from softmaxima.lse import log_mean_exp
from softmaxima.maps import softmax
from softmaxima.sampling import Relax, expectation, gumbel_max
from softmaxima_lab.compare.estimators_plan import SOFTMAX, Candidate

LATENTS, CLASSES, HIDDEN = 10, 8, 128
CHUNK = 2048  # pictures that are decoded at once


class VAE(nn.Module):
    """The network: L latent variables of K classes, and one hidden layer on either side."""

    def __init__(self, p: Tensor, latents: int = LATENTS, classes: int = CLASSES, hidden: int = HIDDEN) -> None:
        """p [pixels] is how often each is 1, with which the decoder begins."""
        super().__init__()
        self.latents, self.classes, pixels = latents, classes, len(p)
        last = nn.Linear(hidden, pixels)
        last.bias.data.copy_(p.logit())
        self.encoder = nn.Sequential(
            nn.Linear(pixels, hidden), nn.ReLU(), nn.Linear(hidden, latents * classes), nn.Unflatten(-1, (latents, classes))
        )
        self.decoder = nn.Sequential(nn.Flatten(-2), nn.Linear(latents * classes, hidden), nn.ReLU(), last)

    def log_likelihood(self, x: Tensor, draws: Tensor) -> Tensor:
        """log p(x | D) of x [rows, pixels] and draws [samples, rows, L, K]: [samples, rows]."""
        logits = self.decoder(draws)
        return -functional.binary_cross_entropy_with_logits(logits, x.expand_as(logits), reduction="none").sum(-1)

    def divergence(self, scores: Tensor) -> Tensor:
        """KL(q ‖ p) = Σ q log(K q), of each row."""
        log_q = scores.log_softmax(-1)
        return (log_q.exp() * (log_q + math.log(self.classes))).sum((-2, -1))

    @torch.no_grad()
    def bounds(self, x: Tensor, samples: int, seed: int) -> tuple[Tensor, Tensor]:
        """(ELBO, the bound of so many draws) of each row, by one-hot draws."""
        generator, found = torch.Generator().manual_seed(seed), []
        for part in x.split(max(1, CHUNK // samples)):
            scores = self.encoder(part)
            if not bool(scores.isfinite().all()):  # nothing can be drawn
                found.append((torch.full((len(part),), math.nan),) * 2)
                continue
            drawn = functional.one_hot(gumbel_max(scores, samples=samples, generator=generator), self.classes).to(part.dtype)
            likelihood = self.log_likelihood(part, drawn).double()
            log_q = (scores.double().log_softmax(-1) * drawn).sum((-2, -1))
            weights = likelihood - self.latents * math.log(self.classes) - log_q
            found.append((likelihood.mean(0) - self.divergence(scores.double()), log_mean_exp(weights, 0)))
        elbo, bound = (torch.cat(parts) for parts in zip(*found, strict=True))
        return elbo, bound


class Estimated(nn.Module):
    """The VAE with an estimator of its gradient: what is trained."""

    def __init__(self, vae: VAE, candidate: Candidate, control: Relax | None = None) -> None:
        super().__init__()
        self.vae, self.candidate, self.control = vae, candidate, control
        if candidate.map == "relax" and control is None:
            network = nn.Sequential(nn.Flatten(-2), nn.Linear(vae.latents * vae.classes, 1), nn.Flatten(-2))
            self.control = Relax(network)

    def negative(self, x: Tensor, generator: Randomness, weight: float = 1.0, learns: bool = False) -> Tensor:
        """−ELBO of each row, KL times a weight, with the estimator's gradient; a control variate may learn, by its own.

        NaN where scores are.
        """
        scores = self.vae.encoder(x)
        if not bool(scores.isfinite().all()):  # nothing can be drawn
            return scores.sum((-2, -1)) * math.nan

        def f(draws: Tensor) -> Tensor:
            return -self.vae.log_likelihood(x, draws)

        name, options = self.candidate.map, {"samples": self.candidate.samples, "generator": generator}
        if name == SOFTMAX.map:
            value = f(softmax(scores).unsqueeze(0)).squeeze(0)
        elif self.control is not None:
            value = self.control(scores, f, **options)
            if learns:
                self.control.learn(value, scores)
        else:
            value = expectation(scores, f, name, **options, **self.candidate.params)
        return value + weight * self.vae.divergence(scores)
