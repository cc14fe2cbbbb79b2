"""Any argument of what draws negatives, of whatever kind, is taken or answered in one sentence that names who was called."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

import softmaxima as sm

CLASSES, FEATURES = 5, 3
HIDDEN, WEIGHT, TARGET = torch.ones(4, FEATURES), torch.ones(CLASSES, FEATURES), torch.tensor([0, 1, 4, 1])


class Odd:
    """Whose every number and array is wrong."""

    def __array__(self, *_: Any, **__: Any) -> Any:
        raise RuntimeError("no array")


class Quiet:
    """A sampler that says nothing."""

    classes = CLASSES
    log_prob = sample = observe = lambda self, *_, **__: None


ANYTHING: dict[str, Any] = {
    f"{index} {type(value).__name__} {str(value)[:40]!r}": value
    for index, value in enumerate(
        (
            *(None, True, 0, 1, -1, 3, 0.5, -1.0, float("nan"), float("inf"), 1j, "", "mean", "cpu", b"x", len, int, np.float32),
            *((), (1, 2), (-1,), [], [1, 2], [[1.0]], {}, {"a": 1}, {1}, range(2), slice(2), torch.float32, torch.int64),
            *(np.ones(5), np.ones((4, 3)), np.array(3), np.array(["a"]), np.array([None]), np.arange(4), np.int64(3)),
            *(np.bool_(True), np.arange(4, dtype=np.uint8), torch.tensor(3), torch.tensor(1.0), torch.ones(5), torch.ones(0)),
            *(torch.ones(4, 3).half(), torch.ones(4, 0), torch.ones(0, 3), torch.ones(4, 1), torch.ones(1, 5), torch.zeros(5)),
            *(torch.arange(4), torch.arange(4).to(torch.uint8), torch.arange(9), torch.tensor([0, 1, 5, 1]), -torch.arange(4)),
            *(torch.ones(5, dtype=torch.complex64), torch.ones(4, dtype=torch.bool), torch.full((5,), float("nan"))),
            *(torch.empty(5, device="meta"), torch.empty(4, 3, device="meta"), torch.zeros(4, dtype=torch.long, device="meta")),
            *(torch.Generator(), np.random.default_rng(0), torch.nn.Linear(2, 3), sm.UniformSampler(5), sm.UniformSampler(4)),
            *(Odd(), Quiet(), sm.InBatchSampler(5, window=2), iter([1, 2]), torch.ones(5).to_sparse(), -torch.ones(5)),
        )
    )
}


def calls() -> dict[str, tuple[str, Callable[[Any], Any]]]:
    """For each argument: (who is called, the call with a value in the argument's place)."""
    found: dict[str, tuple[str, Callable[[Any], Any]]] = {}
    rows = {"hidden": HIDDEN, "weight": WEIGHT, "target": TARGET, "samples": 3, "sampler": "uniform"}
    pairs = {"queries": HIDDEN, "items": HIDDEN, "item_ids": TARGET}
    layer = {"in_features": FEATURES, "classes": CLASSES, "samples": 3}
    made: list[tuple[Any, dict[str, Any]]] = [
        (sm.sampled_softmax_loss, rows),
        (sm.noise_contrastive_loss, rows),
        (sm.in_batch_softmax_loss, pairs),
        (sm.SampledSoftmax, layer),
        (sm.NoiseContrastive, layer),
        (sm.InBatchSoftmax, {}),
        (sm.UniformSampler, {"classes": CLASSES}),
        (sm.LogUniformSampler, {"classes": CLASSES}),
        (sm.UnigramSampler, {"weights": torch.ones(CLASSES)}),
        (sm.LearnedSampler, {"logits": torch.zeros(CLASSES)}),
        (sm.FrequencySampler, {"classes": CLASSES, "window": 9}),
        (sm.InBatchSampler, {"classes": CLASSES, "window": 9}),
        (sm.StreamingFrequency, {"buckets": 9}),
    ]
    for function, given in made:
        for what in inspect.signature(function).parameters:
            call = lambda v, function=function, given=given, what=what: function(**{**given, what: v})
            found[f"{function.__name__}({what})"] = (function.__name__, call)

    def asked(thing: Any, method: str, given: dict[str, Any]) -> None:
        for what in given:
            call = lambda v, what=what: getattr(thing(), method)(**{**given, what: v})
            found[f"{thing().__class__.__name__}.{method}({what})"] = (type(thing()).__name__, call)

    for function, given in made[3:5]:
        for sampler in ("uniform", "frequency", "in_batch"):
            head = lambda function=function, given=given, sampler=sampler: function(**given, sampler=sampler)
            for what in ("hidden", "target"):
                call = lambda v, head=head, what=what: head()(**{"hidden": HIDDEN, "target": TARGET, what: v})
                found[f"{function.__name__}, {sampler}, ({what})"] = (function.__name__, call)
        asked(head, "log_prob", {"hidden": HIDDEN})
        asked(head, "predict", {"hidden": HIDDEN, "k": 2})
    for frequencies in (None, sm.FrequencySampler(CLASSES), sm.StreamingFrequency(50)):
        module = lambda frequencies=frequencies: sm.InBatchSoftmax(frequencies)
        for what in (*pairs, "log_q"):
            call = lambda v, module=module, what=what: module()(**{**pairs, what: v})
            found[f"InBatchSoftmax, {type(frequencies).__name__}, ({what})"] = ("InBatchSoftmax", call)
    for function, given in made[6:]:
        thing = lambda function=function, given=given: function(**given)
        ids = "ids" if function is sm.StreamingFrequency else "classes"
        asked(thing, "log_prob", {ids: TARGET})
        if function is sm.StreamingFrequency or hasattr(function, "observe"):
            asked(thing, "observe", {"ids" if ids == "ids" else "target": TARGET})
        if ids == "classes" and function is not sm.InBatchSampler:
            asked(thing, "sample", {"shape": 3, "generator": 0})
    asked(lambda: sm.LearnedSampler(CLASSES), "loss", {"target": TARGET})
    return found


CALLS = calls()
OF_ITS_OWN = ("UnigramSampler", "FrequencySampler", "InBatchSampler")  # what is given, or made of it, may say what it refuses


@pytest.mark.parametrize("use", CALLS)
@pytest.mark.filterwarnings("ignore::UserWarning")  # torch's own
def test_any_argument_is_taken_or_answered_in_one_sentence(use: str):
    name, call = CALLS[use]
    wrong = {}
    for said, value in ANYTHING.items():
        try:
            call(value)
        except Exception as error:
            text = str(error).replace(repr(value), "…")  # which may be of several lines
            told = isinstance(error, (TypeError, ValueError, IndexError)) and "\n" not in text
            if not told or not text.startswith(tuple(f"{who}: " for who in (name, *OF_ITS_OWN))):
                wrong[said] = error
    assert wrong == {}
