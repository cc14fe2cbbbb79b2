"""softmaxima: scores into probabilities. Softmax, logsumexp and their alternatives, exact, on NumPy and PyTorch.

>>> import numpy as np
>>> import softmaxima as sm
>>> sm.sparsemax(np.array([1.0, 0.8, 0.1]))
array([0.6, 0.4, 0. ])
"""

from __future__ import annotations

import importlib
import importlib.util
import warnings
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from softmaxima import attn as attn
    from softmaxima import dask as dask
    from softmaxima import distributed as distributed
    from softmaxima import federated as federated
    from softmaxima import graph as graph
    from softmaxima import heads as heads
    from softmaxima import io as io
    from softmaxima import losses as losses
    from softmaxima import lse as lse
    from softmaxima import maps as maps
    from softmaxima import mixture as mixture
    from softmaxima import policy as policy
    from softmaxima import privacy as privacy
    from softmaxima import robust as robust
    from softmaxima import sampling as sampling
    from softmaxima import secure as secure
    from softmaxima import segments as segments
    from softmaxima import temperature as temperature
    from softmaxima.attn import *
    from softmaxima.derivatives import *
    from softmaxima.heads import *
    from softmaxima.integrations import *
    from softmaxima.io import *
    from softmaxima.losses import *
    from softmaxima.lse import *
    from softmaxima.maps import *
    from softmaxima.mixture import *
    from softmaxima.sampling import *
    from softmaxima.segments import *
    from softmaxima.temperature import *
else:
    # The rooms with public names, from the ground up. Names are imported on first use, with their room, so that the command line
    # answers and sums files without loading torch. What is not in this table is a name of the maps, or none.
    _ROOMS = {
        "io": """
            LogSumExpState file_logsumexp
        """,
        "maps": "",
        "derivatives": """
            hessian_vector_product jacobian
        """,
        "lse": """
            Estimate InnerProduct Interval ScoreSummary Sparsified TraceEstimate adaptive_bounds
            adaptive_logsumexp basic_bounds bounds estimate gap_bounds histogram_bounds
            inner_product_index inverse_softplus lipschitz_bounds log1mexp log_mean_exp logaddexp logcumsumexp
            logmatmulexp logsumexp matrix_logsumexp mean_bounds median_of_means_logsumexp multimodal_logsumexp quantized_logsumexp
            quantized_softmax real_softmax real_softmin renyi_bounds robust_interval scipy_logsumexp
            sequence_logsumexp softplus sparsified_logsumexp streaming_logsumexp trimmed_logsumexp
            winsorized_logsumexp
        """,
        "losses": """
            AMSoftmaxLoss ArcFace CosFace CrossEntropyLoss ElasticCrossEntropyLoss Entmax15Loss EntmaxLoss
            EpsCrossEntropyLoss FenchelYoungLoss FocalLoss FusedmaxLoss Loss LossModule OscarmaxLoss PerturbMaxLoss
            SoftAccuracyLoss SparseSoftmaxLoss SparsemaxLoss SurrogateLoss am_softmax_loss arcface cosface cross_entropy
            elastic_cross_entropy entmax15_loss entmax_loss eps_cross_entropy fenchel_young_loss focal_loss
            fusedmax_loss oscarmax_loss perturb_max_loss soft_accuracy_loss sparse_softmax_loss sparsemax_loss
            surrogate_loss
        """,
        "temperature": """
            CosineTemperature EntropyTarget ExponentialTemperature GeometricTemperature LayerwiseTemperature LinearTemperature
            Positive Reliability ScalingCalibration StateTemperature Temperature TemperatureCalibration TemperatureSchedule
            calibrate_scaling calibrate_temperature entropy_temperature reliability
        """,
        "mixture": "MixtureOfMaps",
        "heads": """
            AdaptiveSoftmax FrequencySampler HierarchicalSoftmax InBatchSampler InBatchSoftmax LearnedSampler LinearLoss
            LinearOutputs LogUniformSampler MarginSoftmax NoiseContrastive SampledSoftmax Sampler StreamingFrequency
            TopClasses Tree UniformSampler UnigramSampler in_batch_softmax_loss linear_loss margin_softmax_loss
            noise_contrastive_loss sampled_softmax_loss
        """,
        "segments": "Segments segment_log_mean_exp segment_logsumexp segment_map segment_softmax",
        "attn": "AttentionInParts MultiheadAttention attention attention_in_parts linear_attention merge_attention",
        "sampling": """
            GumbelSoftmax OrderedDraw Relax expectation gumbel_max gumbel_softmax gumbel_top_k perturbed_argmax
            rao_blackwell_gumbel rebar reinforce reinmax relax relaxed_sample relaxed_top_k score_function second_moment
            straight_through sum_and_sample
        """,
        "integrations": "AttentionReplacement Classifier TemperatureCalibrator replace_attention",
    }
    # Rooms by their own names: other forms of what is here, and of other libraries, with the package that they need.
    _APART = {
        "distributed": "torch", "dask": "dask", "robust": "torch", "policy": "torch", "graph": "torch_geometric",
        "privacy": "opendp", "secure": "mpyc", "federated": "torch",
    }  # fmt: skip
    _NAMES = {name: room for room, names in _ROOMS.items() for name in names.split()}
    _RENAMED = {"normalize": "proportional", "Normalize": "Proportional"}

    def __getattr__(name: str) -> Any:
        if name in _ROOMS or name in _APART:
            return importlib.import_module(f"softmaxima.{name}")
        if name == "__all__":
            absent = {"REGISTRY"} if importlib.util.find_spec("sklearn") else {"REGISTRY", "Classifier", "TemperatureCalibrator"}
            return sorted({*_NAMES, *__getattr__("maps").__all__} - absent)  # one REGISTRY of the maps, and one of the losses
        if name in _RENAMED:
            warnings.warn(f"sm.{name} is called sm.{_RENAMED[name]} now", DeprecationWarning, stacklevel=2)
            return __getattr__(_RENAMED[name])
        room = None if name.startswith("_") or name == "REGISTRY" else __getattr__(_NAMES.get(name, "maps"))
        if room is None or name not in room.__all__:
            unknown = importlib.import_module("softmaxima.base.names").unknown_name
            raise unknown("softmaxima", name, () if name.startswith("_") else __dir__())
        globals()[name] = found = getattr(room, name)
        return found

    # Without what is not installed, for whoever lists names takes each of them.
    def __dir__() -> list[str]:
        apart = {name for name, package in _APART.items() if importlib.util.find_spec(package)}
        own = {name for name in globals() if name.startswith("__")}
        return sorted({*own, *_ROOMS, *apart, *__getattr__("__all__")})
