"""softmaxima inside other libraries: one file a library's idea."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from softmaxima.base.public import listing
from softmaxima.integrations.replacement import AttentionReplacement, replace_attention

if TYPE_CHECKING:
    from softmaxima.integrations.calibrator import TemperatureCalibrator as TemperatureCalibrator
    from softmaxima.integrations.classifier import Classifier as Classifier
else:
    _ON_SCIKIT_LEARN = {"Classifier": "classifier", "TemperatureCalibrator": "calibrator"}

    # On first use, for the rest of the room does without scikit-learn.
    def __getattr__(name: str) -> Any:
        if name not in _ON_SCIKIT_LEARN:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        try:
            return getattr(importlib.import_module(f"{__name__}.{_ON_SCIKIT_LEARN[name]}"), name)
        except ModuleNotFoundError as error:
            if (error.name or "").partition(".")[0] != "sklearn":
                raise
            raise ModuleNotFoundError(
                f'sm.{name} needs scikit-learn, which is not installed: pip install "softmaxima[sklearn]"', name=error.name
            ) from None


__all__ = ["AttentionReplacement", "Classifier", "TemperatureCalibrator", "replace_attention"]
__dir__ = listing(globals())
