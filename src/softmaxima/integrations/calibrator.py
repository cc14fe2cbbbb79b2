"""`sm.TemperatureCalibrator`: a scikit-learn classifier whose probabilities are calibrated on rows that it did not learn from."""

from __future__ import annotations

from numbers import Integral
from typing import Any, Self

import numpy as np
from sklearn.base import BaseEstimator, ClassifierMixin, MetaEstimatorMixin, clone, is_classifier
from sklearn.frozen import FrozenEstimator
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import check_cv
from sklearn.utils import _safe_indexing, get_tags
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import (
    _check_sample_weight,
    _num_samples,
    check_is_fitted,
    column_or_1d,
    has_fit_parameter,
    indexable,
)

from softmaxima.base.public import public
from softmaxima.temperature.calibration import EPS, METHODS, Calibration, calibrate_safely, check_penalty, floor_of, logarithms


@public
class TemperatureCalibrator(MetaEstimatorMixin, ClassifierMixin, BaseEstimator):
    """A classifier with calibrated probabilities, softmax(x/τ) of its scores x.

    The scores of each row come from a twin that did not learn from it, in cross-validation; τ is that of least log loss of all of
    them (`calibrate_temperature`), and the classifier itself learns from all rows. One that has learnt from other rows than `fit`
    gets is given as scikit-learn's `FrozenEstimator(classifier)`: its scores are taken as they are, without folds.

    Scores are those of `decision_function`, of two classes 0 and that, or else the logarithms of `predict_proba`, of which 0 counts
    as `floor_`.

    Where no numbers are best, as where all rows are right, what comes nearest is taken, and `note_` says what.

    Args:
        estimator: a classifier; None takes `LogisticRegression()`.
        method: "temperature", or "per_class", "vector", "matrix" of `calibrate_scaling`, which can change which class is predicted.
        cv: folds, at most as many as the rarest class has rows, or a splitter of scikit-learn.
        penalty: λ of the biases of "vector" and of "matrix", which other methods refuse; None takes that of normal priors, which
            fades as rows are more.

    Attributes:
        classes_: the classes, sorted.
        estimator_: the classifier, which has learnt from all rows.
        calibration_: what `calibrate_scaling` found, with `before` and `after` on the rows that were held out.
        temperature_: τ, with method "temperature".
        floor_: what a probability of 0 counts as, but no more than others of its row: half the least positive one of the rows that
            were held out first, or 2⁻⁵² where none was 0.
        note_: what was done where no numbers are best, or "".
        n_features_in_, feature_names_in_: those of the classifier, where it has them.

    Raises:
        TypeError, ValueError: where an argument cannot be used, with its name, what arrived and what to do.

    Cost: folds + 1 times learning, and that of `calibrate_scaling`.

    Source: Guo, Pleiss, Sun & Weinberger (2017), arXiv:1706.04599.

    >>> from sklearn.datasets import load_iris
    >>> from sklearn.naive_bayes import GaussianNB
    >>> import softmaxima as sm
    >>> X, y = load_iris(return_X_y=True)
    >>> model = sm.TemperatureCalibrator(GaussianNB()).fit(X, y)
    >>> round(float(model.temperature_), 2)  # surer than it is right
    1.75
    """

    def __init__(self, estimator: Any = None, *, method: str = "temperature", cv: Any = 5, penalty: float | None = None) -> None:
        self.estimator = estimator
        self.method = method
        self.cv = cv
        self.penalty = penalty

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        base = get_tags(self._base())
        tags.input_tags.sparse = base.input_tags.sparse
        tags.input_tags.allow_nan = base.input_tags.allow_nan
        tags.input_tags.pairwise = base.input_tags.pairwise
        tags.classifier_tags.multi_class = base.classifier_tags is None or base.classifier_tags.multi_class
        return tags

    def fit(self, X: Any, y: Any, sample_weight: Any = None, **fit_params: Any) -> Self:
        """Learn from features X [rows, …] and classes y [rows], each row counting by its weight where the estimator takes that.

        `fit_params` go to the estimator's `fit`, and what of them has an entry for each row is cut to the rows of a fold.
        """
        self._check()
        X, y = indexable(X, y)
        if y is None:
            raise ValueError("requires y to be passed, but the target y is None")
        y = column_or_1d(y, warn=True)
        check_classification_targets(y)
        weight = None
        if sample_weight is not None:
            weight = _check_sample_weight(sample_weight, X, dtype=np.float64, ensure_non_negative=True)
        base = self._base()
        if isinstance(base, FrozenEstimator):
            check_is_fitted(base)
            self.estimator_, self.classes_ = base, base.classes_
            if unknown := set(np.unique(y).tolist()) - set(np.asarray(self.classes_).tolist()):
                raise ValueError(
                    f"y has the class {min(unknown, key=str)!r}, which the frozen estimator does not know; leave out its rows"
                )
            labels = np.searchsorted(self.classes_, y)
            self._learn_floor(base, X)
            found, kept, counted = self._scores(base, X), labels, weight
        else:
            self.classes_, labels = np.unique(y, return_inverse=True)
            if len(self.classes_) < 2:
                only = f"one class: {self.classes_[0]!r}" if len(self.classes_) else "no rows"
                raise ValueError(f"TemperatureCalibrator needs rows of two classes or more, got {only}; add rows of another")
            found, kept, counted = self._held_out(base, X, y, labels, weight, fit_params)
            self.estimator_ = self._fitted(base, X, y, weight, fit_params)
        for name in ("n_features_in_", "feature_names_in_"):
            if hasattr(self.estimator_, name):
                setattr(self, name, getattr(self.estimator_, name))
        self.calibration_, self.note_ = calibrate_safely(found, kept, self.method, sample_weight=counted, penalty=self.penalty)
        if METHODS[self.method].is_one_number:
            self.temperature_ = self.calibration_.temperature
        return self

    def predict_proba(self, X: Any) -> np.ndarray:
        """Probabilities [rows, classes] float64."""
        check_is_fitted(self, "calibration_")
        calibration: Calibration = self.calibration_
        p = calibration(self._scores(self.estimator_, X))
        return p / p.sum(-1, keepdims=True)  # one to the precision of float64

    def predict(self, X: Any) -> np.ndarray:
        """The most probable class of each row; of equal ones the first."""
        found = self.predict_proba(X).argmax(-1)
        return self.classes_[found]

    def _base(self) -> Any:
        return LogisticRegression() if self.estimator is None else self.estimator

    def _check(self) -> None:
        """Raise for what cannot be used, before any work."""
        check_penalty("TemperatureCalibrator", self.method, self.penalty)
        if isinstance(self.cv, str) or (isinstance(self.cv, Integral) and (isinstance(self.cv, bool) or int(self.cv) < 2)):
            raise ValueError(
                f"cv must be at least 2 folds or a splitter, got {self.cv!r}; give an estimator that has learnt as FrozenEstimator"
            )
        base = self._base()
        scored = hasattr(base, "decision_function") or hasattr(base, "predict_proba")
        if isinstance(base, type) or not scored or not is_classifier(base):
            raise ValueError(f"estimator must be a classifier with decision_function or predict_proba, got {base!r}; pass one")

    def _held_out(
        self, base: Any, X: Any, y: np.ndarray, labels: np.ndarray, weight: np.ndarray | None, fit_params: dict[str, Any]
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray | None]:
        """The scores of rows by a twin that did not learn from them, with their labels and weights, in the order of the folds."""
        folds, sizes = self.cv, np.bincount(labels)
        if isinstance(folds, Integral):
            folds = min(int(folds), int(sizes.min()))
            if folds < 2:
                rare = self.classes_[sizes.argmin()].item()
                raise ValueError(f"each class needs two rows, one to learn from and one held out, got one of {rare!r}; add some")
        cv: Any = check_cv(folds, y, classifier=True)
        twins, parts = [], []
        for learning, held_out in cv.split(X, y):
            if len(np.unique(labels[learning])) < len(self.classes_):
                raise ValueError("a fold learns from rows without all classes; take a stratified cv, or fewer folds")
            share = None if weight is None else weight[learning]
            twins.append(self._fitted(base, _safe_indexing(X, learning), y[learning], share, _of_rows(fit_params, X, learning)))
            parts.append(held_out)
        self._learn_floor(twins[0], _safe_indexing(X, parts[0]))
        found = [self._scores(twin, _safe_indexing(X, part)) for twin, part in zip(twins, parts, strict=True)]
        rows = np.concatenate(parts)
        return np.concatenate(found), labels[rows], None if weight is None else weight[rows]

    def _fitted(self, base: Any, X: Any, y: np.ndarray, weight: np.ndarray | None, fit_params: dict[str, Any]) -> Any:
        if weight is not None and has_fit_parameter(base, "sample_weight"):
            fit_params = {**fit_params, "sample_weight": weight}
        twin: Any = clone(base)
        return twin.fit(X, y, **fit_params)

    def _learn_floor(self, fitted: Any, X: Any) -> None:
        """What a probability of 0 counts as."""
        p = None if hasattr(fitted, "decision_function") else np.asarray(fitted.predict_proba(X), np.float64)
        self.floor_ = EPS if p is None else floor_of(p)

    def _scores(self, fitted: Any, X: Any) -> np.ndarray:
        """[rows, classes] float64."""
        if hasattr(fitted, "decision_function"):
            found = np.asarray(fitted.decision_function(X), np.float64)
            if found.ndim == 1:
                return np.stack((np.zeros_like(found), found), -1)
            if found.shape[1] == len(self.classes_) and not _is_by_pairs(fitted):
                return found
            if not hasattr(fitted, "predict_proba"):
                raise ValueError(
                    f"decision_function must have {len(self.classes_)} columns, one a class, got {found.shape[1]}, "
                    f"{'one a pair of classes' if _is_by_pairs(fitted) else 'others'}; set decision_function_shape='ovr'"
                )
        return logarithms(np.asarray(fitted.predict_proba(X), np.float64), self.floor_)


def _of_rows(fit_params: dict[str, Any], X: Any, rows: np.ndarray) -> dict[str, Any]:
    """What has an entry a row, of these rows."""
    count = _num_samples(X)

    def is_of_rows(value: Any) -> bool:
        return hasattr(value, "__len__") and not isinstance(value, (str, bytes, dict)) and len(value) == count

    return {name: _safe_indexing(value, rows) if is_of_rows(value) else value for name, value in fit_params.items()}


def _is_by_pairs(estimator: Any) -> bool:
    """Whether decision_function has a column for each pair of classes, which of three classes are as many."""
    while hasattr(estimator, "steps") or hasattr(estimator, "estimator"):
        estimator = estimator[-1] if hasattr(estimator, "steps") else estimator.estimator
    return getattr(estimator, "decision_function_shape", None) == "ovo"
