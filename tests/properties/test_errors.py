"""Wrong use raises at the public edge and says what was wrong, what arrived and what to do."""

from __future__ import annotations

import inspect

import numpy as np
import pytest
import torch

import softmaxima as sm
from conftest import Case, LossCase, normal

X = torch.zeros(2, 3)


def test_maps_refuse_what_is_no_real_number(case: Case):
    with pytest.raises(TypeError, match=rf"{case.map.name}: scores must be float64.*got torch\.complex64; take x\.real"):
        case(torch.zeros(2, dtype=torch.complex64))
    with pytest.raises(TypeError, match=r"must be a torch.Tensor or a numpy.ndarray, got list"):
        case([1.0, 2.0])
    with pytest.raises(TypeError, match=r"no dtype for scores of NumPy dtype"):
        case(np.zeros(3, dtype=object))


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"dim": 2}, IndexError, r"dim must be in \[-2, 1\] for scores of 2 dimensions, got 2"),
        ({"dim": -3}, IndexError, r"dim must be in \[-2, 1\]"),
        ({"dim": 0.5}, TypeError, r"dim must be an int, got 0.5; pass an int"),
        ({"dim": (0, 0)}, ValueError, r"dim must name each axis once, and at least one; got \(0, 0\)"),
        ({"dim": (0, 2)}, IndexError, r"dim must be in \[-2, 1\] for scores of 2 dimensions, got 2"),
        ({"dim": ()}, ValueError, r"dim must name each axis once, and at least one; got \(\)"),
        ({"dim": None}, TypeError, r"dim must be an int or a tuple of ints, got None"),
        ({"dtype": torch.int64}, TypeError, r"dtype must be float64, float32, bfloat16 or float16, got torch.int64"),
        ({"dtype": "floaty"}, TypeError, r"dtype must be float64, float32, bfloat16 or float16, got 'floaty'"),
        ({"dim": len}, TypeError, r"dim must be an int, got .*function.*; pass .* by name"),
        ({"temperature": [1, 2, 3]}, TypeError, r"temperature must be positive and finite, .*got list; pass a number or a tensor"),
        ({"temperature": 0.0}, ValueError, r"temperature must be positive and finite, .*got 0.0"),
        ({"temperature": -1}, ValueError, r"temperature must be positive and finite, .*got -1"),
        ({"temperature": float("nan")}, ValueError, r"temperature must be positive and finite, .*got nan"),
        ({"temperature": float("inf")}, ValueError, r"temperature must be positive and finite, .*got inf"),
        ({"temperature": torch.tensor([[1.0], [0.0]])}, ValueError, r"positive and finite, .*got a tensor with 0.0"),
        (
            {"temperature": torch.ones(3)},
            ValueError,
            r"got shape \(3,\); give it a shape that broadcasts to \(2, 1\)",
        ),
        ({"temperature": torch.ones(2)}, ValueError, r"got shape \(2,\); one value a row needs temperature.reshape\(2, 1\)"),
        ({"temperature": torch.ones(3, 1)}, ValueError, r"must broadcast against scores of shape \(2, 3\)"),
        ({"temperature": torch.ones(1, 2, 1)}, ValueError, r"must broadcast against scores of shape \(2, 3\)"),
        ({"temperature": "hot"}, TypeError, r"temperature must be positive and finite, .*got the string 'hot'; pass a number"),
        ({"temperature": torch.ones(2, 1, dtype=torch.bool)}, TypeError, r"temperature must be real, got torch.bool"),
        ({"where": torch.ones(2, 3)}, TypeError, r"where must be boolean.*got torch.float32; call where.bool\(\)"),
        ({"where": torch.ones(4, 3).bool()}, ValueError, r"where must broadcast to the scores' shape \(2, 3\), got \(4, 3\)"),
        ({"where": torch.ones(1, 2, 3).bool()}, ValueError, r"where must broadcast to the scores' shape"),
        ({"beta_": 1.0}, TypeError, r"unknown argument 'beta_'.*[;(] ?map '.*' takes"),
    ],
    ids=str,
)
def test_wrong_options_of_maps_raise(case: Case, options: dict, error: type[Exception], message: str):
    with pytest.raises(error, match=message):
        case(X, **options)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: sm.entmax(X, alpha=0.0), r"entmax: alpha must be positive and finite, got 0.0"),
        (lambda: sm.entmax(X, alpha=float("inf")), r"positive and finite"),
        (lambda: sm.entmax(X, alpha=torch.tensor([[1.5], [-0.5]])), r"positive and finite, got a tensor with -0.5"),
        (lambda: sm.MapModule("entmax", alpha=-0.9), r"MapModule: alpha must be positive and finite, got -0.9"),
        (lambda: sm.elastic_softmax(X, beta=float("inf")), r"beta must be a number below"),
        (lambda: sm.elastic_softmax(X, beta=float("nan")), r"beta must be a number below"),
        (lambda: sm.eps_softmax(X, eps=0.0), r"eps must be positive and finite, .*got 0.0"),
        (lambda: sm.rectified_softmax(X, empty="ones"), r"empty must be 'zeros' or 'uniform', got 'ones'"),
        (lambda: sm.taylor_softmax(X, order=3), r"order must be an even int"),
        (lambda: sm.taylor_softmax(X, order=0), r"order must be an even int"),
        (lambda: sm.topk_softmax(X, k=0), r"k must be an int of at least 1, got 0"),
        (lambda: sm.topk_softmax(X, k=2.0), r"k must be an int of at least 1, got 2.0"),
        (lambda: sm.topp_softmax(X, p=0.0), r"p must be a number in \(0, 1\], got 0.0"),
        (lambda: sm.minp_softmax(X, p=-0.1), r"p must be a number in \[0, 1\], got -0.1"),
        (lambda: sm.topp_softmax(X, p=1.5), r"p must be a number in \(0, 1\], got 1.5"),
        (lambda: sm.proportional(X, f=torch.sin), None),
        (lambda: sm.proportional(X - 1, f=torch.sin), r"f must not be negative, got -0.8"),
        (lambda: sm.proportional(X, f="sigmoid"), r"f must be a function"),
        (lambda: sm.proportional(X, torch.relu), r"arguments after x must be named, got relu; write f=…"),
        (lambda: sm.jacobian("sofmax", X), r"jacobian: unknown map 'sofmax'; did you mean 'softmax'\? Registered are: "),
        (lambda: sm.proportional(X, f=lambda z: z.exp().sum()), r"f must work elementwise: .* shape \(2, 3\) it returned \(\)"),
        (lambda: sm.proportional(X, temperature=2.0, f=lambda z: z[..., :1].exp()), r"of shape \(2, 3\) it returned \(2, 1\)"),
        (lambda: sm.proportional(X, f=lambda z: z > 0), r"f must return a floating-point tensor, .* got torch.bool"),
        (lambda: sm.proportional(X, f=lambda z: None), r"f must return a floating-point tensor, .* got NoneType"),
        (lambda: sm.MapModule("sofmax"), r"unknown map 'sofmax'"),
        (lambda: sm.hessian_vector_product(torch.sum, X, X[0]), r"x and v must have one shape and dtype"),
        (lambda: sm.softmin([1.0]), r"softmin: scores must be a torch.Tensor or a numpy.ndarray, got list"),
        (lambda: sm.softmin(np.array([1j])), r"softmin: scores must be float64.*got torch.complex128"),
        (lambda: sm.softmax(X.numpy(), dtype=torch.bfloat16), r"dtype must be float64, float32 or float16 for arrays, got"),
        (lambda: sm.topk_softmax(X, 1), r"topk_softmax: arguments after x must be named, got 1; write k=1 or dim=…, "),
        (lambda: sm.softmin(X, temperature=0.0), r"softmin: temperature must be positive"),
        (lambda: sm.softplus(X, beta=0.0), r"beta must be between 1e-30 and 1e30, got 0.0"),
        (lambda: sm.inverse_softplus(X, beta=-1.0), r"beta must be between 1e-30 and 1e30, got -1.0"),
        (lambda: sm.real_softmax(X, sharpness=0.0), r"sharpness must be a positive finite number, got 0.0"),
        (lambda: sm.logsumexp(X, keepdim="no"), r"logsumexp: keepdim must be True or False, got the string"),
        (lambda: sm.logsumexp(X, keepdim=1), r"logsumexp: keepdim must be True or False, got 1"),
        (lambda: sm.logsumexp(X, return_sign=0), r"logsumexp: return_sign must be True or False, got 0"),
        (lambda: sm.log_mean_exp(X, keepdim="no"), r"log_mean_exp: keepdim must be True or False, got the string"),
        (lambda: sm.quantized_logsumexp(X.to(torch.int8), 0.1, keepdim="no"), r"keepdim must be True or False, got the string"),
        (lambda: sm.scipy_logsumexp(X.numpy(), keepdims="no"), r"scipy_logsumexp: keepdims must be True or False, got the string"),
        (lambda: sm.scipy_logsumexp(X.numpy(), return_sign="no"), r"return_sign must be True or False, got the string"),
        (lambda: sm.file_logsumexp("x.npy", effective_size="no"), r"effective_size must be True or False, got the string"),
        (lambda: sm.streaming_logsumexp(5), r"streaming_logsumexp: blocks must be an iterable of .*, got 5; pass a list of them"),
        (lambda: sm.multimodal_logsumexp([]), r"with at least one tensor or array a modality, got an empty one"),
        (lambda: sm.logsumexp(X, (0, 0)), r"dim must name each axis once"),
        (lambda: sm.logsumexp(X, ()), r"dim must name each axis once, and at least one"),
        (lambda: sm.maps.register(sm.maps.REGISTRY["softmax"]), r"a map named 'softmax' exists already"),
        (lambda: sm.fenchel_young_loss(X, X.long()[:, 0], map="taylor_softmax"), r"has no regulariser.*use surrogate_loss"),
        (lambda: sm.surrogate_loss(X, X.long()[:, 0], map="log_softmax"), r"returns logarithms, not probabilities"),
        (lambda: sm.sparse_softmax_loss(X, X.long()[:, 0]), r"give exactly one of k and p, got k=None and p=None"),
        (lambda: sm.sparse_softmax_loss(X, X.long()[:, 0], k=2, p=0.5), r"give exactly one of k and p"),
        (lambda: sm.sparse_softmax_loss(X, X.long()[:, 0], k=0), r"k must be an int of at least 1"),
        (lambda: sm.eps_cross_entropy(X, X.long()[:, 0], eps=-1.0), r"eps must be a finite number of at least 0"),
        (lambda: sm.sparsemax_loss(X, torch.ones(2, 3)), r"each row of target .* sum to 1, got one that sums to 3; divide each"),
        (lambda: sm.entmax15_loss(X, torch.zeros(2, 3)), r"sum to 1, got one that sums to 0; leave out rows that have no target"),
        (lambda: sm.cross_entropy(X, torch.zeros(2, 3), ignore_index=1), r"leave those rows out of scores and target"),
        (lambda: sm.arcface(X + 2, X.long()[:, 0]), r"cosines must lie in \[−1, 1\], got 2; for features, give class_vectors"),
        (lambda: sm.arcface(X, X.long()[:, 0], margin=4.0), r"margin must be a number in \[0, π\), got 4.0"),
        (lambda: sm.cosface(X, X.long()[:, 0], scale=0.0), r"scale must be positive, from 1.2e-38 to .*, got 0.0"),
        (lambda: sm.am_softmax_loss(X, X.long()[:, 0], temperature=0.0), r"temperature must be positive"),
        (lambda: sm.am_softmax_loss(X, X.long()[:, 0], torch.zeros(5, 4)), r"class_vectors must be \(classes, 3\)"),
        (lambda: sm.EntmaxLoss(gamma=2.0), r"unknown argument 'gamma'"),
    ],
)  # fmt: skip
def test_wrong_values_raise(call, message: str | None):
    if message is None:
        call()  # sin is negative somewhere, but not on these scores
    else:
        with pytest.raises((ValueError, TypeError), match=message):
            call()


