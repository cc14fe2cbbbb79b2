"""What is there only with an extra of the package."""

from __future__ import annotations

import importlib.util


def missing(name: str, module: str, extra: str) -> str | None:
    """What to do where a module is not installed that an extra brings; None where it is."""
    if importlib.util.find_spec(module) is not None:
        return None
    return f"{name}: this needs {module}, which is not installed: pip install 'softmaxima[{extra}]'"
