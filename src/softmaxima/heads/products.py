"""The scores of a linear layer and its derivatives, of some rows at a time: by the native library, or by torch's products."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from softmaxima.base.arguments import COMPUTE_DTYPE
from softmaxima.base.tracing import is_concrete
from softmaxima.engine.routing import is_native
from softmaxima.kernels.native_linear import Layer, linear_backward, linear_scores

AT_ONCE = 1024  # classes
FEW_CLASSES = 512  # of which torch's products are as fast


def put_scores(hidden: Tensor, layer: Layer, tau: float, out: Tensor) -> None:
    """out = (s ⊙ (hidden weightᵀ) + bias)/τ [rows, classes], in the compute dtype."""
    if _by_kernels(hidden, layer):
        linear_scores(hidden.to(out.dtype), layer, tau, out)
        return
    _put_product(hidden, layer.weight.T, out)
    if layer.scales is not None:
        out.mul_(layer.scales.to(out.dtype))
    if layer.bias is not None:
        out.add_(layer.bias)
    if tau != 1.0:
        out.mul_(1 / tau)


def _put_product(a: Tensor, b: Tensor, out: Tensor) -> None:
    """out = a b, which is wider than half precision."""
    if a.dtype == b.dtype == out.dtype:
        torch.mm(a, b, out=out)
    elif a.is_cuda and a.dtype == b.dtype:
        out.copy_(torch.mm(a, b, out_dtype=out.dtype))
    else:
        torch.mm(a.to(out.dtype), b.to(out.dtype), out=out)


def _by_kernels(hidden: Tensor, layer: Layer) -> bool:
    return is_native(hidden) and layer.weight.shape[0] >= FEW_CLASSES and hidden.numel() > 0


def wanted(gradient: Tensor, of: Tensor) -> Tensor:
    """A gradient in the dtype that a tensor wants its own in."""
    return gradient.to((of.grad_dtype if of.is_leaf else None) or of.dtype)


def layer_of(weight: Tensor, bias: Tensor | None, is_unit: bool) -> Layer:
    """The layer, whose products are divided by the norms of the weight's rows if it `is_unit`; rows of 0 stay 0.

    Rows whose norm, or 1 over it, is no number that products can be scaled by are taken times a power of 2, where they can be read.
    """
    if not is_unit:
        return Layer(weight, bias)
    norms = torch.cat([_norms(w) for w in weight.split(AT_ONCE)])
    norms = norms.where(norms != 0, 1.0)
    if is_concrete(norms):
        least = torch.finfo(COMPUTE_DTYPE[weight.dtype]).tiny * 2**24
        extreme = (norms < least) | (norms > 1 / least)
        if bool(extreme.any()):
            exponents = torch.frexp(norms).exponent.clamp(-1000, 1000).where(extreme, 0)
            powers = torch.ldexp(torch.ones_like(norms), -exponents).unsqueeze(-1)
            weight = weight.clone()
            weight[extreme] = (weight[extreme].double() * powers[extreme]).to(weight.dtype)
            return Layer(weight, bias, 1 / (norms * powers.squeeze(-1)), powers)
    return Layer(weight, bias, 1 / norms)


def _norms(w: Tensor) -> Tensor:
    """‖w‖ of rows in double, also of doubles whose squares are none."""
    if w.dtype != torch.float64:
        return torch.linalg.vector_norm(w.double(), dim=-1)
    largest = w.abs().amax(-1, keepdim=True)
    largest = largest.where(largest > 0, 1.0)
    return torch.linalg.vector_norm(w / largest, dim=-1) * largest.squeeze(-1)


@dataclass
class LayerGradients:
    """Derivatives by a layer and by the rows that are given to it, summed in the compute dtype; None of what is not asked for."""

    layer: Layer
    hidden: Tensor | None  # [rows, features]
    weight: Tensor | None  # [classes, features]
    bias: Tensor | None  # [classes]
    is_empty: bool = True

    @classmethod
    def of(cls, hidden: Tensor, layer: Layer, needs: tuple[bool, bool, bool]) -> LayerGradients:
        """Of all rows; nothing is in them yet."""
        dtype = COMPUTE_DTYPE[hidden.dtype]
        empty = lambda x, need: torch.empty_like(x, dtype=dtype) if need and x is not None else None
        of = (hidden, layer.weight, layer.bias)
        by_hidden, by_weight, by_bias = (empty(x, need) for x, need in zip(of, needs, strict=True))
        return cls(layer, by_hidden, by_weight, by_bias)

    def add(self, hidden: Tensor, g: Tensor, begin: int) -> None:
        """Those of ⟨g, scores before τ⟩ of the rows from `begin` on, g [rows, classes]."""
        own = None if self.hidden is None else self.hidden[begin : begin + len(hidden)]
        if _by_kernels(hidden, self.layer):
            linear_backward(
                hidden.to(g.dtype),
                self.layer,
                g,
                hidden_grad=own,
                weight_grad=self.weight,
                bias_grad=self.bias,
                adds=not self.is_empty,
            )
        else:
            self._add_by_torch(hidden, g, own)
        self.is_empty = False

    def add_classes(self, hidden: Tensor, g: Tensor, begin: int, classes: slice) -> None:
        """The same of some classes, g [rows, those]; all of a row's are added before it is no more empty."""
        of = lambda value: None if value is None else value[classes]
        layer = Layer(self.layer.weight[classes], of(self.layer.bias), of(self.layer.scales))
        own = None if self.hidden is None else torch.empty_like(self.hidden[: len(hidden)])
        LayerGradients(layer, own, of(self.weight), of(self.bias), self.is_empty).add(hidden, g, 0)
        if self.hidden is not None and own is not None:
            rows = self.hidden[begin : begin + len(hidden)]
            rows.copy_(own if classes.start == 0 else rows + own)

    def _add_by_torch(self, hidden: Tensor, g: Tensor, own: Tensor | None) -> None:
        if self.bias is not None:
            total = g.sum(0)
            self.bias.copy_(total if self.is_empty else self.bias + total)
        if self.layer.scales is not None:
            g.mul_(self.layer.scales.to(g.dtype))
        g = g.to(hidden.dtype) if hidden.is_cuda else g  # whose products of halves are sums in float32
        if own is not None:
            _put_product(g, self.layer.weight, own)
        if self.weight is not None and self.is_empty:
            _put_product(g.T, hidden, self.weight)
        elif self.weight is not None and g.dtype == hidden.dtype == self.weight.dtype:
            self.weight.addmm_(g.T, hidden)
        elif self.weight is not None:
            _put_product(g.T, hidden, product := torch.empty_like(self.weight))
            self.weight.add_(product)

    def finish(self) -> None:
        """After all rows, of which there may have been none."""
        if self.is_empty:
            for total in (self.hidden, self.weight, self.bias):
                if total is not None:
                    total.zero_()
        if self.layer.scales is not None and self.weight is not None:
            self._leave_norms()
        if self.layer.powers is not None and self.weight is not None:
            self.weight.copy_(self.weight.double() * self.layer.powers)

    def _leave_norms(self) -> None:
        """Takes off what would change only the norms s⁻¹ of the weight's rows: G − s²⟨w, G⟩ w, of a block of classes at a time."""
        scales: Any = self.layer.scales
        for rows in range(0, len(self.weight), AT_ONCE):  # type: ignore[arg-type]
            w, total = self.layer.weight[rows : rows + AT_ONCE].double(), self.weight[rows : rows + AT_ONCE]  # type: ignore[index]
            towards = w * scales[rows : rows + AT_ONCE].unsqueeze(-1)
            total -= torch.linalg.vecdot(towards, total.double()).unsqueeze(-1) * towards
