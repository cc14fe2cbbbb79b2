"""logsumexp and the functions that are made of it."""

from softmaxima.lse.logsumexp import logsumexp, real_softmax
from softmaxima.lse.scipy_logsumexp import scipy_logsumexp
from softmaxima.lse.softplus import inverse_softplus, softplus

__all__ = ["inverse_softplus", "logsumexp", "real_softmax", "scipy_logsumexp", "softplus"]
