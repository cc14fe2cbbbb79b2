"""softmaxima inside other libraries: one file a library's idea."""

try:
    from softmaxima.integrations.classifier import Classifier
except ModuleNotFoundError as error:
    if (error.name or "").partition(".")[0] != "sklearn":
        raise
    raise ModuleNotFoundError(
        'sm.Classifier needs scikit-learn, which is not installed: pip install "softmaxima[report]"', name=error.name
    ) from None

__all__ = ["Classifier"]
