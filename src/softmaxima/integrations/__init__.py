"""softmaxima inside other libraries: one file a library's idea."""

from softmaxima.integrations.classifier import Classifier

__all__ = ["Classifier"]
