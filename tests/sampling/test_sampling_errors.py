"""Bad input is refused in a sentence before any work: no generator moves."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from softmaxima import sampling as s

X = torch.zeros(2, 3)
F = lambda draws: draws.sum(-1)

REFUSED: list[tuple[str, Callable[[torch.Generator], Any], str]] = [
    ("temperature", lambda g: s.gumbel_softmax(X, 0.0, generator=g), "gumbel_softmax: temperature must be positive"),
    ("temperature's shape", lambda g: s.gumbel_softmax(X, torch.ones(2), generator=g), r"temperature.reshape\(2, 1\)"),
    ("hard", lambda g: s.gumbel_softmax(X, 1.0, 1, generator=g), "gumbel_softmax: hard must be True or False"),  # type: ignore[arg-type]
    ("integers", lambda g: s.gumbel_softmax(X.long(), generator=g), "gumbel_softmax: scores must be float64"),
    ("a list", lambda g: s.gumbel_max([0.0], generator=g), "gumbel_max: scores must be a torch.Tensor"),  # type: ignore[type-var]
    ("dim", lambda g: s.gumbel_max(X, 2, generator=g), "gumbel_max: dim must be in"),
    ("where", lambda g: s.gumbel_max(X, where=X, generator=g), "gumbel_max: where must be boolean"),
    ("samples", lambda g: s.gumbel_max(X, samples=0, generator=g), "gumbel_max: samples must be an int of at least 1"),
    ("NaN", lambda g: s.gumbel_max(X * torch.nan, generator=g), r"gumbel_max: scores must be below \+∞ and not NaN"),
    ("a map", lambda g: s.relaxed_sample(X, map="sparsmax", generator=g), "did you mean 'sparsemax'"),
    ("log p", lambda g: s.relaxed_sample(X, map="log_softmax", hard=True, generator=g), "map must give probabilities"),
    ("a parameter", lambda g: s.relaxed_sample(X, map="entmax", alpha=-0.5, generator=g), "relaxed_sample: alpha must be"),
    (
        "masses",
        lambda g: s.straight_through(X, map="budget_sparsemax", generator=g),
        "straight_through: map must give probabilities of one",
    ),
    (
        "conditionals",
        lambda g: s.rao_blackwell_gumbel(X, conditionals=0, generator=g),
        "rao_blackwell_gumbel: conditionals must be",
    ),
    ("reinmax", lambda g: s.reinmax(X, -1.0, generator=g), "reinmax: temperature must be positive"),
    ("k", lambda g: s.gumbel_top_k(X, 4, generator=g), "gumbel_top_k: k must be at most the number of classes, 3, got 4"),
    ("k, a bool", lambda g: s.relaxed_top_k(X, True, generator=g), "relaxed_top_k: k must be an int"),
    ("f", lambda g: s.reinforce(X, 3, generator=g), "reinforce: f must be a function"),  # type: ignore[arg-type]
    ("an array", lambda g: s.reinforce(X.numpy(), F, generator=g), "reinforce: x must be a torch.Tensor"),  # type: ignore[arg-type]
    ("one sample", lambda g: s.reinforce(X, F, samples=1, generator=g), "reinforce: samples must be at least 2"),
    ("baseline", lambda g: s.reinforce(X, F, baseline="mean", generator=g), "reinforce: baseline must be one of"),
    ("exact", lambda g: s.sum_and_sample(X, F, exact=-1, generator=g), "sum_and_sample: exact must be"),
    ("scale", lambda g: s.rebar(X, F, scale=torch.inf, generator=g), "rebar: scale must be a finite number"),
    ("scales", lambda g: s.rebar(X, F, scale=torch.ones(2), generator=g), "rebar: scale must be one number"),
    ("control", lambda g: s.relax(X, F, 1.0, generator=g), "relax: control must be a function"),  # type: ignore[arg-type]
    ("no control", lambda g: s.expectation(X, F, "relax", generator=g), "expectation: missing a required argument: .control."),
    ("estimator", lambda g: s.expectation(X, F, "reinforced", generator=g), "did you mean 'reinforce'"),
    ("solver", lambda g: s.perturbed_argmax(X, 1.0, generator=g), "perturbed_argmax: solver must be a function"),  # type: ignore[arg-type]
    ("noise", lambda g: s.perturbed_argmax(X, F, noise="uniform", generator=g), "perturbed_argmax: noise must be one of"),
    (
        "an estimator's own",
        lambda g: s.expectation(X, F, "reinforce", baseline="leave_one_out", generator=g),
        "baseline is 'none' of this",
    ),
    (
        "an option",
        lambda g: s.expectation(X, F, "reinmax", tau=1.0, generator=g),
        r"'tau'; did you mean 'temperature'\? \(estimator='reinmax' takes: temperature, ",
    ),
    ("no draw", lambda g: s.straight_through(X, draw=False, generator=g), "generator is for draws"),
    ("pairs", lambda g: s.perturbed_argmax(X, F, samples=2, antithetic=True, generator=g), "samples must be at least 4"),
    ("odd pairs", lambda g: s.perturbed_argmax(X, F, samples=3, antithetic=True, generator=g), "samples must be even"),
    ("axes", lambda g: s.perturbed_argmax(X, F, dim=(0, 0), generator=g), "dim must name one axis or several different ones"),
    ("moments", lambda g: s.second_moment(X, X), "second_moment: value must be a tensor with a gradient"),
    ("module", lambda g: s.GumbelSoftmax(-1.0), "GumbelSoftmax: temperature must be positive"),
    ("network", lambda g: s.Relax(F), "Relax: network must be a torch.nn.Module"),  # type: ignore[arg-type]
    ("nothing to learn", lambda g: s.Relax(scale=0.0), "Relax: scale must not be 0 without a network"),
]


@pytest.mark.parametrize(("call", "said"), [entry[1:] for entry in REFUSED], ids=[entry[0] for entry in REFUSED])
def test_errors_come_before_any_work(call: Callable[[torch.Generator], Any], said: str):
    generator = torch.Generator().manual_seed(0)
    before = generator.get_state()
    with pytest.raises((TypeError, ValueError, IndexError), match=said):
        call(generator)
    assert torch.equal(generator.get_state(), before)


@pytest.mark.parametrize("generator", ["seed", -1, 0.5, True])
def test_generators_are_refused_by_name(generator: Any):
    with pytest.raises((TypeError, ValueError), match=r"gumbel_max: generator must be a torch\.Generator"):
        s.gumbel_max(X, generator=generator)


@pytest.mark.parametrize("f", [lambda d: d.sum(), lambda d: d, lambda d: d.sum(-1)[1:], lambda d: 1.0, lambda d: d.sum(-1).long()])
def test_values_of_another_shape_are_refused(f: Callable[[torch.Tensor], Any]):
    with pytest.raises((TypeError, ValueError), match="reinforce: f must give"):
        s.reinforce(X, f, samples=2)


def test_decisions_and_controls_of_another_shape_are_refused():
    with pytest.raises(ValueError, match="solver must give decisions of shape"):
        s.perturbed_argmax(X, lambda x: x.sum(), samples=3)
    for ragged in (lambda x: torch.zeros(1 + int(x.argmax())), lambda x: [[1], [1, 2]]):
        with pytest.raises(ValueError, match="solver must give decisions of one shape"):
            s.perturbed_argmax(X, ragged, samples=9, vectorized=False, generator=0)
    with pytest.raises(TypeError, match="solver must give real decisions"):
        s.perturbed_argmax(X, lambda x: x + 1j, samples=3)
    x = torch.zeros(2, requires_grad=True)
    with pytest.raises(ValueError, match="second_moment: value must be computed of x"):
        s.second_moment(x.square().sum(), torch.zeros(2, requires_grad=True))
    with pytest.raises(ValueError, match="control must give values of the shape that f gives"):
        s.relax(X, F, lambda z: z.sum((1, 2)))
    with pytest.raises(ValueError, match="f must give a value for each row"):
        s.sum_and_sample(X, lambda d: d.sum((1, 2)))
