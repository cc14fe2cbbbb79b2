"""Maps and sums over segments: rows of any lengths, as the neighbours of a node or sequences in a batch are."""

from softmaxima.base.public import listing
from softmaxima.segments.grouping import Segments
from softmaxima.segments.maps import segment_map, segment_softmax
from softmaxima.segments.sums import segment_log_mean_exp, segment_logsumexp

__all__ = ["Segments", "segment_log_mean_exp", "segment_logsumexp", "segment_map", "segment_softmax"]
__dir__ = listing(globals())