@pytest.mark.parametrize(
    ("target", "options", "error", "message"),
    [
        (torch.tensor([0, 3]), {}, IndexError, r"target 3 is out of range for 3 classes"),
        (torch.tensor([0, -1]), {}, IndexError, r"target -1 is out of range for 3 classes; ignore_index=-1 leaves"),
        (
            torch.tensor([0, 1, 2]),
            {},
            ValueError,
            r"class indices of shape \(2,\), or probabilities of shape \(2, 3\); got torch.int64",
        ),
        (torch.tensor([True, False]), {}, ValueError, r"got torch.bool of shape .*; classes 0 and 1 need target.long\(\)"),
        (torch.tensor([0.0, 1.0]), {}, ValueError, r"must have the scores' shape \(2, 3\), got \(2,\)"),
        (torch.tensor([[0.5, 0.75, -0.25]] * 2), {}, ValueError, r"must not be negative, got -0.25"),
        (torch.full((2, 3), 1 / 3), {"ignore_index": 1}, ValueError, r"ignore_index works with class indices"),
        (torch.tensor([0, 1]), {"reduction": "average"}, ValueError, r"reduction must be one of mean, sum, none, got 'average'"),
        (torch.tensor([0, 1]), {"label_smoothing": 1.5}, ValueError, r"label_smoothing must be in \[0, 1\], got 1.5"),
        (torch.tensor([0, 1]), {"weight": torch.ones(2)}, ValueError, r"one floating-point number for each of the 3 classes"),
        (torch.tensor([0, 1]), {"weight": torch.ones(3).long()}, ValueError, r"one floating-point number for each"),
        ([0, 1], {}, TypeError, r"target must be a torch.Tensor or a numpy.ndarray, got list"),
    ],
    ids=str,
)
def test_wrong_options_of_losses_raise(loss: LossCase, target, options: dict, error: type[Exception], message: str):
    with pytest.raises(error, match=rf"{loss.loss.name}: .*{message}"):
        loss(X, target, **options)


