"""`TemperatureCalibrator` is a scikit-learn estimator: it passes its checks, and calibrates by rows that were held out."""

from __future__ import annotations

import pickle
import warnings
from typing import Any

import numpy as np
import polars as pl
import pytest
from scipy.special import softmax
from sklearn.base import clone
from sklearn.calibration import CalibratedClassifierCV
from sklearn.datasets import load_iris, make_classification
from sklearn.ensemble import RandomForestClassifier
from sklearn.exceptions import NotFittedError
from sklearn.frozen import FrozenEstimator
from sklearn.linear_model import LogisticRegression, RidgeClassifier
from sklearn.metrics import log_loss
from sklearn.model_selection import GridSearchCV, KFold, cross_val_predict
from sklearn.naive_bayes import GaussianNB
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.svm import SVC, LinearSVC
from sklearn.tree import DecisionTreeClassifier
from sklearn.utils.estimator_checks import check_estimator

from conftest import exhaustively
from softmaxima.integrations.calibrator import TemperatureCalibrator
from softmaxima.temperature.calibration import METHODS, calibrate_temperature

X, y = load_iris(return_X_y=True)
HARD, TOLD = make_classification(600, 8, n_informative=4, n_classes=3, flip_y=0.2, random_state=0)


@pytest.mark.parametrize("method", [exhaustively("temperature"), exhaustively("vector")])
def test_it_passes_scikit_learns_checks(method: str):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of the checks themselves
        results = check_estimator(TemperatureCalibrator(method=method), on_skip=None)
    assert len(results) > 40
    assert {result["status"] for result in results} <= {"passed", "skipped"}


@pytest.mark.parametrize(
    "model", [GaussianNB(), LinearSVC(dual=False), RidgeClassifier(), RandomForestClassifier(20, random_state=0)]
)
def test_calibrated_probabilities_have_less_log_loss_on_new_rows(model: Any):
    learning, new = slice(0, 400), slice(400, 600)
    found = TemperatureCalibrator(model).fit(HARD[learning], TOLD[learning])
    p = found.predict_proba(HARD[new])
    np.testing.assert_allclose(p.sum(-1), 1, rtol=1e-15)
    assert found.calibration_.after.log_loss < found.calibration_.before.log_loss
    bare = clone(model).fit(HARD[learning], TOLD[learning])
    np.testing.assert_array_equal(found.predict(HARD[new]), bare.predict(HARD[new]))  # τ keeps the order of the scores
    if hasattr(bare, "predict_proba"):
        before = np.maximum(bare.predict_proba(HARD[new]), 1e-3)
        before /= before.sum(-1, keepdims=True)
    else:
        before = softmax(bare.decision_function(HARD[new]), -1)
    assert log_loss(TOLD[new], p) < log_loss(TOLD[new], before)


def test_it_is_the_temperature_of_held_out_scores():
    cv = KFold(4, shuffle=True, random_state=0)
    scores = cross_val_predict(LogisticRegression(), HARD, TOLD, cv=cv, method="decision_function")
    found = TemperatureCalibrator(LogisticRegression(), cv=cv).fit(HARD, TOLD)
    assert found.temperature_ == pytest.approx(calibrate_temperature(scores, TOLD).temperature, rel=1e-10)


@pytest.mark.parametrize("classes", [2, 3])
def test_it_agrees_with_scikit_learns(classes: int):
    kept = classes > TOLD
    features, labels = HARD[kept], TOLD[kept]
    ours = TemperatureCalibrator(LogisticRegression(), cv=5).fit(features, labels)
    theirs = CalibratedClassifierCV(LogisticRegression(), method="temperature", cv=5, ensemble=False).fit(features, labels)
    np.testing.assert_allclose(ours.predict_proba(features), theirs.predict_proba(features), atol=1e-5)


def test_a_fitted_classifier_is_calibrated_as_it_is():
    model = GaussianNB().fit(HARD[:300], TOLD[:300])
    found = TemperatureCalibrator(FrozenEstimator(model)).fit(HARD[300:], TOLD[300:])
    assert found.estimator_.estimator is model
    expected = calibrate_temperature(np.log(model.predict_proba(HARD[300:])), TOLD[300:])
    assert found.temperature_ == pytest.approx(expected.temperature, rel=1e-12)
    with pytest.raises(NotFittedError):
        TemperatureCalibrator(FrozenEstimator(GaussianNB())).fit(HARD, TOLD)
    with pytest.raises(ValueError, match="y has the class 7, which the frozen estimator does not know; leave out its rows"):
        TemperatureCalibrator(FrozenEstimator(model)).fit(HARD[300:], np.where(TOLD[300:] == 0, 7, TOLD[300:]))


def test_a_frozen_classifier_may_know_classes_that_no_row_has():
    model = GaussianNB().fit(HARD, TOLD)
    kept = TOLD > 0
    found = TemperatureCalibrator(FrozenEstimator(model)).fit(HARD[kept], TOLD[kept])
    np.testing.assert_array_equal(found.classes_, model.classes_)
    assert found.predict_proba(HARD).shape == (600, 3)


def test_scores_of_three_pairs_are_not_those_of_three_classes():
    model = SVC(decision_function_shape="ovo")
    with pytest.raises(ValueError, match="one a class, got 3, one a pair of classes; set decision_function_shape='ovr'"):
        TemperatureCalibrator(model).fit(X, y)
    both = TemperatureCalibrator(SVC()).fit(X, y)
    assert both.score(X, y) > 0.95


