"""Large output layers: losses of a linear layer that never hold its scores, and heads that look at a part of the classes."""

from softmaxima.heads.linear_loss import LinearLoss, LinearOutputs, linear_loss
from softmaxima.heads.margin_softmax import MarginSoftmax, margin_softmax_loss

__all__ = ["LinearLoss", "LinearOutputs", "MarginSoftmax", "linear_loss", "margin_softmax_loss"]
