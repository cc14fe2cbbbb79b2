"""Losses for classification, with the shapes and arguments of `torch.nn.functional.cross_entropy`: one file a loss."""

from softmaxima.base.public import listing
from softmaxima.losses.contract import REGISTRY, Loss, LossModule
from softmaxima.losses.cross_entropy import CrossEntropyLoss, cross_entropy
from softmaxima.losses.elastic_cross_entropy import ElasticCrossEntropyLoss, elastic_cross_entropy
from softmaxima.losses.entmax_loss import Entmax15Loss, EntmaxLoss, entmax15_loss, entmax_loss
from softmaxima.losses.eps_cross_entropy import EpsCrossEntropyLoss, eps_cross_entropy
from softmaxima.losses.fenchel_young import FenchelYoungLoss, fenchel_young_loss
from softmaxima.losses.focal_loss import FocalLoss, focal_loss
from softmaxima.losses.fusedmax_loss import FusedmaxLoss, fusedmax_loss
from softmaxima.losses.margin import (
    AMSoftmaxLoss,
    ArcFace,
    CosFace,
    am_softmax_loss,
    arcface,
    cosface,
)
from softmaxima.losses.oscarmax_loss import OscarmaxLoss, oscarmax_loss
from softmaxima.losses.perturb_max_loss import PerturbMaxLoss, perturb_max_loss
from softmaxima.losses.soft_accuracy_loss import SoftAccuracyLoss, soft_accuracy_loss
from softmaxima.losses.sparse_softmax_loss import SparseSoftmaxLoss, sparse_softmax_loss
from softmaxima.losses.sparsemax_loss import SparsemaxLoss, sparsemax_loss
from softmaxima.losses.surrogate_loss import SurrogateLoss, surrogate_loss

__all__ = [
    "REGISTRY",
    "AMSoftmaxLoss",
    "ArcFace",
    "CosFace",
    "CrossEntropyLoss",
    "ElasticCrossEntropyLoss",
    "Entmax15Loss",
    "EntmaxLoss",
    "EpsCrossEntropyLoss",
    "FenchelYoungLoss",
    "FocalLoss",
    "FusedmaxLoss",
    "Loss",
    "LossModule",
    "OscarmaxLoss",
    "PerturbMaxLoss",
    "SoftAccuracyLoss",
    "SparseSoftmaxLoss",
    "SparsemaxLoss",
    "SurrogateLoss",
    "am_softmax_loss",
    "arcface",
    "cosface",
    "cross_entropy",
    "elastic_cross_entropy",
    "entmax15_loss",
    "entmax_loss",
    "eps_cross_entropy",
    "fenchel_young_loss",
    "focal_loss",
    "fusedmax_loss",
    "oscarmax_loss",
    "perturb_max_loss",
    "soft_accuracy_loss",
    "sparse_softmax_loss",
    "sparsemax_loss",
    "surrogate_loss",
]
__dir__ = listing(globals())
