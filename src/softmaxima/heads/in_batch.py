r"""In-batch softmax: the cross-entropy of each query's own item among the items of all pairs (q_i, v_i), s_ij = ⟨q_i, v_j⟩/τ.

    L_i = −log( e^{s_ii + a_i} / (e^{s_ii + a_i} + Σ_{j≠i} e^{s_ij − log Q(j)}) ),     the j that are the item of i left out

The items are draws of the items' own distribution Q. The corrections a are those of `corrections.py`, m′ the number of items left.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from softmaxima.base.arguments import COMPUTE_DTYPE, as_scores, as_tensor, check_device, check_value, like_input, scale_domain
from softmaxima.base.cosines import unrounded
from softmaxima.base.modules import WithOptions, held_value
from softmaxima.base.numbers import TEMPERATURE, check_choice, check_flag
from softmaxima.base.public import public
from softmaxima.base.tracing import is_concrete, is_keeping, may_differentiate, sizes, transforming
from softmaxima.heads.arguments import as_rows_of
from softmaxima.heads.corrections import CORRECTIONS, check_log_q, check_removal, target_correction
from softmaxima.heads.labelled import HELD, slices
from softmaxima.losses.arguments import REDUCTIONS
from softmaxima.losses.cross_entropy import cross_entropy


@dataclass(frozen=True)
class Pairs:
    """What the items of a batch are, beside their vectors."""

    ids: Tensor | None  # [n]; None where all items are different or hits are kept
    log_q: Tensor | None  # [n], float64; None where nothing is corrected
    correction: str

    def losses(self, scores: Tensor, some: slice) -> Tensor:
        """[rows] of the scores [rows, n] of some of the queries, in float32 or float64."""
        n = scores.shape[1]
        place = torch.arange(n, device=scores.device)
        own = place[some, None] == place
        left = scores.new_zeros(scores.shape[0]) + (n - 1)
        if self.ids is not None:
            hits = (self.ids[some, None] == self.ids) & ~own
            left = left - hits.sum(-1)
            scores = scores.masked_fill(hits, -math.inf)
        if self.log_q is not None:
            correction = target_correction(self.correction, self.log_q[some], left).to(scores.dtype)
            scores = scores + torch.where(own, correction.unsqueeze(-1), -self.log_q.to(scores.dtype))
        return cross_entropy(scores, place[some], reduction="none")


@public
def in_batch_softmax_loss(
    queries: Any,
    items: Any,
    item_ids: Any = None,
    log_q: Any = None,
    *,
    correction: str | None = None,
    remove_hits: bool = True,
    symmetric: bool = False,
    temperature: float | Tensor = 1.0,
    reduction: str = "mean",
) -> Any:
    r"""Cross-entropy of each query's own item among the items of the batch, `−log softmax(s_i)_i`, s_ij = ⟨q_i, v_j⟩/τ, in nats.

    With log Q the items of the other pairs stand for all items, by how likely each was to be in the batch; the corrections are
    those of `sampled_softmax_loss`. Without it popular items are penalised, which are negatives more often.

    Args:
        queries: q, (…, features), float64, float32, bfloat16 or float16.
        items: v, of the shape and dtype of queries; v_i is the item of q_i.
        item_ids: (…), integers; the same item elsewhere in the batch is an accidental hit. None: all are different.
        log_q: (…), the logarithm of each item's probability in the distribution from which the items come, such as of
            `StreamingFrequency`. It is a constant.
        correction: "positive", "log_q" or "none"; None is "positive" with log_q, and "none" without. With "none" and the hits the
            scores learn log p − log Q, but for a constant a row.
        remove_hits: leave out the hits that item_ids tell of, as "positive" needs.
        symmetric: the mean of this and of the cross-entropy of each item's own query among the queries, which has no correction
            but the same hits, as of CLIP.
        temperature: τ > 0, a number or a tensor of one number, which may require a gradient.
        reduction: "mean", "sum" or "none" (…).

    Returns:
        A scalar, or one value a row, of queries' dtype. The scores are float32 at least, also under autocast. A query beside which
        there are hits alone has the loss 0.

    Raises:
        TypeError or ValueError, before any work: shapes and dtypes, a correction without log_q, an item of probability 0, or of
        probability 1 beside others.

    Cost: n² scores. Beyond 64 MiB rows are computed in parts, one after the other, and again for the gradient. Sources: Yi et al.
    (2019) and Khrylchenko et al. (2025), arXiv:2507.09331; Radford et al. (2021), arXiv:2103.00020, for the symmetric form.

    >>> import torch, softmaxima as sm
    >>> vectors = torch.eye(3)
    >>> sm.in_batch_softmax_loss(vectors, vectors)
    tensor(0.5514)
    >>> sm.in_batch_softmax_loss(vectors, vectors, torch.tensor([4, 4, 5]))
    tensor(0.3927)
    >>> sm.in_batch_softmax_loss(vectors, vectors, torch.tensor([4, 4, 5]), torch.tensor([0.6, 0.6, 0.4]).log())
    tensor(0.3133)
    """
    name = "in_batch_softmax_loss"
    options = check_options(name, correction, remove_hits, symmetric, reduction, log_q)
    return corrected_loss(as_batch(name, queries, items, item_ids, temperature), log_q, *options)


@dataclass(frozen=True)
class Batch:
    """Pairs of a query and its item."""

    name: str  # of the function or module
    queries: Tensor  # [..., features]
    items: Tensor  # the same
    ids: Tensor | None  # [n]
    tau: float | Tensor  # one number
    given: Any  # the queries as they came, whose kind results have


def as_batch(name: str, queries: Any, items: Any, item_ids: Any, temperature: Any) -> Batch:
    """Checked."""
    q = as_scores(name, queries, "queries")
    v = check_device(name, "items", as_scores(name, items, "items"), q)
    if q.ndim == 0:
        raise ValueError(f"{name}: queries must be (…, features), got a 0-d tensor; give queries.reshape(1)")
    if sizes(v) != sizes(q) or v.dtype != q.dtype:
        raise ValueError(
            f"{name}: items must be one for each query, {q.dtype} of shape {sizes(q)} as queries are, got {v.dtype} of {sizes(v)}"
        )
    ids = None if item_ids is None else _check_each(name, "item_ids", item_ids, q, floating=False)
    tau = check_value(name, "temperature", temperature, *scale_domain(q.dtype))
    if isinstance(tau, Tensor):
        if tau.numel() != 1:
            raise ValueError(f"{name}: temperature must be one number, got shape {sizes(tau)}; divide queries by one for each row")
        tau = check_device(name, "temperature", tau.reshape(()), q)
    return Batch(name, q, v, ids, tau, queries)


def corrected_loss(batch: Batch, log_q: Any, correction: str, remove_hits: bool, symmetric: bool, reduction: str) -> Any:
    """The cross-entropy of each pair among all."""
    name, q, v, ids = batch.name, batch.queries, batch.items, batch.ids
    known = None if correction == "none" else _check_each(name, "log_q", log_q, q, floating=True).double()
    if known is not None:
        check_log_q(name, "log_q", "item", known, torch.arange(known.numel()) if ids is None else ids)
        _check_others(name, known, ids)
    pairs = Pairs(ids if remove_hits else None, known, correction)
    shape, wide = q.shape[:-1], COMPUTE_DTYPE[q.dtype]
    with unrounded(q):
        rows, columns = as_rows_of(q).to(wide) / batch.tau, as_rows_of(v).to(wide)
        values = _losses(pairs, rows, columns, symmetric)
        if reduction != "none":
            values = values.sum() if reduction == "sum" else values.mean()
    return like_input(values.to(q.dtype).reshape(shape if reduction == "none" else ()), batch.given)


def _losses(pairs: Pairs, queries: Tensor, items: Tensor, symmetric: bool) -> Tensor:
    """[n]."""
    n = sizes(queries)[0]
    parts = [slice(None)] if is_keeping() else slices(n, max(1, HELD // (queries.element_size() * max(1, n))))
    back = Pairs(pairs.ids, None, "none")
    if len(parts) == 1:
        scores = queries @ items.T
        losses = pairs.losses(scores, parts[0])
        return (losses + back.losses(scores.T, parts[0])) / 2 if symmetric else losses
    again = may_differentiate((queries, items)) and not transforming()

    def direction(own: Pairs, rows: Tensor, columns: Tensor) -> Tensor:
        def part(some: slice) -> Tensor:
            return own.losses(rows[some] @ columns.T, some)

        return torch.cat([checkpoint(part, some, use_reentrant=False) if again else part(some) for some in parts])

    losses = direction(pairs, queries, items)
    return (losses + direction(back, items, queries)) / 2 if symmetric else losses


def check_options(
    name: str, correction: Any, remove_hits: Any, symmetric: Any, reduction: Any, log_q: Any
) -> tuple[str, bool, bool, str]:
    """(correction, remove_hits, symmetric, reduction)."""
    if correction is None:
        correction = "none" if log_q is None else "positive"
    check_choice(name, "correction", correction, CORRECTIONS)
    if correction != "none" and log_q is None:
        raise ValueError(f"{name}: correction={correction!r} needs log_q, got None; give each item's, or correction='none'")
    removes = check_flag(name, "remove_hits", remove_hits)
    check_removal(name, correction, removes)
    return correction, removes, check_flag(name, "symmetric", symmetric), check_choice(name, "reduction", reduction, REDUCTIONS)


def _check_each(name: str, what: str, values: Any, queries: Tensor, floating: bool) -> Tensor:
    """[n], one value for each item."""
    each = check_device(name, what, as_tensor(name, what, values), queries)
    kind = "floating-point number" if floating else "integer"
    if each.is_floating_point() != floating or each.is_complex() or each.dtype == torch.bool or sizes(each) != sizes(queries)[:-1]:
        raise ValueError(
            f"{name}: {what} must hold one {kind} for each item, of shape {sizes(queries)[:-1]}, got {each.dtype} of {sizes(each)}"
        )
    return each.detach().flatten()


def _check_others(name: str, log_q: Tensor, ids: Tensor | None) -> None:
    """An item of probability 1 has no others beside it."""
    if is_concrete(log_q) and bool((certain := log_q == 0).any()):
        others = log_q.numel() > 1 if ids is None else bool((ids != ids[certain][0]).any())
        if others:
            place = int(certain.nonzero()[0])
            raise ValueError(f"{name}: log_q gives item {place} the probability 1, but others are in the batch; give each its own")


@public
class InBatchSoftmax(WithOptions, nn.Module):
    """`in_batch_softmax_loss` as a module, which may learn log Q from the batches that it sees.

    Args:
        frequencies: what has `observe(ids)` and `log_prob(ids)`, such as `StreamingFrequency(buckets)`, or
            `FrequencySampler(items, smoothing=0.0)` where ids are 0, …, items − 1 (its smoothing is for what it draws itself, and
            items of a batch are not). It is told of the item ids in training mode, and asked for their log Q, once all checks of a
            call have passed. Until the items have come by a few times log Q is too large, by nats at first: let it observe ids
            before training. None: log_q is given, or nothing is corrected.
        The others: as of `in_batch_softmax_loss`; correction=None is "positive" with frequencies too. A temperature may learn, as
            `Positive(0.1, minimum=0.01)` does.

    forward(queries, items, item_ids=None, log_q=None); with frequencies the ids are needed, and log_q is not. A log_q that is given
    counts in the place of the frequencies', which are then neither asked nor told of the batch.

    >>> import torch, softmaxima as sm
    >>> loss = sm.InBatchSoftmax(sm.StreamingFrequency(1000), temperature=sm.Positive(0.5))
    >>> loss(torch.eye(3), torch.eye(3), torch.tensor([17, 4, 17])).detach()
    tensor(0.1269)
    """

    def __init__(
        self,
        frequencies: Any = None,
        *,
        correction: str | None = None,
        remove_hits: bool = True,
        symmetric: bool = False,
        temperature: float | Tensor | nn.Module = 1.0,
        reduction: str = "mean",
    ) -> None:
        super().__init__()
        name = type(self).__name__
        if frequencies is not None and not (hasattr(frequencies, "observe") and hasattr(frequencies, "log_prob")):
            raise TypeError(
                f"{name}: frequencies must have observe and log_prob, got {type(frequencies).__name__}; use StreamingFrequency"
            )
        check_options(name, correction, remove_hits, symmetric, reduction, frequencies if correction is None else ())
        self.frequencies = frequencies
        self.hold(
            correction=correction,
            remove_hits=remove_hits,
            symmetric=symmetric,
            temperature=held_value(name, "temperature", temperature, *TEMPERATURE),
            reduction=reduction,
        )

    def forward(self, queries: Any, items: Any, item_ids: Any = None, log_q: Any = None) -> Any:
        name, own = type(self).__name__, self.options
        batch = as_batch(name, queries, items, item_ids, own.pop("temperature"))
        frequencies = self.frequencies if log_q is None else None
        options = check_options(name, **own, log_q=log_q if frequencies is None else frequencies)
        if frequencies is not None:
            if batch.ids is None:
                raise ValueError(f"{name}: item_ids must be given where frequencies learns of them, got None; give each item's")
            ids = batch.ids.view(sizes(batch.queries)[:-1])
            if self.training:  # of a call that has passed all checks
                frequencies.observe(ids)
            log_q = frequencies.log_prob(ids)
        return corrected_loss(batch, log_q, *options)
