"""Large output layers: losses of a linear layer that never hold its scores, and heads that look at a part of the classes."""

from softmaxima.base.public import listing
from softmaxima.heads.adaptive import AdaptiveSoftmax
from softmaxima.heads.factored import TopClasses
from softmaxima.heads.fixed_samplers import LogUniformSampler, UniformSampler, UnigramSampler
from softmaxima.heads.frequencies import StreamingFrequency
from softmaxima.heads.hierarchical import HierarchicalSoftmax
from softmaxima.heads.in_batch import InBatchSoftmax, in_batch_softmax_loss
from softmaxima.heads.learned_samplers import FrequencySampler, InBatchSampler, LearnedSampler
from softmaxima.heads.linear_loss import LinearLoss, LinearOutputs, linear_loss
from softmaxima.heads.margin_softmax import MarginSoftmax, margin_softmax_loss
from softmaxima.heads.noise_contrastive import NoiseContrastive, noise_contrastive_loss
from softmaxima.heads.sampled import SampledSoftmax, sampled_softmax_loss
from softmaxima.heads.sampler import Sampler
from softmaxima.heads.trees import Tree

__all__ = [
    "AdaptiveSoftmax",
    "FrequencySampler",
    "HierarchicalSoftmax",
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
    "TopClasses",
    "Tree",
    "UniformSampler",
    "UnigramSampler",
    "in_batch_softmax_loss",
    "linear_loss",
    "margin_softmax_loss",
    "noise_contrastive_loss",
    "sampled_softmax_loss",
]
__dir__ = listing(globals())
