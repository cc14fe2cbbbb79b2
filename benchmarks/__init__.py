"""Measurements that want a machine of their own, run from a checkout; the JSON files beside them are results."""

import sys
from importlib.util import find_spec
from pathlib import Path

if find_spec("softmaxima") is None:
    sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "src"))
