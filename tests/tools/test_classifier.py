"""`sm.Classifier` is a scikit-learn estimator: it passes its checks, and does what its arguments say."""

from __future__ import annotations

import pickle
import subprocess
import sys
import warnings
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import polars as pl
import pytest
import torch
from sklearn.base import clone
from sklearn.datasets import load_iris
from sklearn.exceptions import NotFittedError
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import check_estimator

import softmaxima as sm
from conftest import exhaustively
from softmaxima.integrations.classifier import usual_epochs
from softmaxima.integrations.classifier_arguments import check_learnt
from softmaxima.integrations.pairs import pairs

X, y = load_iris(return_X_y=True)
LINEAR: dict[str, Any] = {"hidden": (), "learning_rate": 0.02, "random_state": 0}


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


DRAWN = dict.fromkeys(
    ("check_sample_weight_equivalence_on_dense_data",), "rows held out are drawn, and of repeated rows others than of weighted ones"
)


# scikit-learn -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "model",
    [
        sm.Classifier(hidden=(8,), epochs=60),
        exhaustively(
            sm.Classifier("entmax", hidden=(), map_params={"alpha": 1.25}, missing="impute", early_stopping=True, epochs=100)
        ),
    ],
    ids=["a network", "every option"],
)
def test_it_passes_scikit_learns_checks(model: sm.Classifier):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of the checks themselves
        results = check_estimator(model, on_skip=None, expected_failed_checks=DRAWN if model.early_stopping else None)
    assert len(results) > 40
    assert {result["status"] for result in results} <= {"passed", "skipped", "xfail"}


def test_it_goes_through_pipelines_and_searches():
    pipeline = make_pipeline(StandardScaler(), sm.Classifier(**LINEAR))
    assert cross_val_score(pipeline, X, y, cv=3).mean() > 0.9
    grid = {"map": ["softmax", "sparsemax"], "learning_rate": [1e-5, 1e-2]}
    search = GridSearchCV(sm.Classifier(hidden=(), random_state=0), grid, cv=3)
    assert search.fit(X, y).best_params_["learning_rate"] == 1e-2
    assert search.best_score_ > 0.9


def test_a_clone_has_its_parameters_and_has_learnt_nothing():
    model = sm.Classifier("entmax", map_params={"alpha": 1.25}, **LINEAR).fit(X, y)
    twin = clone(model)
    assert twin.get_params() == model.get_params()
    with pytest.raises(NotFittedError):
        twin.predict(X)


@pytest.mark.parametrize("names", ["array", "frame"])
def test_a_pickle_and_a_record_predict_the_same(names: str):
    features: Any = X if names == "array" else pl.DataFrame(X, schema=list("abcd"))
    model = sm.Classifier("proportional", map_params={"f": "softplus"}, hidden=(4,), epochs=3, random_state=0).fit(features, y)
    for other in (pickle.loads(pickle.dumps(model)), sm.Classifier.from_dict(model.as_dict())):
        np.testing.assert_array_equal(other.predict_proba(features), model.predict_proba(features))
        np.testing.assert_array_equal(np.exp(other.predict_log_proba(features)).round(12), model.predict_proba(features).round(12))
        assert other.get_params() == model.get_params()


def test_classes_may_be_texts_and_columns_have_names():
    names = np.array(["setosa", "versicolor", "virginica"])[y]
    frame = pl.DataFrame(X, schema=list("abcd"))
    model = sm.Classifier(**LINEAR).fit(frame, names)
    assert list(model.classes_) == sorted(set(names))
    assert list(model.feature_names_in_) == list("abcd")
    assert model.score(frame, names) > 0.9
    with pytest.raises(ValueError, match="feature names"):
        model.predict(frame.rename({"a": "z"}))


