r"""AdaptiveSoftmax: frequent classes in a short list, rare ones in clusters with fewer features, which few rows need.

    class of rank r < c_1:              log p = log softmax(W_0 h + b)_r
    class of rank c_i ≤ r < c_{i+1}:    log p = log softmax(W_0 h + b)_{c_1 + i − 1} + log softmax(W_i U_i h)_{r − c_i}

U_i has ⌊D/div_value^i⌋ rows. With the clusters' shares P_i of the labels a row costs, in multiplications, on average

    D (c_1 + K) + Σ_i P_i ⌊D/div_value^i⌋ (D + c_{i+1} − c_i)        for K clusters.

The default are cutoffs for which the ranks from c_i on have no more than 2⁻ⁱ of the labels, so that at least half of the labels
keep all features, and three quarters lose some once at most: among ranks near 2^(m/16) those of the smallest cost.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cached_property
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import linear, pad

from softmaxima.base.arguments import as_tensor, check_place, check_values
from softmaxima.base.numbers import check_int, check_number, described
from softmaxima.base.public import public
from softmaxima.heads.factored import FactoredHead, draw_each
from softmaxima.heads.linear_loss import linear_loss
from softmaxima.heads.trees import as_integers, check_frequencies
from softmaxima.losses.cross_entropy import cross_entropy
from softmaxima.maps.log_softmax import LOG_SOFTMAX

HELD = 2**24  # numbers that are made at a time
FEW = 2**18  # scores that are sooner held than parted
FREE = ("frequencies", "temperature", "class_weight", "ignore_index", "reduction", "device", "dtype")  # beside torch's module
CLUSTERS, FEATURES = 4, 8  # of cutoffs that are chosen: so many clusters at most, those after the first with so many features


@public
class AdaptiveSoftmax(FactoredHead):
    r"""A softmax over very many classes, some much more frequent than others, after Grave et al. (2017).

    It has the parameters of `torch.nn.AdaptiveLogSoftmaxWithLoss`, their names in the state dict, and its probabilities. What
    differs: forward returns the loss, as losses do, where torch's returns (log p of the target, loss); labels may come in any order
    and any shape, and some may be ignored; there are reductions and class weights.

    Args:
        in_features: D, the size of h.
        classes: V.
        cutoffs: the ranks c_1 < c_2 < … at which clusters begin, between 1 and V − 1; () for a plain softmax. None chooses up to 4
            of them by `frequencies`, or by Zipf's law f_r ∝ 1/(r + 1): of those for which the ranks from c_i on have no more than
            2⁻ⁱ of the labels, so that frequent classes keep their features, and clusters after the first have 8 features at least,
            the ones of the fewest multiplications a row. Ranks are looked for on a grid, 16 to an octave, which costs up to 4 %.
            What is counted is no time, which depends on the machine and on how many rows come at once, and says nothing of the loss
            that a model reaches.
        div_value: the clusters have ⌊D/div_value⌋, ⌊D/div_value²⌋, … features; at least 1.
        head_bias: whether the short list and the clusters have a bias.
        frequencies: one number of at least 0 for each class, in any order; a class's rank is its place by falling frequency.
            Without them class 0 is the most frequent, as torch has it.
        temperature: τ > 0, a number, a tensor of one, or a module such as `Positive`, which learns; divides h and the bias.
        class_weight: one weight a class, as `weight` of `cross_entropy`.
        ignore_index, reduction: as of `cross_entropy`.
        device, dtype: of the parameters.

    Shapes: forward(hidden, target) takes (…, D) and class indices (…), and gives the loss in nats, −log p of the target, reduced.
    `log_prob(hidden)` is (…, V), `predict(hidden, k)` and `topk(hidden, k)` (…, k), `sample(hidden, shape)` (*shape, …).

    There is no label_smoothing, which needs the scores of all classes. Scores and sums are float32 at least, also under autocast:
    of half precision the loss, `log_prob` and the gradients of hidden states and layers are those of float32, rounded once. The
    ranks are in the state dict. A cluster that has none of the labels gets no gradient, None as from torch's. torch.compile leaves
    the head out of its graph, and refuses fullgraph=True.

    Raises:
        TypeError, ValueError or IndexError, before any work: shapes and dtypes, a target out of range, cutoffs that do not rise.

    Cost of the loss, in multiplications a row with the clusters' shares P_i of the labels: D (c_1 + K) for the short list and K
    clusters, and Σ_i P_i ⌊D/div_value^i⌋ (D + c_{i+1} − c_i) for these; in half precision a float32 copy of the weights. `topk` is
    exact, and looks at a cluster only for rows where it is more probable than the k-th class that was found. Source: Grave et al.
    (2017), arXiv:1609.04309.

    >>> import torch
    >>> from softmaxima.heads.adaptive import AdaptiveSoftmax
    >>> head = AdaptiveSoftmax(64, 100_000)
    >>> head.cutoffs
    (2233,)
    >>> hidden, target = torch.randn(2, 4, 64), torch.tensor([[0, 7, 99_999, -100], [5, 5, 123, 4_567]])
    >>> head(hidden, target).backward()
    >>> head.predict(hidden, k=3).shape
    torch.Size([2, 4, 3])
    """

    rank: Tensor | None  # of each class
    order: Tensor | None  # the class of each rank

    def __init__(
        self,
        in_features: int,
        classes: int,
        cutoffs: Sequence[int] | None = None,
        *,
        div_value: float = 4.0,
        head_bias: bool = False,
        frequencies: Any = None,
        temperature: float | Tensor | nn.Module = 1.0,
        class_weight: Tensor | None = None,
        ignore_index: int = -100,
        reduction: str = "mean",
        device: Any = None,
        dtype: Any = None,
    ) -> None:
        name = type(self).__name__
        own = check_place(name, device, dtype)
        super().__init__(
            in_features,
            classes,
            class_weight=class_weight,
            temperature=temperature,
            ignore_index=ignore_index,
            reduction=reduction,
            **own,
        )
        self.div_value = check_number(
            name, "div_value", div_value, lambda value: 1 <= value < np.inf, "a finite number of at least 1"
        )
        weights = None if frequencies is None else check_frequencies(name, frequencies, self.classes)
        order = None if weights is None else np.argsort(-weights, kind="stable")
        if cutoffs is None:
            falling = 1 / np.arange(1.0, self.classes + 1) if weights is None else weights[order]
            self.cutoffs = cheapest_cutoffs(falling, self.in_features, self.div_value)
        else:
            self.cutoffs = _check_cutoffs(name, cutoffs, self.classes)
        self.head = nn.Linear(self.in_features, self._short + len(self.cutoffs), bias=head_bias, **own)
        self.tail = nn.ModuleList()
        for i, (first, last) in enumerate(pairwise((*self.cutoffs, self.classes)), 1):
            features = int(self.in_features // self.div_value**i)
            if features == 0:
                none = f"cluster {i} has {self.in_features} // {self.div_value}**{i} = 0"
                raise ValueError(f"{name}: each cluster must have features, but {none}; give fewer cutoffs or a smaller div_value")
            layers = nn.Linear(self.in_features, features, bias=False, **own), nn.Linear(features, last - first, bias=False, **own)
            self.tail.append(nn.Sequential(*layers))
        self._hold_ranks(None if order is None else torch.from_numpy(order).argsort(), self.head.weight.device)

    @classmethod
    def from_torch(cls, module: nn.AdaptiveLogSoftmaxWithLoss, **options: Any) -> AdaptiveSoftmax:
        """A head with the parameters of torch's module, copied, and so with its probabilities.

        `options` are those of this class that the module does not decide on. Raises TypeError for others, and for another module.

        >>> import torch
        >>> from softmaxima.heads.adaptive import AdaptiveSoftmax
        >>> module = torch.nn.AdaptiveLogSoftmaxWithLoss(16, 100, cutoffs=[10, 50])
        >>> AdaptiveSoftmax.from_torch(module, reduction="sum").cutoffs
        (10, 50)
        """
        if not isinstance(module, nn.AdaptiveLogSoftmaxWithLoss):
            raise TypeError(f"{cls.__name__}.from_torch: module must be torch's, got {type(module).__name__}")
        if unknown := options.keys() - set(FREE):
            raise TypeError(
                f"{cls.__name__}.from_torch: options must be among {', '.join(FREE)}, got {', '.join(sorted(unknown))}; the module "
                "decides on its layers"
            )
        weight = module.head.weight
        own = {"div_value": module.div_value, "head_bias": module.head_bias, "device": weight.device, "dtype": weight.dtype}
        made = cls(module.in_features, module.n_classes, module.cutoffs[:-1], **{**own, **options})
        made.load_state_dict({**made.state_dict(), **module.state_dict()})
        return _as(module, made)

    def to_torch(self) -> nn.AdaptiveLogSoftmaxWithLoss:
        """torch's module with these parameters, copied, and so with these probabilities.

        Its loss is the mean over all rows: it knows no class weights and no ignore_index. Raises ValueError where no module of
        torch's has the probabilities: for ranks, a temperature, and no cutoffs.
        """
        name = f"{type(self).__name__}.to_torch"
        if self.rank is not None:
            raise ValueError(
                f"{name}: torch's module takes ranks as labels; build the head without frequencies, and give it rank[target]"
            )
        tau = self.options["temperature"]
        if not self.cutoffs or isinstance(tau, Tensor) or tau != 1:
            raise ValueError(f"{name}: torch's module has cutoffs and no temperature, got {self.cutoffs} and {tau}")
        weight = self.head.weight
        made = nn.AdaptiveLogSoftmaxWithLoss(
            self.in_features, self.classes, self.cutoffs, self.div_value, self.head.bias is not None, weight.device, weight.dtype
        )
        made.load_state_dict({key: value for key, value in self.state_dict().items() if key != "class_weight"})
        return _as(self, made)

    def reset_parameters(self) -> None:
        """As of `nn.Linear`."""
        for layer in self.modules():
            if isinstance(layer, nn.Linear):
                layer.reset_parameters()

    def _hold_ranks(self, rank: Tensor | None, device: Any) -> None:
        self.register_buffer("rank", None if rank is None else rank.to(device, copy=True))
        self.register_buffer("order", None if rank is None else rank.argsort().to(device), persistent=False)

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *others: Any, **named: Any) -> None:
        """Check the ranks of the state dict before they are taken."""
        given, name = state_dict.get(f"{prefix}rank"), type(self).__name__
        if given is not None and self.rank is not None:
            try:
                rank = as_integers(name, "rank", given)
                if not np.array_equal(np.sort(rank), np.arange(self.classes)):
                    got = f"{len(rank)} numbers from {rank.min()} to {rank.max()}"
                    raise ValueError(f"{name}: rank must hold each of 0 … {self.classes - 1} once, got {got}")
            except (TypeError, ValueError) as error:
                others[-1].append(str(error))
                return
            self._hold_ranks(torch.from_numpy(rank), given.device if self.rank.is_meta else self.rank.device)
        super()._load_from_state_dict(state_dict, prefix, *others, **named)

    @property
    def _first_weight(self) -> Tensor:
        return self.head.weight

    @property
    def _short(self) -> int:
        """How many classes are in the short list."""
        return (*self.cutoffs, self.classes)[0]

    def _losses(self, states: Tensor, labels: Tensor, left_out: Tensor | None, reduction: str) -> Tensor:
        one, layers = reduction == "sum", _Layers(self, states.dtype)
        rows, kept = len(states), None if left_out is None else (~left_out).nonzero().squeeze(1)
        if kept is not None:
            states, labels = states[kept], labels[kept]
        rank = (labels if self.rank is None else self.rank[labels]).contiguous()
        starts = torch.tensor(self.cutoffs, dtype=torch.long, device=rank.device)
        cluster = torch.bucketize(rank, starts, right=True)  # 0 of the short list
        place = rank.where(cluster == 0, self._short - 1 + cluster)
        losses = _linear_losses(states, *layers.first, place, one)
        order, last = cluster.argsort(), cluster.bincount(minlength=len(self.cutoffs) + 1).cumsum(0).tolist()
        for i, (first, (a, b)) in enumerate(zip(self.cutoffs, pairwise(last), strict=True)):
            if a < b:
                own, (inner, outer) = order[a:b], layers.cluster(i)
                more = _linear_losses(linear(states.index_select(0, own), inner), outer, None, rank[own] - first, one)
                losses = losses + more if one else losses.index_add(0, own, more)
        if kept is not None and not one:
            losses = losses.new_zeros(rows).index_copy(0, kept, losses)
        return losses.sum() if reduction == "sum" else losses

    def _log_prob(self, states: Tensor) -> Tensor:
        step = max(1, HELD // (3 * self.classes), len(states) // 32)  # so that it is little beside what is returned
        layers = _Layers(self, states.dtype)
        log_p = torch.cat([self._log_p_by_rank(layers, part) for part in states.split(step)])
        return log_p if self.rank is None else log_p.index_select(1, self.rank)

    def _log_p_by_rank(self, layers: _Layers, states: Tensor) -> Tensor:
        first = layers.log_p(states)
        clusters = [layers.log_p_within(i, states) + first[:, self._short + i, None] for i in range(len(self.cutoffs))]
        return torch.cat((first[:, : self._short], *clusters), 1)

    def _best(self, states: Tensor, k: int) -> tuple[Tensor, Tensor]:
        step, layers = max(1, HELD // (3 * self.head.out_features)), _Layers(self, states.dtype)
        found = [self._best_of_part(layers, part, k) for part in states.split(step)]
        log_p, rank = (torch.cat(parts) for parts in zip(*found, strict=True))
        return log_p, rank if self.order is None else self.order[rank]

    def _best_of_part(self, layers: _Layers, states: Tensor, k: int) -> tuple[Tensor, Tensor]:
        first, short, step = layers.log_p(states), self._short, max(1, HELD // (3 * self.classes))
        log_p, rank = first[:, :short].topk(min(k, short))
        if k > short:
            log_p, rank = pad(log_p, (0, k - short), value=-math.inf), pad(rank, (0, k - short))
        for i, cutoff in enumerate(self.cutoffs):
            bound = first[:, short + i]
            near = (~(bound <= log_p[:, -1])).nonzero().squeeze(1)  # also where it is NaN
            for rows in near.split(step):
                own = layers.log_p_within(i, states[rows]) + bound[rows].unsqueeze(1)
                more, place = own.topk(min(k, own.shape[1]))
                log_p[rows], chosen = torch.cat((log_p[rows], more), 1).topk(k)
                rank[rows] = torch.cat((rank[rows], place + cutoff), 1).gather(1, chosen)
        few = (log_p[:, -1] == -math.inf).nonzero().squeeze(1)  # fewer than k classes were found
        for rows in few.split(step):
            log_p[rows], rank[rows] = self._log_p_by_rank(layers, states[rows]).topk(k)
        return log_p, rank

    def _draw(self, states: Tensor, times: int, generator: torch.Generator | None) -> Tensor:
        layers, who = _Layers(self, states.dtype), torch.arange(len(states), device=states.device).repeat(times)
        place = draw_each(who, lambda rows: layers.log_p(states[rows]), self.head.out_features, HELD // 4, generator)
        rank = place.clone()
        for i, (first, last) in enumerate(pairwise((*self.cutoffs, self.classes))):
            own = (place == self._short + i).nonzero().squeeze(1)
            within = lambda rows, i=i: layers.log_p_within(i, states[rows])
            rank[own] = first + draw_each(who[own], within, last - first, HELD // 4, generator)
        return (rank if self.order is None else self.order[rank]).view(times, len(states))

    def extra_repr(self) -> str:
        own = f"{self.in_features}, {self.classes}, cutoffs={self.cutoffs}, div_value={self.div_value}"
        return f"{own}, frequencies={self.rank is not None}, {super().extra_repr()}"


class _Layers:
    """The layers of a head in the dtype that is computed in, in which their gradients add up: each is made when first asked for."""

    def __init__(self, head: AdaptiveSoftmax, dtype: torch.dtype) -> None:
        self.head, self.dtype = head, dtype
        self.clusters: dict[int, tuple[Tensor, Tensor]] = {}

    @cached_property
    def first(self) -> tuple[Tensor, Tensor | None]:
        """The weight and the bias of the short list and the clusters."""
        layer = self.head.head
        return layer.weight.to(self.dtype), self.head._over_temperature(layer.bias)

    def cluster(self, i: int) -> tuple[Tensor, Tensor]:
        """The weights U_i and W_i."""
        if i not in self.clusters:
            inner, outer = self.head.tail[i]  # type: ignore[misc]
            self.clusters[i] = inner.weight.to(self.dtype), outer.weight.to(self.dtype)
        return self.clusters[i]

    def log_p(self, states: Tensor) -> Tensor:
        """log p of the short list and the clusters."""
        return LOG_SOFTMAX(linear(states, *self.first))

    def log_p_within(self, i: int, states: Tensor) -> Tensor:
        """log p of the classes of a cluster among these."""
        inner, outer = self.cluster(i)
        return LOG_SOFTMAX(linear(linear(states, inner), outer))


def cheapest_cutoffs(frequencies: np.ndarray, in_features: int, div_value: float) -> tuple[int, ...]:
    """The cutoffs of the smallest cost by falling frequencies, on a grid with steps of a sixteenth of an octave."""
    classes = len(frequencies)
    grid = np.unique(np.round(2 ** np.arange(0, np.log2(classes), 1 / 16)).astype(np.int64))
    cuts = np.append(grid[grid < classes], classes)
    before = np.append(0.0, np.cumsum(frequencies / frequencies.sum()))[cuts]  # the share of the ranks before each cut
    least, chosen = in_features * classes, ()
    for clusters in range(1, CLUSTERS + 1):
        if in_features // div_value**clusters < max(1, min(FEATURES, in_features // div_value)):
            break
        cost, following = np.where(cuts == classes, 0.0, np.inf), []  # of the clusters from each cut on
        for i in range(clusters, 0, -1):
            features = in_features // div_value**i
            own = (before - before[:, None]) * features * (in_features + cuts - cuts[:, None])  # [begin, end]
            whole = np.where((cuts > cuts[:, None]) & (1 - before[:, None] <= 2.0**-i), own + cost, np.inf)
            following.append(whole.argmin(1))
            cost = whole.min(1)
        whole = in_features * (cuts + clusters) + cost
        place = int(whole.argmin())
        if whole[place] < least:
            least, found = whole[place], []
            for step in reversed(following):
                found.append(int(cuts[place]))
                place = step[place]
            chosen = tuple(found)
    return chosen


def _linear_losses(states: Tensor, weight: Tensor, bias: Tensor | None, labels: Tensor, one: bool) -> Tensor:
    """The cross-entropies [rows] of a linear layer, or their one sum."""
    reduction = "sum" if one else "none"
    if len(states) * len(weight) > FEW:
        return linear_loss(states, weight, labels, bias=bias, reduction=reduction)
    return cross_entropy(linear(states, weight, bias), labels, reduction=reduction)


def _as(module: nn.Module, made: Any) -> Any:
    """What was made of a module, which trains what that trains."""
    for own, other in zip(made.parameters(), module.parameters(), strict=True):
        own.requires_grad_(other.requires_grad)
    return made.train(module.training)


def _check_cutoffs(name: str, cutoffs: Any, classes: int) -> tuple[int, ...]:
    if isinstance(cutoffs, (Tensor, np.ndarray)):
        cutoffs = check_values(name, "cutoffs", as_tensor(name, "cutoffs", cutoffs)).tolist()
    if isinstance(cutoffs, (str, bytes)) or not hasattr(cutoffs, "__iter__"):
        raise TypeError(f"{name}: cutoffs must be ranks, got {described(cutoffs, 'a list of ints')}")
    ranks = tuple(check_int(name, "cutoffs", rank) for rank in cutoffs)
    if any(a >= b for a, b in pairwise((0, *ranks, classes))):
        raise ValueError(f"{name}: cutoffs must rise between 1 and {classes - 1}, one less than the classes, got {list(ranks)}")
    return ranks
