r"""Samplers: distributions Q over classes, from which negatives are drawn, and whose logarithms correct what that does to a loss.

A sampler draws classes independently and with replacement, and knows log Q of each, normalised and in float64. What a loss makes
of it is in `corrections.py`.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from numbers import Integral
from typing import Any, Protocol, cast, runtime_checkable

import torch
from torch import Tensor, nn

from softmaxima.base.arguments import as_tensor, check_values
from softmaxima.base.numbers import check_count, check_int, check_number, nearest
from softmaxima.base.public import public
from softmaxima.base.randomness import Randomness, as_torch_generator
from softmaxima.base.tracing import is_concrete, sizes
from softmaxima.heads.frequencies import KeepsDouble


@runtime_checkable
class AnySampler(Protocol):
    """What a loss asks of a sampler: a `Sampler`, or any object with these names."""

    classes: int

    def log_prob(self, classes: Tensor) -> Tensor: ...

    def sample(self, shape: Sequence[int], generator: Any = None) -> Tensor: ...


@public
class Sampler(KeepsDouble, ABC):
    """A distribution Q over the classes 0, …, classes − 1.

    Subclasses say `log_prob` and `sample`; one that learns says `observe(target)` too, which a head in training mode calls with
    the labels of each batch before it draws. Wherever a sampler is taken, an object of any class will do that has `classes`,
    `log_prob` and `sample`. It moves with the module that holds it, but its tables keep float64 whatever that is cast to: log Q
    stays exact.

    >>> import torch, softmaxima as sm
    >>> class Even(sm.Sampler):
    ...     def log_prob(self, classes):
    ...         return torch.where(classes % 2 == 0, 2 / self.classes, 0.0).double().log()
    ...     def sample(self, shape, generator=None):
    ...         return 2 * torch.randint(self.classes // 2, shape, generator=generator)
    >>> Even(10).log_prob(torch.tensor([4, 5])).exp()
    tensor([0.2000, 0.0000], dtype=torch.float64)
    """

    place: Tensor

    def __init__(self, classes: int) -> None:
        super().__init__()
        self.classes = check_count(type(self).__name__, "classes", classes)
        self.register_buffer(
            "place", torch.empty(0, device="cpu"), persistent=False
        )  # moves with the module, and so tells where to draw

    @abstractmethod
    def log_prob(self, classes: Any) -> Tensor:
        """Log Q(c) in float64, of each of `classes`, integers of any shape; −∞ where a class is never drawn."""

    @abstractmethod
    def sample(self, shape: int | Sequence[int], generator: Randomness = None) -> Tensor:
        """Classes of Q, int64, independent and with replacement. `shape` is n for (n,), or several sizes: () for a 0-d tensor."""

    def extra_repr(self) -> str:
        return f"classes={self.classes}"

    def _checked(self, classes: Any) -> Tensor:
        return check_classes(type(self).__name__, "classes", classes, self.classes, "class")

    def _uniform(self, shape: int | Sequence[int], generator: Randomness, numbers: int | None = None) -> Tensor:
        """Numbers of [0, 1), float64, drawn where the generator is; one for each place of a shape, or so many."""
        name = type(self).__name__
        axes = check_shape(name, shape) if numbers is None else (numbers, *check_shape(name, shape))
        source = as_torch_generator(name, generator)
        if source is None:
            return torch.rand(axes, dtype=torch.float64, device=self.place.device)
        return torch.rand(axes, dtype=torch.float64, device=source.device, generator=source).to(self.place.device)


def check_shape(name: str, shape: Any) -> tuple[int, ...]:
    """Of draws: an int, or several."""
    domain = "an int, or a tuple of ints, of at least 0"
    return tuple(
        size if type(size) is int and 0 <= size < 2**63 else check_int(name, "shape", size, lambda count: count >= 0, domain)
        for size in (shape if isinstance(shape, (tuple, list)) else (shape,))
    )


def check_classes(name: str, what: str, values: Any, classes: int, kind: str, repair: str = "") -> Tensor:
    """Indices of classes, int64, each of which is a `kind`."""
    given = as_tensor(name, what, values)
    if given.is_floating_point() or given.is_complex() or given.dtype == torch.bool:
        raise TypeError(f"{name}: {what} must hold class indices, got {given.dtype}; call {what}.long()")
    indices = given.long()
    if is_concrete(indices) and bool((wrong := (indices < 0) | (indices >= classes)).any()):
        repair = repair or f"give one of 0, …, {classes - 1}"
        raise IndexError(f"{name}: {kind} {int(indices[wrong][0])} is out of range for {classes} classes; {repair}")
    return indices


def check_seen(name: str, target: Any, classes: int) -> Tensor:
    """Labels to learn of."""
    return check_classes(name, "target", target, classes, "target", "leave out labels that are ignored")


def check_window(name: str, labels: Tensor, window: int) -> None:
    """Where a class that was forgotten has the probability 0, no label of a batch may be."""
    if (count := labels.numel()) > window:
        raise ValueError(
            f"{name}: target must have no more labels than window={window}, lest some be of probability 0, got {count}; give "
            f"window={count} or more"
        )


def inverse(cumulative: Tensor, u: Tensor) -> Tensor:
    """The class c with Σ_{j<c} w_j ≤ u Σ_j w_j < Σ_{j≤c} w_j, one of a positive weight for every u in [0, 1]."""
    total = cumulative[-1]
    found = torch.searchsorted(cumulative, u * total, right=True)
    return torch.minimum(found, torch.searchsorted(cumulative, total))


@public
class UniformSampler(Sampler):
    """Every class alike, `Q(c) = 1/classes`.

    >>> import torch, softmaxima as sm
    >>> sm.UniformSampler(4).log_prob(torch.tensor([0, 3])).exp()
    tensor([0.2500, 0.2500], dtype=torch.float64)
    """

    def log_prob(self, classes: Any) -> Tensor:
        return torch.full_like(self._checked(classes), -math.log(self.classes), dtype=torch.float64)

    def sample(self, shape: int | Sequence[int], generator: Randomness = None) -> Tensor:
        return (self._uniform(shape, generator) * self.classes).long()


@public
class LogUniformSampler(Sampler):
    """Zipf's law for classes that are sorted by falling frequency, `Q(c) = log((c + 2)/(c + 1)) / log(classes + 1)`.

    Args:
        classes: their number.
        first: how many more frequent ones there are before them, which are another's: Q(c) ∝ log((c + first + 2)/(c + first + 1)).

    No tables: a class is the integer part of a log-uniform number of [first + 1, first + classes + 1), less first + 1.

    >>> import torch, softmaxima as sm
    >>> sampler = sm.LogUniformSampler(1_000_000)
    >>> sampler.log_prob(torch.tensor([0, 999_999])).exp()
    tensor([5.0172e-02, 7.2382e-08], dtype=torch.float64)
    >>> sampler.sample((3,), generator=0)
    tensor([661177,  17656,    569])
    """

    def __init__(self, classes: int, first: int = 0) -> None:
        super().__init__(classes)
        self.first = check_int(type(self).__name__, "first", first, lambda place: place >= 0, "an int of at least 0")

    @property
    def _span(self) -> float:
        return math.log1p(self.classes / (self.first + 1))

    def log_prob(self, classes: Any) -> Tensor:
        log_share = (1 / (self._checked(classes).double() + self.first + 1)).log1p().log() - math.log(self._span)
        return log_share.clamp_max(0.0)  # of one class, but for rounding

    def sample(self, shape: int | Sequence[int], generator: Randomness = None) -> Tensor:
        drawn = (self._uniform(shape, generator) * self._span).expm1() * (self.first + 1)
        return drawn.long().clamp_max(self.classes - 1)


@public
class UnigramSampler(Sampler):
    """Classes by their weights, `Q(c) = w_c^power / Σ_j w_j^power`; one of weight 0 is never drawn.

    Args:
        weights: [classes], finite and not negative, such as how often each class was seen.
        power: 1 for the weights themselves, 0.75 as of word2vec, 0 for all alike whose weight is not 0.

    Raises:
        TypeError or ValueError for other weights, among them all 0.

    Cost: 16 bytes a class, and a binary search a draw. Source: Mikolov et al. (2013), arXiv:1310.4546.

    >>> import torch, softmaxima as sm
    >>> sampler = sm.UnigramSampler(torch.tensor([5, 0, 3, 2]))
    >>> sampler.log_prob(torch.arange(4)).exp()
    tensor([0.5000, 0.0000, 0.3000, 0.2000], dtype=torch.float64)
    >>> sampler.sample((8,), generator=0)
    tensor([3, 2, 0, 3, 2, 2, 0, 0])
    """

    log_q: Tensor
    cumulative: Tensor

    def __init__(self, weights: Any, power: float = 1.0) -> None:
        name = type(self).__name__
        weights = check_class_weights(name, weights)
        super().__init__(sizes(weights)[0])
        self.place = torch.empty(0, device=weights.device)
        self.power = check_number(name, "power", power, lambda p: 0 <= p < math.inf, "a finite number of at least 0")
        powers = torch.where(weights > 0, self.power * weights.log(), -math.inf)
        self.register_buffer("log_q", powers.log_softmax(-1), persistent=False)
        self.register_buffer("cumulative", self.log_q.exp().cumsum(-1), persistent=False)

    def log_prob(self, classes: Any) -> Tensor:
        return self.log_q[self._checked(classes)]

    def sample(self, shape: int | Sequence[int], generator: Randomness = None) -> Tensor:
        return inverse(self.cumulative, self._uniform(shape, generator))

    def extra_repr(self) -> str:
        return f"classes={self.classes}, power={self.power}"


def check_class_weights(name: str, weights: Any) -> Tensor:
    """Weights [classes] in float64, not all of them 0."""
    given = as_tensor(name, "weights", weights).detach()
    if given.ndim != 1 or given.numel() == 0 or given.is_complex() or given.dtype == torch.bool:
        raise ValueError(f"{name}: weights must hold one number for each class, got {given.dtype} of shape {sizes(given)}")
    values = given.double()
    wrong = ~((values >= 0) & (values < math.inf))
    if is_concrete(values) and bool(wrong.any()):
        place = int(wrong.nonzero()[0])
        raise ValueError(f"{name}: weights must be finite and not negative, got {float(values[place])} for class {place}")
    if is_concrete(values) and not bool(values.any()):
        raise ValueError(f"{name}: weights must not all be 0, got {sizes(given)[0]} zeros; give one of the classes a weight")
    return values


def check_logits(name: str, logits: Tensor) -> None:
    """Logits whose softmax exists."""
    if not is_concrete(logits):
        return
    if bool((wrong := ~(logits < math.inf)).any()):  # True for NaN
        place = int(wrong.nonzero()[0])
        value = float(logits.detach()[place])
        raise ValueError(f"{name}: logits must be below +∞ and not NaN, got {value} for class {place}; give finite ones, or −∞")
    if bool((logits == -math.inf).all()):
        raise ValueError(f"{name}: logits must not all be −∞, got {logits.numel()} of them; give one of the classes a finite logit")


@public
class LearnedSampler(Sampler):
    """Classes by logits that learn, `Q = softmax(logits)`.

    `loss(target)` is the cross-entropy of Q, whose minimum is the labels' own frequencies: add it to the loss that is minimised,
    or let Q be what another model says. The losses that draw from Q take log Q for a constant: they do not train it.

    Args:
        logits: [classes], an `nn.Parameter` to train or a tensor; or the number of classes, for a parameter of zeros. A class of
            logit −∞ is never drawn.

    Raises:
        TypeError or ValueError for other logits; ValueError too where they are NaN or +∞ when Q is asked for.

    Cost: a read of the logits each time. For frequencies alone `FrequencySampler` needs no training.

    >>> import torch, softmaxima as sm
    >>> sampler = sm.LearnedSampler(torch.tensor([0.0, 0.0, 1.3863]))
    >>> sampler.log_prob(torch.arange(3)).exp()
    tensor([0.1667, 0.1667, 0.6667], dtype=torch.float64)
    >>> sampler.loss(torch.tensor([2, 2]))
    tensor(0.4055, dtype=torch.float64)
    """

    logits: Tensor

    def __init__(self, logits: Tensor | int) -> None:
        name = type(self).__name__
        number = isinstance(logits, Integral)
        values: Any = nn.Parameter(torch.zeros(check_count(name, "logits", logits))) if number else logits
        if not isinstance(values, Tensor) or not values.is_floating_point() or values.ndim != 1 or values.numel() == 0:
            got = f"{values.dtype} of shape {sizes(values)}" if isinstance(values, Tensor) else type(values).__name__
            raise TypeError(
                f"{name}: logits must be floating point, one number for each class, or the number of classes; got {got}"
            )
        check_logits(name, as_tensor(name, "logits", values))
        super().__init__(sizes(values)[0])
        self.place = torch.empty(0, device=values.device)
        if isinstance(values, nn.Parameter):
            self.logits = values
        else:
            self.register_buffer("logits", values)

    def log_prob(self, classes: Any) -> Tensor:
        places = self._checked(classes)
        return self._logits().log_softmax(-1)[places]

    def sample(self, shape: int | Sequence[int], generator: Randomness = None) -> Tensor:
        u = self._uniform(shape, generator)
        return inverse(self._logits().detach().softmax(-1).cumsum(-1), u)

    def _logits(self) -> Tensor:
        """In float64, what training has made of them checked."""
        check_logits(type(self).__name__, self.logits)
        return self.logits.double()

    def loss(self, target: Any) -> Tensor:
        """−log Q of labels, the mean of them, in nats."""
        labels = check_seen(type(self).__name__, target, self.classes)
        return -self.log_prob(labels).mean()


@public
class FrequencySampler(Sampler):
    """Classes as often as labels were seen lately, learned as they come: no frequencies need be known beforehand.

    `Q(c) = (1 − smoothing) n_c/n + smoothing/classes`, with n_c the number of the label c among the last n ≤ `window`: a label
    that is picked from these, or any class. Draws are exactly of this Q. A head tells it of its labels in training mode.

    Args:
        classes: their number.
        window: how many labels are remembered.
        smoothing: in [0, 1]; if it is 0, classes that were not seen are never drawn, and raise where they are labels: no batch may
            then have more labels than the window.

    Cost: 8 bytes a class and a label of the window; a draw costs the same for any number of classes. The state dict has the
    labels.

    >>> import torch, softmaxima as sm
    >>> sampler = sm.FrequencySampler(4, window=3, smoothing=0.2)
    >>> sampler.observe(torch.tensor([0, 0, 2, 2]))
    >>> sampler.log_prob(torch.arange(4)).exp()
    tensor([0.3167, 0.0500, 0.5833, 0.0500], dtype=torch.float64)
    """

    labels: Tensor
    counts: Tensor
    seen: Tensor

    def __init__(self, classes: int, window: int = 2**20, smoothing: float = 0.1) -> None:
        super().__init__(classes)
        name = type(self).__name__
        self.window = check_count(name, "window", window)
        self.smoothing = check_number(name, "smoothing", smoothing, lambda share: 0 <= share <= 1, "in [0, 1]")
        self.register_buffer("labels", torch.full((self.window,), -1, device="cpu"))  # a ring
        self.register_buffer("counts", torch.zeros(self.classes, dtype=torch.long, device="cpu"))
        self.register_buffer("seen", torch.zeros((), dtype=torch.long, device="cpu"))

    def observe(self, target: Any) -> None:
        name = type(self).__name__
        labels = check_values(name, "target", check_seen(name, target, self.classes)).flatten()
        if self.smoothing == 0:
            check_window(name, labels, self.window)
        labels = labels[-self.window :].to(self.labels.device)
        places = (self.seen + torch.arange(labels.numel(), device=labels.device)) % self.window
        forgotten = self.labels[places]
        self.counts.index_add_(0, forgotten.clamp_min(0), -(forgotten >= 0).long())
        self.counts.index_add_(0, labels, torch.ones_like(labels))
        self.labels[places] = labels
        self.seen += labels.numel()

    def log_prob(self, classes: Any) -> Tensor:
        share = self._share()
        return (share * self.counts[self._checked(classes)] / self._known() + (1 - share) / self.classes).log()

    def sample(self, shape: int | Sequence[int], generator: Randomness = None) -> Tensor:
        from_window, u = self._uniform(shape, generator, numbers=2)
        seen = self.labels[(u * self._known()).long()]
        return torch.where(from_window < self._share(), seen, (u * self.classes).long())

    def _known(self) -> Tensor:
        return self.seen.clamp(1, self.window)

    def _share(self) -> Tensor:
        """Of the window; before a label was seen all classes are alike."""
        return (self.seen > 0).double() * (1 - self.smoothing)

    def extra_repr(self) -> str:
        return f"classes={self.classes}, window={self.window}, smoothing={self.smoothing}"


@public
class InBatchSampler(Sampler):
    """The labels of the batch itself, which are draws from the labels' own distribution, a row's own among them.

    Q is estimated by the frequencies of the last `window` labels, which must be no fewer than a batch has. The rows of the batch
    are taken in turns in a random order, so that negatives repeat a row only where there are more of them than rows. Of a batch
    without labels they are draws from the window, or, if that is empty too, from all classes alike.

    >>> import torch, softmaxima as sm
    >>> sampler = sm.InBatchSampler(10)
    >>> sampler.observe(torch.tensor([4, 4, 7, 1]))
    >>> sampler.sample((4,)).sort().values, sampler.log_prob(torch.tensor([4, 7])).exp()
    (tensor([1, 4, 4, 7]), tensor([0.5000, 0.2500], dtype=torch.float64))
    """

    batch: Tensor | None

    def __init__(self, classes: int, window: int = 2**20) -> None:
        super().__init__(classes)
        self.window = check_count(type(self).__name__, "window", window)
        self.frequencies = FrequencySampler(classes, window, smoothing=0.0)
        self.register_buffer("batch", None, persistent=False)

    def observe(self, target: Any) -> None:
        name = type(self).__name__
        labels = check_values(name, "target", check_seen(name, target, self.classes)).flatten()
        check_window(name, labels, self.window)
        self.frequencies.observe(labels)
        self.batch = labels.to(self.place.device)

    def log_prob(self, classes: Any) -> Tensor:
        return self.frequencies.log_prob(self._checked(classes))

    def sample(self, shape: int | Sequence[int], generator: Randomness = None) -> Tensor:
        axes = check_shape(type(self).__name__, shape)
        if self.batch is None:
            raise ValueError("InBatchSampler: no batch was observed; call observe(target) before its negatives are drawn")
        rows = self.batch.numel()
        if rows == 0:
            return self.frequencies.sample(axes, generator)
        order = self._uniform(rows, generator).argsort()
        return self.batch[order[torch.arange(math.prod(axes), device=order.device) % rows]].reshape(axes)


SAMPLERS: dict[str, Callable[[int], Sampler]] = {
    "uniform": UniformSampler,
    "log_uniform": LogUniformSampler,
    "frequency": FrequencySampler,
    "in_batch": InBatchSampler,
}


def as_sampler(name: str, sampler: Any, classes: int) -> AnySampler:
    """A sampler of so many classes: one, a name of one, or the weights of a unigram sampler."""
    if isinstance(sampler, str):
        if sampler not in SAMPLERS:
            known = ", ".join(SAMPLERS)
            raise ValueError(f"{name}: sampler must be one of {known}, got {sampler!r}{nearest(sampler, SAMPLERS)}")
        return SAMPLERS[sampler](classes)
    if isinstance(sampler, Tensor) or hasattr(sampler, "__array__"):
        sampler = UnigramSampler(sampler)
    if not isinstance(sampler, AnySampler):
        raise TypeError(
            f"{name}: sampler must be a name, one weight for each class, or an object with classes, log_prob and sample; got "
            f"{type(sampler).__name__}"
        )
    if check_int(name, "the sampler's classes", sampler.classes) != classes:
        raise ValueError(f"{name}: sampler must be of the layer's {classes} classes, got one of {sampler.classes}")
    return cast(AnySampler, sampler)
