"""softmaxima: scores into probabilities. Softmax, logsumexp and their alternatives, exact, on NumPy and PyTorch.

>>> import numpy as np
>>> import softmaxima as sm
>>> sm.sparsemax(np.array([1.0, 0.8, 0.1]))
array([0.6, 0.4, 0. ])
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from softmaxima import losses as losses
    from softmaxima import lse as lse
    from softmaxima import maps as maps
    from softmaxima.derivatives import *
    from softmaxima.losses import *
    from softmaxima.lse import *
    from softmaxima.maps import *
else:
    # Names are imported on first use, so that the command line answers without loading torch.
    _ROOMS = ("maps", "lse", "losses", "derivatives")

    def __getattr__(name: str) -> Any:
        if name == "__all__":
            return sorted(n for room in _ROOMS for n in _room(room).__all__ if n != "REGISTRY")
        if name in _ROOMS:
            return _room(name)
        for room in () if name.startswith("_") else _ROOMS:
            if name in _room(room).__all__ and name != "REGISTRY":
                globals()[name] = found = getattr(_room(room), name)
                return found
        raise AttributeError(f"module 'softmaxima' has no attribute {name!r}")

    def __dir__() -> list[str]:
        return [*globals(), *_ROOMS, *__getattr__("__all__")]

    def _room(room: str) -> Any:
        return importlib.import_module(f"softmaxima.{room}")
