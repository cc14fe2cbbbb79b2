r"""RELAX and REBAR: REINFORCE with a baseline that depends on the draw, a function c of the noisy scores z = log p + G of D.

    (f(D) − c(z̃)) ∇log p(D) + ∇c(z) − ∇c(z̃),        z̃ from p(z | D), both as functions of x at fixed noise

E is ∇E f(D) for every c, so c may learn whatever makes the variance small. The noise of z̃ may be chosen so that z̃ = z; then
∂z̃_j = (1 − r_j) ∂log p_j with r_j = e^{z_j − max z}, and what is left is

    (f(D) − c(z)) ∇log p(D) + Σ_j r_j ∂c/∂z_j ∇log p_j

of one evaluation of f and one of c: the two last terms of above, nearly equal, are never subtracted.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from softmaxima.base.arguments import check_value
from softmaxima.base.numbers import TEMPERATURE, check_count, check_number
from softmaxima.base.onnx import refuse_export
from softmaxima.base.public import public
from softmaxima.base.randomness import Randomness
from softmaxima.maps.softmax import SOFTMAX
from softmaxima.sampling.drawing import Drawing, Function, as_drawing, over_rows
from softmaxima.sampling.noise import gumbel
from softmaxima.sampling.rows import largest, moving
from softmaxima.temperature import Temperature

Control = Callable[[Tensor], Tensor]


@public
def relax(
    x: Tensor,
    f: Function,
    control: Control,
    *,
    samples: int = 1,
    dim: int = -1,
    where: Tensor | None = None,
    generator: Randomness = None,
) -> Tensor:
    r"""E f(D) of one-hot D from softmax(x), with the gradient of RELAX: `(f(D) − c(z)) ∇log p(D) + Σ_j r_j ∂c/∂z_j ∇log p_j`.

    Args:
        x, dim, where, generator: as for `reinforce`.
        f: as for `reinforce`; it is given one-hot draws alone, and need not be differentiable in them.
        control: c, any function of noisy scores z = log softmax(x) + G, (samples, *x.shape), −∞ where masked, to values of the
            shape that f gives, differentiable in z. What it depends on gets no gradient from the value; `second_moment` says how it
            learns.
        samples: how many draws, and evaluations of f and of c.

    Returns:
        The mean of f(D), as `reinforce` returns it. First derivatives are unbiased for every c; those by what f depends on are of
        f(D) alone.

    Raises:
        TypeError, ValueError or IndexError, as `reinforce`.

    Not within torch.func and torch.compile, for it differentiates c. Cost: one value and one gradient of c beside f. Source:
    Grathwohl, Choi, Wu, Roeder and Duvenaud (2018), arXiv:1711.00123, with the common noise of Tucker et al. (2017).

    >>> import torch, softmaxima as sm
    >>> x = torch.tensor([1.0, 0.0, -1.0], requires_grad=True)
    >>> reward = torch.tensor([0.0, 1.0, 5.0])
    >>> value = sm.relax(x, lambda d: d @ reward, lambda z: z.softmax(-1) @ reward, samples=10_000, generator=0)
    >>> value.detach(), torch.autograd.grad(value, x)[0]
    (tensor(0.7246), tensor([-0.4701,  0.0692,  0.4008]))
    """
    name = "relax"
    count = check_count(name, "samples", samples)
    if not callable(control):
        raise TypeError(f"{name}: control must be a function of noisy scores, got {type(control).__name__}")
    drawing = as_drawing(name, x, f, dim, where, count)
    return _controlled(drawing, f, control, drawing.rows.uniform(generator))


def _controlled(drawing: Drawing, f: Function, control: Control, u: Tensor) -> Tensor:
    z = drawing.log_p.detach() + gumbel(u)
    one_hot = largest(z)
    values = drawing.values(f, one_hot)
    log_prob = moving(over_rows(drawing.log_prob(one_hot), values))
    if not torch.is_grad_enabled():
        return values.mean(0).to(drawing.rows.dtype)
    refuse_export(drawing.rows.name, "gradients inside a graph; call it in torch.no_grad()")
    with torch.enable_grad():
        leaf = z.requires_grad_()
        predicted = drawing.values(control, leaf, "control")
        if predicted.shape != values.shape:
            name, wanted, got = drawing.rows.name, tuple(values.shape), tuple(predicted.shape)
            raise ValueError(f"{name}: control must give values of the shape that f gives, {wanted}, got {got}")
        slope = torch.zeros_like(z)
        if predicted.requires_grad:
            found = torch.autograd.grad(predicted.sum(), leaf, create_graph=True, allow_unused=True)[0]
            slope = slope if found is None else torch.where(z > -torch.inf, found, 0.0)
    z = z.detach()
    nearness = (z - z.amax(-1, keepdim=True)).exp().masked_fill(z == -torch.inf, 0.0)  # r, 1 at the class that is drawn
    moved = over_rows((nearness * slope * moving(drawing.log_p)).sum(-1), values)
    nothing = over_rows(one_hot.any(-1).double(), values) == 0  # allowed: there log p does not move, and c may be −∞
    apart = (values.detach() - predicted).masked_fill(nothing, 0.0)
    # log_prob and moved are 0: the value is that of f, and neither c's parameters nor those of f have a gradient through c.
    return (values + apart * log_prob + moved).mean(0).to(drawing.rows.dtype)


@public
def rebar(
    x: Tensor,
    f: Function,
    *,
    temperature: float | Tensor = 0.5,
    scale: float | Tensor = 1.0,
    samples: int = 1,
    dim: int = -1,
    where: Tensor | None = None,
    generator: Randomness = None,
) -> Tensor:
    """E f(D) of one-hot D from softmax(x), with the gradient of REBAR: RELAX with the control variate `c(z) = η f(softmax(z/τ))`.

    Args:
        x, samples, dim, where, generator: as for `reinforce`.
        f: as for `reinforce`, and differentiable at relaxed draws, vectors of the simplex, too.
        temperature: τ > 0, a number, a tensor of one, or a module that says it; it may learn, by `second_moment`.
        scale: η, likewise. 0 is REINFORCE without a baseline.

    Returns, raises: as `relax`. Unbiased for every τ and η. Cost: two evaluations of f and a gradient of it for each sample.
    Source: Tucker, Mnih, Maddison, Lawson and Sohl-Dickstein (2017), arXiv:1703.07370.

    >>> import torch, softmaxima as sm
    >>> x = torch.tensor([1.0, 0.0, -1.0], requires_grad=True)
    >>> reward = torch.tensor([0.0, 1.0, 5.0])
    >>> value = sm.rebar(x, lambda draws: draws @ reward, samples=10_000, generator=0)
    >>> value.detach(), torch.autograd.grad(value, x)[0]
    (tensor(0.7246), tensor([-0.4713,  0.0714,  0.3999]))
    """
    name = "rebar"
    count = check_count(name, "samples", samples)
    tau, eta = (_one(name, what, value) for what, value in (("temperature", temperature), ("scale", scale)))
    drawing = as_drawing(name, x, f, dim, where, count)
    return _controlled(drawing, f, lambda z: eta * f(_softened(z, drawing, tau)), drawing.rows.uniform(generator))


DOMAINS = {"temperature": TEMPERATURE, "scale": (lambda s: abs(s) < torch.inf, "a finite number")}


def _one(name: str, what: str, value: Any) -> float | Tensor:
    """A number, or a tensor of no axes."""
    checked = check_value(name, what, value, *DOMAINS[what])
    if isinstance(checked, Tensor) and checked.numel() != 1:
        raise ValueError(f"{name}: {what} must be one number, got a tensor of shape {tuple(checked.shape)}")
    return checked.reshape(()) if isinstance(checked, Tensor) else checked


def _softened(z: Tensor, drawing: Drawing, tau: float | Tensor) -> Tensor:
    """softmax(z/τ) of noisy scores as f is given them."""
    return SOFTMAX(z, drawing.rows.dim + 1 if z.ndim > 1 else -1, temperature=tau)


@public
def second_moment(value: Tensor, x: Tensor) -> Tensor:
    """Σ (∂value/∂x)², differentiable: less of it is less variance, for the expectation of ∂value/∂x is what it is.

    Args:
        value: of `rebar` or `relax`, of any shape; it is summed.
        x: the scores.

    Returns a scalar, to be differentiated by what the control variate learns, and by that alone: take `torch.autograd.grad(…,
    parameters)`, with retain_graph=True where `value.backward()` follows. It is the sum over rows of squared gradients of one
    estimate each, in x's dtype, or float32 for a narrower one. Raises TypeError for anything but tensors with a gradient, and
    ValueError for another x. Cost: a second derivative.

    >>> import torch, softmaxima as sm
    >>> x = torch.tensor([1.0, 0.0], requires_grad=True)
    >>> scale = torch.tensor(1.0, requires_grad=True)
    >>> value = sm.rebar(x, lambda draws: draws[..., 0] ** 2, scale=scale, samples=1000, generator=0)
    >>> torch.autograd.grad(sm.second_moment(value, x), scale)[0]
    tensor(0.0080)
    """
    for what, v, repair in (("value", value, "compute it by rebar or relax of"), ("x", x, "give")):
        if not isinstance(v, Tensor) or not v.requires_grad:
            got = "one without" if isinstance(v, Tensor) else type(v).__name__
            raise TypeError(f"second_moment: {what} must be a tensor with a gradient, got {got}; {repair} an x that requires grad")
    (slope,) = torch.autograd.grad(value.sum(), x, create_graph=True, allow_unused=True)
    if slope is None:
        raise ValueError(
            "second_moment: value must be computed of x, got an x that it does not depend on; give the x of rebar or relax"
        )
    return slope.double().square().sum().to(torch.promote_types(value.dtype, torch.float32))


@public
class Relax(nn.Module):
    r"""`relax` with a control variate that learns, `c(z) = η f(softmax(z/τ)) + r(softmax(z/τ))`.

    η is a parameter, τ a `Temperature`, and r a network or None. They learn what makes the variance of the gradient small, by
    `learn`.

    Args:
        network: r, a module from (samples, *x.shape) to the values of the shape that f gives; None: REBAR with τ and η that learn.
        temperature: where τ > 0 starts, or a module that says it.
        scale: where η starts; 0 where f is not differentiable: then f is given no relaxed draws, and η does not learn.

    Raises TypeError or ValueError at once for anything else. Cost and source: as of `relax`.

    >>> import torch, softmaxima as sm
    >>> x, reward = torch.tensor([1.0, 0.0, -1.0], requires_grad=True), torch.tensor([0.0, 1.0, 5.0])
    >>> estimator = sm.Relax()
    >>> value = estimator(x, lambda draws: draws @ reward, samples=4, generator=0)
    >>> estimator.learn(value, x)  # into estimator.scale.grad and estimator.temperature.rho.grad
    >>> value.backward()           # into x.grad
    >>> estimator.scale.grad is None, x.grad is None
    (False, False)
    """

    def __init__(self, network: nn.Module | None = None, temperature: float | nn.Module = 0.5, scale: float = 1.0) -> None:
        super().__init__()
        name = type(self).__name__
        if network is not None and not isinstance(network, nn.Module):
            raise TypeError(f"{name}: network must be a torch.nn.Module or None, got {type(network).__name__}")
        tau, eta = _one(name, "temperature", temperature), check_number(name, "scale", scale, *DOMAINS["scale"])
        if network is None and eta == 0:
            raise ValueError(
                f"{name}: scale must not be 0 without a network, got {scale}; take reinforce, which has no control variate"
            )
        self.network = network
        self.temperature = temperature if isinstance(temperature, nn.Module) else Temperature(tau)
        self.scale = nn.Parameter(torch.tensor(eta, dtype=torch.get_default_dtype()), requires_grad=bool(eta != 0))

    def forward(
        self,
        x: Tensor,
        f: Function,
        *,
        samples: int = 1,
        dim: int = -1,
        where: Tensor | None = None,
        generator: Randomness = None,
    ) -> Tensor:
        """The value of `relax`; its gradient reaches x and what f depends on, not this module."""
        name = type(self).__name__
        count = check_count(name, "samples", samples)
        drawing = as_drawing(name, x, f, dim, where, count)
        tau = _one(name, "temperature", self.temperature)

        def control(z: Tensor) -> Any:
            relaxed = _softened(z, drawing, tau)
            terms = [self.scale * f(relaxed)] if self.scale.requires_grad else []
            return sum(terms if self.network is None else [*terms, self.network(relaxed)])

        return _controlled(drawing, f, control, drawing.rows.uniform(generator))

    def learn(self, value: Tensor, x: Tensor) -> None:
        """Adds to `.grad` of this module's parameters that of `second_moment(value, x)`, as `backward` would; call it first."""
        learning = [parameter for parameter in self.parameters() if parameter.requires_grad]
        second_moment(value, x).backward(inputs=learning, retain_graph=True)

    def extra_repr(self) -> str:
        return f"scale={self.scale.detach().item():.3g}"
