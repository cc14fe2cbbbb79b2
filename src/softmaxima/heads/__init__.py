"""Large output layers: losses of a linear layer that never hold its scores, and heads that look at a part of the classes."""

from softmaxima.heads.frequencies import StreamingFrequency
from softmaxima.heads.in_batch import InBatchSoftmax, in_batch_softmax_loss
from softmaxima.heads.linear_loss import LinearLoss, LinearOutputs, linear_loss
from softmaxima.heads.margin_softmax import MarginSoftmax, margin_softmax_loss
from softmaxima.heads.noise_contrastive import NoiseContrastive, noise_contrastive_loss
from softmaxima.heads.sampled import SampledSoftmax, sampled_softmax_loss
from softmaxima.heads.samplers import (
    FrequencySampler,
    InBatchSampler,
    LearnedSampler,
    LogUniformSampler,
    Sampler,
    UniformSampler,
    UnigramSampler,
)

__all__ = [
    "FrequencySampler",
    "InBatchSampler",
    "InBatchSoftmax",
    "LearnedSampler",
    "LinearLoss",
    "LinearOutputs",
    "LogUniformSampler",
    "MarginSoftmax",
    "NoiseContrastive",
    "SampledSoftmax",
    "Sampler",
    "StreamingFrequency",
    "UniformSampler",
    "UnigramSampler",
    "in_batch_softmax_loss",
    "linear_loss",
    "margin_softmax_loss",
    "noise_contrastive_loss",
    "sampled_softmax_loss",
]