def test_losses_take_floating_point_scores_with_a_class_axis_only(loss: LossCase):
    with pytest.raises(TypeError, match="scores must be float64"):
        loss(X.long(), torch.tensor([0, 1]))
    with pytest.raises(ValueError, match="scores need a class axis"):
        loss(torch.tensor(1.0), torch.tensor(0))


def test_errors_name_the_map_also_when_an_array_is_too_wide():
    with pytest.raises(TypeError, match=r"softmax: torch has no dtype for scores of NumPy dtype"):
        sm.softmax(normal(3).numpy().astype(np.longdouble))


JAGGED = torch.nested.nested_tensor([torch.zeros(2), torch.zeros(3)], layout=torch.jagged)
HIDDEN = torch.zeros(2, 3), torch.zeros(4, 3), torch.tensor([0, 1])


@pytest.mark.parametrize(
    ("call", "repair"),
    [
        (lambda: sm.GumbelSoftmax(tau=1), r"^GumbelSoftmax: unknown argument 'tau'; did you mean 'temperature'"),  # type: ignore[arg-type]
        (lambda: sm.softmax(JAGGED), r"softmax: scores must be a dense tensor, got a nested one; sm.segment_map"),
        (
            lambda: sm.calibrate_temperature(X, np.array(["a", "b"])),
            r"of NumPy dtype <U1; number what they name: numpy.unique",
        ),
        (
            lambda: sm.softmax(X, 1, 3, torch.float64),
            r"^softmax: arguments after dim must be named, got torch.float64; write dtype=torch.float64$",
        ),  # type: ignore[misc]
        (lambda: sm.attention(q=X, k=X, v=X), r"^attention: unknown argument 'q'; did you mean 'query'"),  # type: ignore[call-arg]
        (lambda: sm.linear_loss(*HIDDEN, weights=X), r"^linear_loss: unknown argument 'weights'; did you mean 'class_weight'"),  # type: ignore[call-arg]
        (lambda: sm.linear_loss(*HIDDEN, loss="focal", gamma=2), r'as in loss=\("focal", 2.0\)'),  # type: ignore[call-arg]
        (lambda: sm.Classifier(alpha=1.5), r'go in map_params and loss_params, as in map_params=\{"alpha": …\}'),  # type: ignore[call-arg]
        (
            lambda: sm.Classifier("topk_softmax").fit(X.numpy(), np.array([0, 1])),
            r"k=None and p=None; give for instance map_params=\{'k': 10\}",
        ),
        (lambda: sm.proportional(X, f="softplus"), r"such as torch.sigmoid, torch.square or torch.nn.functional.softplus, got"),  # type: ignore[arg-type]
        (lambda: sm.calibrate_temperature(X[:, :1], X.long()[:, 0]), r"got shape \(2, 1\); single logits of two .* with dim=None"),
        (lambda: sm.calibrate_temperature(X[:, 0], X[:, 0] > 0, dim=None), r"got torch.bool; call .long\(\)"),
        (lambda: sm.linear_loss(*HIDDEN, loss="entmax", alpha=1.3), r'as in loss=\("entmax", 1.3\)'),  # type: ignore[call-arg]
        (lambda: sm.LinearLoss(3, 4, loss="entmax", alpha=1.3), r'as in loss=\("entmax", 1.3\)'),
        (
            lambda: sm.linear_loss(*HIDDEN, loss="taylor_softmax"),
            r"no loss of its own; take loss=.*'taylor_softmax'",
        ),
        (
            lambda: sm.MixtureOfMaps(["softmax", "sparsemax"], gate="entmax"),
            r"got the map 'entmax'; it is for `maps`",
        ),
        (lambda: sm.segment_softmax(X, dim=(0, 1), index=X.long()), r"dim must be an int here, got tuple \(0, 1\); make one axis"),
    ],
)
def test_an_error_tells_what_works_instead(call, repair: str):
    with pytest.raises((TypeError, ValueError), match=repair):
        call()


