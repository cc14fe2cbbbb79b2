"""`sm.Classifier`: a linear model or a small network with any map and loss, as a scikit-learn estimator."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Self

import numpy as np
import torch
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.model_selection import train_test_split
from sklearn.utils import check_random_state
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import _check_sample_weight, check_is_fitted, validate_data
from torch import Tensor

from softmaxima.base.public import public
from softmaxima.integrations.classifier_arguments import DTYPES, check_learnt, check_parameters
from softmaxima.integrations.pairs import FUNCTIONS, Pair, name_of, usual_pair, with_functions, with_names
from softmaxima.integrations.training import Training, Weights, probabilities, scores
from softmaxima.maps import find_map

SCALE = ("classes_", "n_features_in_", "feature_names_in_", "medians_", "missing_", "mean_", "scale_")  # learnt before training
TRAINED = ("network_", "loss_curve_", "n_iter_")
FARTHEST = 1e15  # deviations from the mean; a feature beyond counts as that, for float32 may not have its products
EPOCHS, STEPS = 30, 360  # of training by default: so many passes over the rows, or more where those are fewer steps


def usual_epochs(rows: int, batch_size: int, epochs: int = EPOCHS, steps: int = STEPS) -> int:
    """So many, and more where those would be too few steps to train anything: on a small table."""
    return max(epochs, math.ceil(steps / math.ceil(rows / batch_size)))


def usual_rate(hidden: Sequence[int]) -> float:
    """Of Adam, whose steps are of about this size: weights of a linear model go farther than those of a network."""
    return 3e-3 if hidden else 3e-2


@dataclass(frozen=True, eq=False)
class Prepared:
    """Rows made ready to train on; several trainings can share them."""

    x: Tensor  # [rows, features], standardised
    target: Tensor  # [rows] int64
    weight: Tensor | None  # [rows]


@public
class Classifier(ClassifierMixin, BaseEstimator):
    """A classifier p = map(scores of a linear model or of a small network), trained by the map's loss with Adam.

    Features are standardised by the training rows; a column that is constant there becomes 0.

    Args:
        map: name of a map, such as "softmax", "sparsemax" or "entmax".
        loss: name of a loss of softmaxima, such as "cross_entropy"; None takes the map's own.
        map_params: parameters of the map, such as `{"alpha": 1.25}`; with `loss=None` the loss takes them too. A function may
            be given by its name, which unlike itself can be saved: `{"f": "softplus"}`, "sigmoid" or "square".
        loss_params: keyword arguments of the loss, such as `{"label_smoothing": 0.1}`.
        head: "linear" scores h Wᵀ + b, or "cosine" scores for losses with a margin.
        temperature: divides the scores where probabilities are predicted.
        hidden: units of each hidden layer of ReLU; () is a linear model.
        epochs: passes over the rows; None takes 30, and more where those are under 360 steps.
        batch_size: rows of a step.
        learning_rate: of Adam; None takes 0.003, and 0.03 for a linear model.
        early_stopping: keep the weights with the least loss on rows that are held out, and stop when it has not fallen for
            `patience` epochs.
        validation_fraction: share of the rows that early stopping holds out.
        patience: epochs without a smaller loss before early stopping ends.
        missing: "refuse" NaN in the features, or "impute": the column's median and a column that says where.
        dtype: "float32" or "float64", of the network and the steps; None takes that of the features.
        random_state: int, `numpy.random.RandomState` or None; decides weights, batches and held-out rows. The same int gives the
            same result, in float32 with as many threads.

    Attributes:
        classes_: the classes, sorted.
        n_features_in_: number of features.
        feature_names_in_: their names, where the features were a frame with names.
        loss_curve_: the mean loss of each epoch.
        n_iter_: number of epochs.
        network_: (W [outputs, inputs], b [outputs]) of each layer, NumPy arrays.

    Raises:
        ValueError: where an argument cannot be used, with its name, what arrived and what to do.

    Cost: O(epochs · rows · (features · hidden + hidden · classes)) time.

    >>> from sklearn.datasets import load_iris
    >>> import softmaxima as sm
    >>> X, y = load_iris(return_X_y=True)
    >>> model = sm.Classifier("sparsemax", hidden=(), random_state=0).fit(X, y)
    >>> model.predict_proba(X[:1]).round(2)
    array([[1., 0., 0.]])
    """

    n_features_in_: int

    def __init__(
        self,
        map: str = "softmax",
        loss: str | None = None,
        *,
        map_params: Mapping[str, Any] | None = None,
        loss_params: Mapping[str, Any] | None = None,
        head: str = "linear",
        temperature: float = 1.0,
        hidden: Sequence[int] = (128,),
        epochs: int | None = None,
        batch_size: int = 128,
        learning_rate: float | None = None,
        early_stopping: bool = False,
        validation_fraction: float = 0.1,
        patience: int = 10,
        missing: str = "refuse",
        dtype: str | None = None,
        random_state: Any = None,
    ) -> None:
        self.map = map
        self.loss = loss
        self.map_params = map_params
        self.loss_params = loss_params
        self.head = head
        self.temperature = temperature
        self.hidden = hidden
        self.epochs = epochs
        self.batch_size = batch_size
        self.learning_rate = learning_rate
        self.early_stopping = early_stopping
        self.validation_fraction = validation_fraction
        self.patience = patience
        self.missing = missing
        self.dtype = dtype
        self.random_state = random_state

    @classmethod
    def of_pair(cls, pair: Pair, **options: Any) -> Self:
        """A classifier with the map, the loss and the head of a pair."""
        return cls(
            pair.map,
            pair.loss,
            map_params=with_names(pair.params) or None,
            loss_params=with_names(pair.options) or None,
            head=pair.head,
            temperature=pair.temperature,
            **options,
        )

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.allow_nan = self.missing == "impute"
        return tags

    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> Self:
        """Train on features X [rows, features] and classes y [rows], each row counting by its weight."""
        prepared = self.prepare(X, y, sample_weight)
        held_out = None
        if self.early_stopping:
            prepared, held_out = self._split(prepared)
        training = self.begin(prepared)
        best, best_loss, since = None, math.inf, 0
        while not training.finished:
            training.advance(training.steps_an_epoch)
            if held_out is None:
                continue
            loss = training.mean_loss(held_out.x, held_out.target, held_out.weight)
            since += 1
            if loss < best_loss:
                best, best_loss, since = training.weights(), loss, 0
            if since >= self.patience:
                break
        network = best or training.weights()
        if not all(part.isfinite().all() for layer in network for part in layer):
            raise ValueError(
                f"training left the numbers at learning_rate={self._rate!r}; take a smaller one, or another loss than "
                f"{self.pair.loss!r}"
            )
        return self.end(training, network)

    def prepare(self, X: Any, y: Any, sample_weight: Any = None) -> Prepared:
        """Check everything, learn the classes and the scale of the features, and give the rows as `begin` takes them."""
        check_parameters(self)
        X, y = self._validated(X, y)
        check_classification_targets(y)
        self.classes_, labels = np.unique(y, return_inverse=True)
        if len(self.classes_) < 2:
            raise ValueError(f"Classifier needs rows of two classes or more, got one class: {self.classes_[0]!r}")
        weight = None
        if sample_weight is not None:
            weight = _check_sample_weight(sample_weight, X, dtype=np.float64, ensure_non_negative=True)
            if not weight.any():
                raise ValueError("sample_weight must have a positive entry, got zeros alone")
            counted = weight > 0
            X, labels, weight = X[counted], labels[counted], weight[counted] / weight.max()
        self._learn_scale(X, weight)
        target = torch.from_numpy(labels.astype(np.int64))
        x = self._scaled(X).to(getattr(torch, self.dtype or X.dtype.name))
        return Prepared(x, target, None if weight is None else torch.from_numpy(weight).to(x.dtype))

    def begin(self, prepared: Prepared) -> Training:
        """A training that has not taken a step."""
        random = np.random.default_rng(check_random_state(self.random_state).randint(2**31 - 1, size=4))
        return Training(
            self.pair,
            prepared.x,
            prepared.target,
            prepared.weight,
            len(self.classes_),
            hidden=self.hidden,
            epochs=self.epochs or usual_epochs(len(prepared.x), self.batch_size),
            batch=self.batch_size,
            learning_rate=self._rate,
            random=random,
        )

    def end(self, training: Training, network: Weights | None = None) -> Self:
        """Take the network of a training, or one that it had before."""
        self.network_ = tuple((weight.numpy(), bias.numpy()) for weight, bias in network or training.weights())
        self.loss_curve_ = list(training.losses)
        self.n_iter_ = len(training.losses)
        return self

    @property
    def _rate(self) -> float:
        return usual_rate(self.hidden) if self.learning_rate is None else self.learning_rate

    def share(self, other: Classifier) -> Self:
        """Take the classes and the scale that another classifier has learnt, so that it need not be done twice."""
        vars(self).update({name: value for name, value in vars(other).items() if name in SCALE})
        return self

    def as_dict(self) -> dict[str, Any]:
        """What it was told and what it has learnt, in plain values and NumPy arrays of numbers.

        Raises:
            ValueError: for a parameter that is none of these, such as a function without a name or a generator.
        """
        check_is_fitted(self, "network_")
        params = {name: _stored(name, value) for name, value in self.get_params(deep=False).items()}
        learnt = {name: value for name, value in vars(self).items() if name in (*SCALE, *TRAINED)}
        lists = {name: learnt[name].tolist() for name in ("classes_", "feature_names_in_") if name in learnt}
        return {"params": params, "learnt": learnt | lists}

    @classmethod
    def from_dict(cls, record: Mapping[str, Any]) -> Self:
        """A classifier as `as_dict` gave it.

        Raises:
            ValueError, TypeError, KeyError: where that is not what it is.
        """
        if sorted(record["params"]) != sorted(cls._get_param_names()):
            raise ValueError(f"a Classifier has the parameters {', '.join(cls._get_param_names())}, got {sorted(record['params'])}")
        classifier = cls(**{name: _stored(name, value) for name, value in record["params"].items()})
        check_parameters(classifier)
        learnt = dict(record["learnt"])
        learnt["classes_"] = np.array(learnt["classes_"])
        if "feature_names_in_" in learnt:
            learnt["feature_names_in_"] = np.array(learnt["feature_names_in_"], dtype=object)
        vars(classifier).update({name: learnt[name] for name in (*SCALE, *TRAINED) if name in learnt})
        check_learnt(classifier)
        return classifier

    @property
    def pair(self) -> Pair:
        """The map and the loss."""
        usual = usual_pair(find_map(self.map), **with_functions(self.map_params or {}))
        loss = self.loss or usual.loss
        options = with_functions(self.loss_params) if self.loss_params is not None else usual.options if loss == usual.loss else {}
        return replace(usual, loss=loss, options=options, head=self.head, temperature=self.temperature)

    def decision_function(self, X: Any) -> np.ndarray:
        """Scores [rows, classes]; of two classes the second's less the first's [rows]."""
        x = self._checked(X)
        with torch.no_grad():
            found = scores(self.pair.head, self._weights, x).double().numpy()
        return found[:, 1] - found[:, 0] if len(self.classes_) == 2 else found

    def predict_proba(self, X: Any) -> np.ndarray:
        """Probabilities [rows, classes] float64. They sum to what the map's do: to one, or to less where the map's may."""
        return self.probabilities(self._checked(X)).numpy()

    def predict_log_proba(self, X: Any) -> np.ndarray:
        """Logarithms of the probabilities [rows, classes], −∞ for those that are 0."""
        with np.errstate(divide="ignore"):
            return np.log(self.predict_proba(X))

    def predict(self, X: Any) -> np.ndarray:
        """The most probable class of each row; of equal ones the first."""
        x = self._checked(X)
        return self.classes_[self.probabilities(x).argmax(-1).numpy()]

    def probabilities(self, x: Tensor) -> Tensor:
        """Probabilities [rows, classes] float64 of features as `prepare` gives them."""
        p = probabilities(self.pair, self._weights, x).double()
        return p / p.sum(-1, keepdim=True) if find_map(self.map).properties.mass == "one" else p  # one to the precision of float64

    @property
    def _weights(self) -> Weights:
        """Copies, for an array may be read-only, where processes share it."""
        return tuple((torch.tensor(weight, device="cpu"), torch.tensor(bias, device="cpu")) for weight, bias in self.network_)

    def _split(self, prepared: Prepared) -> tuple[Prepared, Prepared]:
        """Rows to train on and rows to stop by, the classes in proportion where there are enough; an only row is trained on."""
        target = prepared.target.numpy()
        only = np.bincount(target)[target] == 1
        rows = np.flatnonzero(~only)
        if len(rows) < 2:
            raise ValueError("early_stopping needs a class of two rows or more; add rows, or leave it out")
        held_out = min(max(1, round(self.validation_fraction * len(target))), len(rows) - 1)
        classes = len(np.unique(target[rows]))
        stratify = target[rows] if held_out >= classes <= len(rows) - held_out else None
        learning, judging = train_test_split(
            rows, test_size=held_out, random_state=check_random_state(self.random_state), stratify=stratify
        )
        parts = np.concatenate((learning, np.flatnonzero(only))), judging
        return tuple(
            Prepared(prepared.x[part], prepared.target[part], None if prepared.weight is None else prepared.weight[part])
            for part in parts
        )  # type: ignore[return-value]

    def _validated(self, X: Any, *y: Any, reset: bool = True) -> Any:
        """What scikit-learn makes of the features, and the classes with them, which says of missing values what to do here."""
        finite: Any = "allow-nan" if self.missing == "impute" else True
        try:
            return validate_data(self, X, *y, dtype=DTYPES, ensure_all_finite=finite, reset=reset)
        except ValueError as error:
            if not str(error).startswith("Input X contains NaN"):
                raise
            raise ValueError(
                'Input X contains NaN; give missing="impute", which takes the median of a column and adds one that says where it '
                "was, or leave such rows out"
            ) from None

    def _learn_scale(self, X: np.ndarray, weight: np.ndarray | None) -> None:
        """The mean and the standard deviation of each column, ∞ for the deviation of one that is constant."""
        counted = X.astype(np.float64)
        self.missing_ = np.flatnonzero(np.isnan(counted).any(0))
        self.medians_ = np.full(X.shape[1], math.nan)
        if self.missing == "impute":
            self.medians_ = np.array([_median(column, weight) for column in counted.T])
        counted = self._complete(counted)
        unit = np.abs(counted).max(0)
        unit[unit == 0] = 1.0
        counted = counted / unit  # now no square overflows
        mean = np.average(counted, axis=0, weights=weight)
        deviation = np.sqrt(np.average(np.square(counted - mean), axis=0, weights=weight))
        constant = counted.min(0) == counted.max(0)
        self.mean_ = mean * unit
        self.scale_ = np.where(constant, math.inf, deviation * unit)

    def _scaled(self, X: np.ndarray) -> Tensor:
        with np.errstate(over="ignore", invalid="ignore"):
            deviations = (self._complete(X.astype(np.float64)) - self.mean_) / self.scale_
        return torch.from_numpy(np.where(np.isinf(self.scale_), 0.0, deviations.clip(-FARTHEST, FARTHEST)))

    def _complete(self, X: np.ndarray) -> np.ndarray:
        """Medians where a value is missing, and beside all, for each column that missed some in training, where it does."""
        if self.missing == "refuse":
            return X
        missing = np.isnan(X)
        return np.hstack([np.where(missing, self.medians_, X), missing[:, self.missing_]])

    def _checked(self, X: Any) -> Tensor:
        check_is_fitted(self, "network_")
        return self._scaled(self._validated(X, reset=False)).to(self._weights[0][0].dtype)


def _median(column: np.ndarray, weight: np.ndarray | None) -> float:
    """Of the values that are there, each as often as its weight says; 0 where there are none."""
    known = ~np.isnan(column)
    if not known.any():
        return 0.0
    order = np.argsort(column[known])
    values = column[known][order]
    reached = np.cumsum(np.ones(len(values)) if weight is None else weight[known][order])
    low, high = (values[np.searchsorted(reached, reached[-1] / 2, side)] for side in ("left", "right"))
    return float(low + (high - low) / 2)


def _stored(name: str, value: Any) -> Any:
    """A parameter in Python's own types."""
    if isinstance(value, np.generic):
        value = value.item()
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if isinstance(value, Mapping):
        return {key: _stored(f"{name}[{key!r}]", entry) for key, entry in value.items()}
    if isinstance(value, (list, tuple)):
        return tuple(_stored(name, entry) for entry in value)
    if (function := name_of(value)) is None:
        raise ValueError(
            f"{name} is a {type(value).__name__}, which a file does not hold; give a number or a text, or of a function one of "
            f"the names {', '.join(map(repr, FUNCTIONS))}"
        )
    return function
