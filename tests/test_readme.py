"""The README's examples run as they stand, one after the other."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch

README = (Path(__file__).parent.parent / "README.md").read_text()


def test_python_examples_run():
    namespace: dict[str, object] = {}
    blocks = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
    assert len(blocks) >= 4
    for block in blocks:
        exec(block, namespace)
    weights = namespace["weights"]
    assert isinstance(weights, torch.Tensor)
    torch.testing.assert_close(weights.sum(-1), torch.ones(2, 8, 10))


@pytest.mark.parametrize("path", re.findall(r"\]\(((?!http)[^)]+)\)", README))
def test_links_lead_somewhere(path: str):
    assert (Path(__file__).parent.parent / path).exists()
