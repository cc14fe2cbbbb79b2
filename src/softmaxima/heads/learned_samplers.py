"""Samplers whose Q is learned: by logits, or from the labels that were seen."""

from __future__ import annotations

import math
from collections.abc import Sequence
from numbers import Integral
from typing import Any

import torch
from torch import Tensor, nn

from softmaxima.base.arguments import as_tensor, check_values
from softmaxima.base.numbers import check_count, check_number
from softmaxima.base.public import public
from softmaxima.base.randomness import Randomness
from softmaxima.base.tracing import is_concrete, sizes
from softmaxima.heads.sampler import Sampler, check_classes, check_shape, inverse


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
