"""logsumexp of scores that stay with many clients: of what each sends of its own, exactly or within an interval."""

from softmaxima.base.public import listing
from softmaxima.federated.merging import Merged, merge
from softmaxima.federated.private import private_logsumexp, secure_logsumexp
from softmaxima.federated.summaries import Summary, summarise

__all__ = ["Merged", "Summary", "merge", "private_logsumexp", "secure_logsumexp", "summarise"]
__dir__ = listing(globals())