def test_what_other_libraries_hold_is_told_how_to_come_here():
    pandas = pytest.importorskip("pandas")
    for function in (sm.softmax, sm.logsumexp, sm.entmax, sm.fusedmax, sm.bounds):
        with pytest.raises(TypeError, match=r"got DataFrame; call .to_numpy\(\)"):
            function(pandas.DataFrame(X.numpy()))


def test_a_dask_array_is_told_the_function_that_takes_it_where_there_is_one():
    x = pytest.importorskip("dask.array").zeros((2, 3), chunks=2)
    told = {}
    for name in ("softmax", "softmin", "logsumexp", *sm.maps.REGISTRY, *sm.losses.REGISTRY, "log_mean_exp", "bounds"):
        if hasattr(sm, name):
            options = {"k": 1} if name == "sparse_softmax_loss" else {}
            with pytest.raises(TypeError, match=r"got Array; .*call \.compute\(\) where it fits in memory") as caught:
                getattr(sm, name)(x, *(torch.tensor([0, 1]),) if name in sm.losses.REGISTRY else (), **options)
            told[name] = f"take sm.dask.{name}, which" in str(caught.value)
    assert {name for name, is_told in told.items() if is_told} == {*told} & {*dir(sm.dask)}
    assert not {"fusedmax", "arcface", "bounds"} & {*dir(sm.dask)}


def test_a_classifier_says_what_it_does_with_missing_values():
    features = np.array([[0.0], [np.nan], [1.0], [2.0]])
    with pytest.raises(ValueError, match='Input X contains NaN; give missing="impute"'):
        sm.Classifier().fit(features, [0, 1, 0, 1])


def test_dir_lists_what_is_public():
    assert all(
        name.startswith("__") or inspect.ismodule(value) or name in sm.__all__ for name in dir(sm) for value in [getattr(sm, name)]
    )
    assert not {"importlib", "warnings", "annotations", "base"} & {*dir(sm)}