def test_a_decision_function_without_a_column_a_class_is_told():
    model = SVC(decision_function_shape="ovo").fit(*make_classification(90, n_informative=4, n_classes=4, random_state=0))
    with pytest.raises(
        ValueError,
        match="decision_function must have 4 columns, one a class, got 6, one a pair of classes",
    ):
        TemperatureCalibrator(FrozenEstimator(model)).fit(*make_classification(90, n_informative=4, n_classes=4, random_state=0))


@pytest.mark.parametrize("method", METHODS)
def test_every_method_and_texts_for_classes_and_names_of_columns(method: str):
    frame = pl.DataFrame(X, schema=list("abcd"))
    names = np.array(["setosa", "versicolor", "virginica"])[y]
    found = TemperatureCalibrator(GaussianNB(), method=method).fit(frame, names)
    assert list(found.classes_) == sorted(set(names))
    assert list(found.feature_names_in_) == list("abcd")
    assert found.n_features_in_ == 4
    assert found.score(frame, names) > 0.9
    assert hasattr(found, "temperature_") == (method == "temperature")
    twin = pickle.loads(pickle.dumps(found))
    np.testing.assert_array_equal(twin.predict_proba(frame), found.predict_proba(frame))


def test_it_goes_through_pipelines_and_searches():
    pipeline = make_pipeline(StandardScaler(), TemperatureCalibrator(cv=3))
    grid = {"temperaturecalibrator__method": ["temperature", "vector"], "temperaturecalibrator__estimator": [GaussianNB()]}
    assert GridSearchCV(pipeline, grid, cv=3, scoring="neg_log_loss").fit(X, y).best_score_ > -0.3


def test_weights_go_to_the_classifier_and_the_temperature():
    weight = np.random.default_rng(0).integers(0, 3, len(y))
    cv = KFold(3, shuffle=True, random_state=0)
    found = TemperatureCalibrator(GaussianNB(), cv=cv).fit(X, y, sample_weight=weight)
    other = TemperatureCalibrator(GaussianNB(), cv=cv).fit(X, y)
    assert found.temperature_ != other.temperature_
    assert found.calibration_.after.rows == weight.sum()
    np.testing.assert_allclose(found.estimator_.theta_, GaussianNB().fit(X, y, sample_weight=weight).theta_)
    with pytest.raises(ValueError, match="at least one non-zero"):
        TemperatureCalibrator(GaussianNB(), cv=cv).fit(X, y, sample_weight=np.zeros(len(y)))


def test_a_classifier_without_fault_is_told_and_still_calibrated():
    two = y < 2
    found = TemperatureCalibrator().fit(X[two], y[two])
    told = "the scores tell classes without fault; labels were smoothed as if one in 102 were wrong, Platt's rule for 100 rows"
    assert found.note_ == told
    assert 0.9 < found.predict_proba(X[two]).max(-1).mean() < 1


def test_a_tree_keeps_its_order_of_classes_wherever_it_has_zeros():
    leaves = np.repeat(np.arange(12), 10)
    features, classes = np.r_[leaves, [20] * 30][:, None], np.r_[leaves % 3, [0] * 9, [1] * 12, [2] * 9]
    tree = DecisionTreeClassifier(random_state=0).fit(features, classes)
    noisy = np.where(np.arange(len(leaves)) % 7, leaves % 3, (leaves + 1) % 3)
    model = TemperatureCalibrator(FrozenEstimator(tree)).fit(leaves[:, None], noisy)
    assert model.floor_ == 0.5
    p, tempered = tree.predict_proba([[0], [20]]), model.predict_proba([[0], [20]])
    np.testing.assert_array_equal(tempered.argsort(-1, kind="stable"), p.argsort(-1, kind="stable"))
    np.testing.assert_allclose(np.log(tempered[1, 1] / tempered[1, 0]) * model.temperature_, np.log(0.4 / 0.3))


def test_rare_classes_make_fewer_folds():
    kept = np.concatenate((np.arange(100), np.arange(100, 103)))
    assert len(TemperatureCalibrator().fit(X[kept], y[kept]).classes_) == 3
    with pytest.raises(ValueError, match="each class needs two rows, one to learn from and one held out, got one of 2"):
        TemperatureCalibrator().fit(X[:101], y[:101])


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"method": "isotonic"}, "method must be one of temperature"),
        ({"cv": "prefit"}, "cv must be at least 2 folds or a splitter, got 'prefit'; give .* as FrozenEstimator"),
        ({"cv": 1}, "cv must be at least 2 folds"),
        ({"penalty": -1}, "penalty must be a finite number of at least 0, got -1"),
        ({"penalty": 5.0}, "penalty is for biases and matrices, and method 'temperature' has none; leave it out"),
        *(({"estimator": wrong}, "estimator must be a classifier") for wrong in (StandardScaler(), GaussianNB, 5)),
    ],
)
def test_wrong_arguments_are_one_sentence(options: dict[str, Any], told: str):
    with pytest.raises(ValueError, match=told):
        TemperatureCalibrator(**options).fit(X, y)
    with pytest.raises(ValueError, match="two classes or more"):
        TemperatureCalibrator().fit(X, np.zeros(len(y)))
