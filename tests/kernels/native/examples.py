"""What the kernels of maps are given, as the lines of a table of fuzz.cpp: θ at the examples of their parameters, and claims."""

from __future__ import annotations

import itertools
import math
import sys
from collections.abc import Iterable, Iterator

import torch

from softmaxima.maps import REGISTRY, Map

MANY = torch.tensor(2.0**40)  # allowed scores: what Σp is at most in a row of any length


def in_braces(parts: Iterable[str]) -> str:
    return f"{{{', '.join(parts)}}}"


def number(value: float) -> str:
    return repr(float(value)) if math.isfinite(value) else "INFINITY" if value > 0 else "-INFINITY"


def points(map: Map) -> Iterator[str]:
    """{θ, the most that Σp is}, where p are no logarithms."""
    for values in itertools.product(*(parameter.examples + parameter.others for parameter in map.params)):
        params = dict(zip(map.complete({}), values, strict=True))
        mass = math.inf if map.properties.logarithmic else float(map.properties.largest_mass(MANY, **params))
        theta = map.kernel.theta(*values)
        if theta is not None:
            yield in_braces([in_braces(number(each) for each in theta), number(mass)])


def lines() -> Iterator[str]:
    """The fields of `Example`, of every kernel of the package."""
    for map in REGISTRY.values():
        if map.kernel is not None and map.kernel.library is None:
            learns = any(parameter.gradient is not None for parameter in map.params)
            claims = (map.properties.sparse, map.uses_scores, learns, map.properties.shift_invariant)
            shared = (*(str(claim).lower() for claim in claims), in_braces(points(map)))
            attends = map.kernel.backward is not None and not map.properties.logarithmic
            for name in (map.kernel.forward, map.kernel.backward, map.kernel.loss):
                if name is not None:
                    own = map.kernel.backward if attends and name == map.kernel.forward else ""
                    yield in_braces([f'"{name}"', f'"{own}"', *shared]) + ",\n"


sys.stdout.writelines(lines())