def test_it_agrees_with_logistic_regression_without_a_penalty():
    two = y > 0  # not linearly separable without the first class
    ours = sm.Classifier(hidden=(), epochs=300, learning_rate=0.03, random_state=0).fit(X[two][:, :2], y[two])
    theirs = LogisticRegression(C=np.inf, max_iter=1000).fit(StandardScaler().fit_transform(X[two][:, :2]), y[two])
    expected = theirs.predict_proba(StandardScaler().fit_transform(X[two][:, :2]))
    np.testing.assert_allclose(ours.predict_proba(X[two][:, :2]), expected, atol=0.02)


# What its arguments say ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("pair", pairs(3), ids=lambda pair: pair.name)
def test_every_pair_trains(pair: Any):
    model = sm.Classifier.of_pair(pair, **LINEAR).fit(X, y)
    assert replace(model.pair, name=pair.name) == pair
    p = model.predict_proba(X)
    assert p.dtype == np.float64
    assert p.min() >= 0
    assert p.sum(1).max() <= 1 + 1e-12
    assert model.loss_curve_[-1] < model.loss_curve_[0]
    assert model.score(X, y) > 0.6
    np.testing.assert_array_equal(sm.Classifier.from_dict(model.as_dict()).predict_proba(X), p)


def test_a_weight_is_a_repetition():
    weight = np.random.default_rng(0).integers(0, 4, len(X))
    weighted, repeated = (
        sm.Classifier(hidden=(), batch_size=1000, epochs=200, random_state=0).fit(*arguments)
        for arguments in ((X, y, weight), (X.repeat(weight, 0), y.repeat(weight)))
    )
    np.testing.assert_allclose(weighted.predict_proba(X), repeated.predict_proba(X), rtol=1e-8)


def test_rows_of_weight_zero_are_not_seen():
    weight = (np.arange(len(X)) % 2).astype(float)
    spoilt = np.where(weight[:, None] > 0, X, 1e6)
    options = {"hidden": (), "batch_size": 1000, "random_state": 0, "missing": "impute"}
    found = [sm.Classifier(**options).fit(features, y, weight).predict_proba(X) for features in (X, spoilt)]
    np.testing.assert_allclose(*found, rtol=1e-12)


def test_early_stopping_ends_sooner_and_keeps_the_best_weights():
    random = np.random.default_rng(0)
    noise, labels = random.standard_normal((80, 20)), random.integers(0, 2, 80)  # which can only be overfitted
    model = sm.Classifier(hidden=(32,), epochs=500, early_stopping=True, patience=5, validation_fraction=0.3, random_state=0)
    model.fit(noise, labels)
    assert 5 <= model.n_iter_ < 100
    assert len(model.loss_curve_) == model.n_iter_
    shorter = clone(model).set_params(epochs=model.n_iter_ - 5).fit(noise, labels)
    np.testing.assert_array_equal(model.predict_proba(noise), shorter.predict_proba(noise))


def test_a_seed_repeats_all_and_another_does_not():
    first, again, other = (sm.Classifier(hidden=(4,), epochs=2, random_state=seed).fit(X, y).predict_proba(X) for seed in (0, 0, 1))
    np.testing.assert_array_equal(first, again)
    assert not np.array_equal(first, other)


@pytest.mark.parametrize("given", [np.float32, np.float64, np.int64])
def test_it_trains_in_the_dtype_of_the_features(given: type):
    model = sm.Classifier(**LINEAR).fit(X.astype(given), y)
    expected = np.float32 if given is np.float32 else np.float64
    assert {part.dtype for layer in model.network_ for part in layer} == {np.dtype(expected)}
    assert model.predict_proba(X.astype(given)).dtype == np.float64


def test_missing_values_become_medians_and_are_told():
    holes = np.random.default_rng(0).random(X.shape) < 0.2
    holes[:, 3] = False
    gaps = np.where(holes, np.nan, X)
    with pytest.raises(ValueError, match="NaN"):
        sm.Classifier(**LINEAR).fit(gaps, y)
    model = sm.Classifier(missing="impute", **LINEAR).fit(gaps, y)
    by_hand = np.hstack([np.where(holes, np.nanmedian(gaps, 0), X), holes[:, :3]])
    expected = sm.Classifier(**LINEAR).fit(by_hand, y).predict_proba(by_hand)
    np.testing.assert_allclose(model.predict_proba(gaps), expected, rtol=1e-12)
    assert np.isfinite(model.predict_proba(np.full((1, 4), np.nan))).all()


