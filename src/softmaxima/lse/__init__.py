"""logsumexp and the functions that are made of it."""

from softmaxima.lse.cumulative import logcumsumexp
from softmaxima.lse.log1mexp import log1mexp
from softmaxima.lse.log_mean_exp import log_mean_exp
from softmaxima.lse.logaddexp import logaddexp
from softmaxima.lse.logsumexp import logsumexp, real_softmax, real_softmin
from softmaxima.lse.scipy_logsumexp import scipy_logsumexp
from softmaxima.lse.softplus import inverse_softplus, softplus

__all__ = [
    "inverse_softplus",
    "log1mexp",
    "log_mean_exp",
    "logaddexp",
    "logcumsumexp",
    "logsumexp",
    "real_softmax",
    "real_softmin",
    "scipy_logsumexp",
    "softplus",
]
