r"""What makes a softmax over a target t and negatives c_1, …, c_m that were drawn from Q stand for that over all classes.

    L = −log( e^{s_t + a} / (e^{s_t + a} + Σ_i e^{s_{c_i} − log Q(c_i)}) ),        the negatives that are t itself left out

    "positive"    a = log m′ − log(1 − Q(t)),   m′ the number of negatives that are left
    "log_q"       a = −log Q(t)
    "none"        a = 0, and no log Q of negatives

"positive". The negatives that are left are draws of Q given c ≠ t, Q′(c) = Q(c)/(1 − Q(t)). So Ẑ = Σ_i e^{s_{c_i}}/(m′ Q′(c_i)) is
an unbiased estimate of Z = Σ_{c≠t} e^{s_c} where a negative is left, and L = log(e^{s_t} + Ẑ) − s_t. The target, which is there
always and was not drawn, has no correction of its own. Of the gradients

    ∇L_full = (1 − p_t)(−∇s_t + Σ_{c≠t} p_c/(1 − p_t) ∇s_c)
    ∇L      = (1 − p̂_t)(−∇s_t + Σ_i ŵ_i ∇s_{c_i}),     p̂_t = e^{s_t}/(e^{s_t} + Ẑ),     ŵ_i ∝ e^{s_{c_i}}/Q(c_i),  Σ_i ŵ_i = 1

the second is that of Khrylchenko et al. (2025), its weight 1 − p_t estimated from the same negatives. They hold that weight
constant by a stop-gradient; here none is needed, for the product is the gradient of L. With T = e^{s_t} + Z, w = e^{s_c}/Q′(c) and
variances over Q′ its bias is

    E ∇L − ∇L_full = (Var(w) (Σ_c e^{s_c} ∇s_c − T ∇s_t)/T³ − Cov(w, w(∇s_c − ∇s_t))/T²)/m′ + O(1/m′²),

which sets in once m Q(c) > 1 for every class of much probability: of one that is hardly ever drawn the gradient lacks its share.

"log_q". With the hits left in, the loss is least at the labels' own conditional probabilities for every m (Ma and Collins 2018),
and its gradient tends to ∇L_full by O(1/m) from the same m on, the target among those classes. With the hits left out it tends to
∇L_full/(1 − p_t), and not to ∇L_full.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from softmaxima.base.tracing import is_concrete
from softmaxima.lse.log1mexp import log1mexp

CORRECTIONS = ("positive", "log_q", "none")


def target_correction(correction: str, log_q: Tensor, left: Tensor) -> Tensor:
    """The a of targets whose log Q is given in float64, with `left` negatives each; 0 where there are none."""
    if correction == "positive":
        return torch.where(left > 0, left.double().log() - log1mexp(log_q), 0.0)
    return -log_q if correction == "log_q" else torch.zeros_like(log_q)


def check_removal(name: str, correction: str, remove_hits: bool) -> None:
    """Only a loss whose negatives are other classes can do without a correction of the target."""
    if correction == "positive" and not remove_hits:
        raise ValueError(
            f"{name}: correction='positive' needs remove_hits=True, got False; use correction='log_q' to keep the hits"
        )


def check_log_q(name: str, what: str, kind: str, log_q: Tensor, classes: Tensor) -> None:
    """Logarithms of probabilities of classes, or items, that were seen, and so are not 0."""
    if not is_concrete(log_q) or not is_concrete(classes) or not bool((wrong := ~((log_q <= 0) & (log_q > -math.inf))).any()):
        return
    place = int(wrong.flatten().nonzero()[0])
    value, seen = float(log_q.flatten()[place]), int(classes.flatten()[place])
    if value == -math.inf:
        raise ValueError(
            f"{name}: {what} gives {kind} {seen} the probability 0, but it was seen; give each {kind} that is seen more"
        )
    raise ValueError(f"{name}: {what} must be logarithms of probabilities, at most 0, got {value} for {kind} {seen}")