def test_a_column_without_a_value_and_a_constant_one_count_for_nothing():
    model = sm.Classifier(missing="impute", **LINEAR).fit(np.hstack([X, np.full((len(X), 1), np.nan), np.ones((len(X), 1))]), y)
    plain = np.hstack([X, np.full((len(X), 1), np.nan), np.full((len(X), 1), 5.0)])
    assert model.score(plain, y) > 0.9


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"map": "softmx"}, "softmax"),
        ({"loss": "cross_entropie"}, "loss must be"),
        ({"loss": "CrossEntropyLoss"}, "loss must be"),
        ({"map": "budget_sparsemax", "map_params": {"budget": 2.0}}, "map must give probabilities"),
        ({"map": "log_softmax"}, "map must give probabilities"),
        ({"map_params": [1]}, "map_params"),
        ({"map": "sparsemax", "map_params": {"alpha": 2}}, "map_params: .*alpha"),
        ({"loss_params": {"smoothing": 0.1}}, "loss_params: .*smoothing"),
        ({"map": "entmax", "map_params": {"alpha": -0.5}}, "alpha"),
        ({"map": "proportional", "map_params": {"f": "system"}}, "map_params: f"),
        ({"map": "sparsemax", "map_params": {"temperature": 2.0}}, "map_params: sparsemax takes none, got 'temperature'"),
        ({"map": "topk_softmax"}, "map_params: .*k"),
        ({"map": ["softmax"]}, "map must be"),
        ({"loss": []}, "loss must be"),
        ({"loss_params": {"label_smoothing": 2}}, "loss_params: .*label_smoothing"),
        ({"loss_params": {"reduction": "sum"}}, "loss_params: reduction"),
        ({"loss": "arcface"}, "head must be 'cosine'"),
        ({"learning_rate": 1e300, "dtype": "float32"}, "learning_rate"),
        ({"head": "round"}, "head"),
        ({"temperature": 0}, "temperature"),
        ({"hidden": 3}, "hidden"),
        ({"hidden": (0,)}, "hidden"),
        ({"hidden": None}, "hidden"),
        ({"epochs": 0}, "epochs"),
        ({"epochs": True}, "epochs"),
        ({"early_stopping": "no"}, "early_stopping"),
        ({"batch_size": 1.5}, "batch_size"),
        ({"learning_rate": float("nan")}, "learning_rate"),
        ({"learning_rate": "fast"}, "learning_rate"),
        ({"validation_fraction": 1}, "validation_fraction"),
        ({"validation_fraction": "x"}, "validation_fraction"),
        ({"patience": 0}, "patience"),
        ({"missing": "drop"}, "missing"),
    ],
    ids=str,
)
def test_a_wrong_argument_names_itself(arguments: dict[str, Any], words: str):
    with pytest.raises(ValueError, match=words):
        sm.Classifier(**arguments).fit(X, y)


@pytest.mark.parametrize("options", [{}, {"early_stopping": True, "patience": 3}, {"missing": "impute"}], ids=str)
@pytest.mark.parametrize("scale", [1e-300, 1.0, 1e300])
def test_weights_count_as_rows_and_by_their_ratios(options: dict[str, Any], scale: float):
    gaps = X.copy()
    gaps[::7, 1] = np.nan
    features = gaps if options.get("missing") else X
    weight = np.arange(len(X)) % 3
    settings = {**LINEAR, "dtype": "float64", "epochs": 30, "batch_size": 10**6, "learning_rate": 0.05} | options
    weighted = sm.Classifier(**settings).fit(features, y, scale * weight)
    if not options.get("early_stopping"):
        repeated = sm.Classifier(**settings).fit(np.repeat(features, weight, 0), np.repeat(y, weight))
        np.testing.assert_allclose(weighted.predict_proba(X), repeated.predict_proba(X), rtol=1e-9)
        np.testing.assert_allclose(weighted.loss_curve_, repeated.loss_curve_, rtol=1e-9)
    without = sm.Classifier(**settings).fit(features[weight > 0], y[weight > 0], weight[weight > 0])
    np.testing.assert_allclose(weighted.predict_proba(X), without.predict_proba(X), rtol=1e-12)


