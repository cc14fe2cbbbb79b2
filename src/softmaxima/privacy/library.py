"""OpenDP as this room uses it."""

from __future__ import annotations

import importlib
from typing import Any

dp: Any = importlib.import_module("opendp.prelude")  # whose names no type checker finds

# "honest-but-curious": OpenDP takes our word for the sensitivity of logsumexp, which `records.py` proves.
dp.enable_features("contrib", "honest-but-curious")

NUMBER = dp.atom_domain(T=float, nan=False), dp.absolute_distance(T=float)
