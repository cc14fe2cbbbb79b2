"""softmaxima inside other libraries: one file a library's idea."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from softmaxima.integrations.replacement import AttentionReplacement, replace_attention

if TYPE_CHECKING:
    from softmaxima.integrations.classifier import Classifier as Classifier
else:
    # On first use, for the rest of the room does without scikit-learn.
    def __getattr__(name: str) -> Any:
        if name != "Classifier":
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        try:
            from softmaxima.integrations.classifier import Classifier
        except ModuleNotFoundError as error:
            if (error.name or "").partition(".")[0] != "sklearn":
                raise
            raise ModuleNotFoundError(
                'sm.Classifier needs scikit-learn, which is not installed: pip install "softmaxima[report]"', name=error.name
            ) from None
        return Classifier


__all__ = ["AttentionReplacement", "Classifier", "replace_attention"]
