"""The softmax of a linear layer over all of its classes, in parts that stay small: its logarithms, and the best classes."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from softmaxima.base.arguments import like_input
from softmaxima.base.cosines import unrounded
from softmaxima.base.numbers import check_count
from softmaxima.base.tracing import may_differentiate, sizes
from softmaxima.heads.labelled import HELD, Rows, slices
from softmaxima.maps.log_softmax import LOG_SOFTMAX


def exact_log_prob(rows: Rows) -> Any:
    """[..., classes]."""
    with unrounded(rows.hidden):
        if may_differentiate((rows.weight, rows.bias)):
            rows = rows.widened()  # once: the parts' gradients are summed before they are rounded
        parts = [rows.part(some) for some in slices(sizes(rows.hidden)[0], _at_once(rows))]
        found = [LOG_SOFTMAX(all_scores(part)).to(rows.dtype) for part in parts]
        return rows.result(torch.cat(found), (*rows.shape, rows.classes))


def best_classes(name: str, rows: Rows, k: int) -> Any:
    """The k classes of the largest scores, [..., k], the best first."""
    k = check_count(name, "k", k)
    if k > rows.classes:
        raise ValueError(f"{name}: k must be at most {rows.classes}, the number of classes, got {k}")
    return like_input(best_scores(rows, k)[1].reshape(*rows.shape, k), rows.given)


@torch.no_grad()
def best_scores(rows: Rows, k: int) -> tuple[Tensor, Tensor]:
    """(the k largest scores, their classes), [rows, k] each, the best first; of fewer classes all."""
    values, indices = [], []
    with unrounded(rows.hidden):
        for some in slices(sizes(rows.hidden)[0], 1024):
            part = rows.part(some)
            height, features = sizes(part.hidden)
            best = index = None
            for classes in slices(rows.classes, max(k, HELD // (part.hidden.element_size() * max(height, features, 1)))):
                value, place = part.scores(classes).topk(min(k, classes.stop - classes.start))
                place = place + classes.start
                if best is not None and index is not None:
                    value, order = torch.cat((best, value), -1).topk(min(k, classes.stop))
                    place = torch.cat((index, place), -1).gather(-1, order)
                best, index = value, place
            values.append(best)
            indices.append(index)
    return torch.cat(values), torch.cat(indices)


def _at_once(rows: Rows) -> int:
    return max(1, HELD // (rows.hidden.element_size() * max(1, rows.classes)))


def all_scores(rows: Rows) -> Tensor:
    """[rows, classes]."""
    height, features = sizes(rows.hidden)
    held = HELD // (rows.hidden.element_size() * max(1, height, features))
    found = [rows.scores(classes) for classes in slices(rows.classes, max(1, held))]
    return found[0] if len(found) == 1 else torch.cat(found, -1)