@pytest.mark.parametrize("network", ["float32", "float64"])
def test_features_far_from_those_learnt_have_probabilities(network: str):
    model = sm.Classifier(**LINEAR | {"dtype": network}).fit(np.hstack([X, np.ones((len(X), 1))]), y)
    far = np.full((2, 5), 1e300) * [[1], [-1]]
    np.testing.assert_allclose(model.predict_proba(far).sum(-1), 1.0)


def test_early_stopping_trains_on_the_only_row_of_a_class():
    features, labels = np.vstack([X, [[20.0] * 4]]), np.append(y, 3)
    model = sm.Classifier(**LINEAR | {"early_stopping": True, "patience": 100}).fit(features, labels)
    assert model.predict(features[-1:]) == [3]
    with pytest.raises(ValueError, match="early_stopping needs a class of two rows"):
        sm.Classifier(early_stopping=True).fit(X[[0, 100]], y[[0, 100]])


def test_what_no_file_holds_is_named():
    for arguments, words in (
        ({"random_state": np.random.RandomState(0)}, "random_state is a RandomState"),
        ({"map": "proportional", "map_params": {"f": lambda x: x.exp()}}, r"map_params\['f'\] is a function"),
    ):
        model = sm.Classifier(**arguments, hidden=(), epochs=1).fit(X, y)
        with pytest.raises(ValueError, match=words):
            model.as_dict()


def test_functions_are_saved_by_name():
    model = sm.Classifier("proportional", map_params={"f": torch.sigmoid}, epochs=1, **LINEAR).fit(X, y)
    assert model.as_dict()["params"]["map_params"] == {"f": "sigmoid"}


# Without scikit-learn -----------------------------------------------------------------------------------------------------


def test_without_scikit_learn_the_extra_is_named_and_all_else_works():
    code = (
        "import sys; sys.modules['sklearn'] = None\n"
        "from softmaxima import *\n"
        "import softmaxima as sm\n"
        "sparsemax, sm.softmax\n"
        "try: sm.Classifier\n"
        "except ImportError as error: print(error)\n"
    )
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ended.stdout == 'sm.Classifier needs scikit-learn, which is not installed: pip install "softmaxima[sklearn]"\n'


@pytest.mark.parametrize(("rows", "classes", "features"), [(150, 3, 4), (200, 5, 4), (1000, 10, 2), (600, 2, 1), (300, 3, 60)])
def test_a_linear_model_learns_at_its_defaults_what_logistic_regression_does(rows: int, classes: int, features: int):
    """Also in the few steps of a first look."""
    random = np.random.default_rng(0)
    y = random.integers(0, classes, 2 * rows)
    X = 2.0 * random.standard_normal((classes, features))[y] + random.standard_normal((2 * rows, features))
    best = LogisticRegression(max_iter=1000).fit(X[:rows], y[:rows]).score(X[rows:], y[rows:])
    for epochs, below in ((None, 0.03), (usual_epochs(rows, 128, 10, 60), 0.12)):
        model = sm.Classifier(hidden=(), epochs=epochs, random_state=0).fit(X[:rows], y[:rows])
        assert model.score(X[rows:], y[rows:]) > best - below


def test_places_of_missing_values_that_are_no_whole_numbers_are_refused() -> None:
    x = np.array([[0.0, np.nan], [1.0, 2.0], [2.0, 3.0], [3.0, np.nan]])
    model = sm.Classifier(epochs=1, missing="impute").fit(x, [0, 1, 0, 1])
    check_learnt(model)
    model.missing_ = model.missing_.astype(np.float32)
    with pytest.raises(ValueError, match="needs an array of whole numbers"):
        check_learnt(model)
