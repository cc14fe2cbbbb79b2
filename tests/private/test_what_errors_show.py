"""No score is in an error of the rooms whose scores nobody is to see, whatever comes in their place."""

from __future__ import annotations

import json
import traceback
from typing import Any

import numpy as np
import pytest
import torch

import softmaxima as sm

DIGITS = 7391827364
SECRET = DIGITS / 1e10
NAN = float("nan")
ROW = np.array([0.5, 0.25])
SCORES: Any = sm.privacy.Scores((0, 1), 0.5)
ENTRIES: Any = sm.privacy.Entries((0, 1))
FORMAT = sm.secure.FixedPoint(2, (-1, 1))
TOLD = sm.federated.summarise(ROW, 1)

BAD: dict[str, Any] = {
    "float": SECRET,
    "int": DIGITS,
    "NumPy's float": np.float64(SECRET),
    "string": str(SECRET),
    "bytes": str(SECRET).encode(),
    "list": [SECRET],
    "list of strings": [str(SECRET), 1],
    "tuple": (SECRET, NAN),
    "dict": {SECRET: SECRET},
    "set": {SECRET},
    "none": None,
    "array of no axes": np.array(SECRET),
    "two axes": np.array([[SECRET]]),
    "NaN beside it": np.array([SECRET, NAN]),
    "beyond bounds": np.array([-DIGITS, float(DIGITS)]),
    "ints": np.array([DIGITS]),
    "complex": np.array([SECRET + 1j]),
    "objects": np.array([SECRET, None], object),
    "strings": np.array([str(SECRET)]),
    "masked": np.ma.masked_less(np.array([SECRET, 0.5]), 0.6),
    "tensor of no axes": torch.tensor(SECRET, dtype=torch.float64),
    "tensor of NaN": torch.tensor([SECRET, NAN], dtype=torch.float64),
    "sparse": torch.tensor([SECRET, 0.0]).to_sparse(),
    "meta": torch.zeros(2, device="meta"),
    "summary": TOLD,
    "JSON": TOLD.to_json().replace("0.5", str(SECRET)),
    "infinite": np.array([SECRET, np.inf]),
}
ENTRANCES: dict[str, Any] = {
    "logsumexp": lambda bad: sm.privacy.logsumexp(bad, SCORES, epsilon=1.0),
    "logsumexp of records": lambda bad: sm.privacy.logsumexp(ROW, bad, epsilon=1.0),
    "argmax": lambda bad: sm.privacy.argmax(bad, SCORES, rho=1.0),
    "argmax of records": lambda bad: sm.privacy.argmax(ROW, bad, rho=1.0),
    "sample": lambda bad: sm.privacy.sample(bad, SCORES, temperature=1.0),
    "Budget": lambda bad: sm.privacy.Budget(bad, SCORES, epsilon=1.0),
    "Budget of records": lambda bad: sm.privacy.Budget(ROW, bad, epsilon=1.0),
    "audit": lambda bad: sm.privacy.audit(lambda x: bad, 0, 1, trials=4),
    "Scores": lambda bad: sm.privacy.Scores(bad, 1.0),
    "summarise": lambda bad: sm.federated.summarise(bad, 1),
    "summarise of items": lambda bad: sm.federated.summarise(ROW, 1, items=bad),
    "merge": lambda bad: sm.federated.merge(bad),
    "merge of one": lambda bad: sm.federated.merge([TOLD, bad]),
    "Summary of top": lambda bad: sm.federated.Summary(bad, TOLD.items, 2, None, -9.0, 1.0),
    "Summary of items": lambda bad: sm.federated.Summary(TOLD.top, bad, 2, None, -9.0, 1.0),
    "Summary of state": lambda bad: sm.federated.Summary(TOLD.top, TOLD.items, 2, bad, -9.0, 1.0),
    "from_json": lambda bad: sm.federated.Summary.from_json(bad),
    "private_logsumexp": lambda bad: sm.federated.private_logsumexp(bad, ENTRIES, epsilon=1.0),
    "private_logsumexp of one": lambda bad: sm.federated.private_logsumexp([ROW, bad], ENTRIES, epsilon=1.0),
    "private_logsumexp by the server": lambda bad: sm.federated.private_logsumexp([ROW, bad], ENTRIES, epsilon=1.0, noise="server"),
    "private_logsumexp of records": lambda bad: sm.federated.private_logsumexp([ROW], bad, epsilon=1.0),
    "secure_logsumexp": lambda bad: sm.federated.secure_logsumexp(bad, bounds=(0, 1)),
    "secure_logsumexp of one": lambda bad: sm.federated.secure_logsumexp([ROW, ROW, bad], bounds=(0, 1)),
    "secure_logsumexp of bounds": lambda bad: sm.federated.secure_logsumexp([ROW], bounds=bad),
    "evaluate": lambda bad: sm.secure.evaluate("logsumexp", bad, bounds=(0, 1)),
    "evaluate of one": lambda bad: sm.secure.evaluate("argmax", [ROW, ROW, bad], bounds=(0, 1)),
    "FixedPoint": lambda bad: sm.secure.FixedPoint(2, bad),
    "logsumexp of shares": lambda bad: sm.secure.logsumexp(bad, FORMAT),
    "softmax of a format": lambda bad: sm.secure.softmax(ROW, bad),
}
TAKEN = {  # what is no mistake there, or not secret
    ("merge of one", "summary"), ("from_json", "JSON"), ("Summary of state", "none"), ("audit", "float"), ("audit", "int"),
    ("audit", "NumPy's float"), ("audit", "array of no axes"), ("summarise", "beyond bounds"), ("summarise of items", "none"),
    ("summarise of items", "beyond bounds"), ("Summary of items", "list"), ("Summary of items", "ints"),
    ("Summary of items", "strings"), ("Scores", "tuple"), ("FixedPoint", "tuple"), ("secure_logsumexp of bounds", "tuple"),
}  # fmt: skip


@pytest.mark.parametrize("entrance", ENTRANCES)
def test_no_error_shows_a_score(entrance: str):
    name = entrance.split(" of ")[0].split(" by ")[0]
    for kind, bad in BAD.items():
        if (entrance, kind) in TAKEN:
            continue
        with pytest.raises((TypeError, ValueError)) as caught:
            ENTRANCES[entrance](bad)
        said = str(caught.value)
        assert said.startswith(f"{name}: "), (kind, said)
        assert "\n" not in said
        assert "where=" not in said, "no entrance here has it"
        shown = "".join(traceback.format_exception(caught.value))
        assert str(DIGITS)[:6] not in shown, (kind, shown)


def test_a_summary_that_is_refused_is_not_shown():
    content = json.loads(sm.federated.summarise(np.array([SECRET, 0.1]), 2).to_json())
    for what, value in {"n": 0, "floor": 9.0, "temperature": 0, "state": [1], "items": [1], "top": [0.1, SECRET]}.items():
        with pytest.raises((TypeError, ValueError)) as caught:
            sm.federated.Summary.from_json(json.dumps(content | {what: value}))
        assert str(DIGITS)[:6] not in "".join(traceback.format_exception(caught.value))


NOTHING: Any = None
WORD: Any = "1"
E: Any = sm.privacy.Entries((0, 1), "add-remove", 2)
NAMED: list[tuple[Any, str]] = [
    (lambda: sm.federated.private_logsumexp([ROW], ENTRIES, epsilon=1e-310), "private_logsumexp: no noise that float64 holds"),
    (
        lambda: sm.federated.private_logsumexp([ROW], ENTRIES, epsilon=NOTHING),
        "private_logsumexp: epsilon must be a positive finite",
    ),
    (lambda: sm.federated.private_logsumexp([ROW], SCORES, epsilon=1), "private_logsumexp: records must be sm.privacy.Entries"),
    (lambda: sm.privacy.Budget(ROW, SCORES, rho=1).argmax(-1), "argmax: amount must be a positive finite number, got -1"),
    (lambda: sm.privacy.Budget(ROW, SCORES, rho=1).logsumexp(WORD), "logsumexp: amount must be a positive finite number, got the"),
    (lambda: sm.federated.secure_logsumexp([ROW], bounds=(0, 2), bits=3), "secure_logsumexp: bits must be"),
    (lambda: sm.secure.evaluate("argmax", [ROW], bounds=(0, 2), bits=3), "evaluate: bits must be"),
    *(
        (
            lambda rows=rows, noise=noise: sm.federated.private_logsumexp(rows, E, epsilon=1, noise=noise),
            f"private_logsumexp: client 1: scores must {said}",
        )
        for noise in ("client", "server")
        for rows, said in [
            ([ROW, ROW[:1]], "be at least the declared 2, and are fewer"),
            ([ROW, ROW[:0]], "be one row"),
            ([ROW, ROW * 9], "lie in the declared bounds"),
        ]
    ),
]


@pytest.mark.parametrize(("call", "said"), NAMED, ids=[said for _, said in NAMED])
def test_errors_begin_with_what_was_called_and_who_is_refused(call: Any, said: str):
    with pytest.raises((TypeError, ValueError)) as caught:
        call()
    assert str(caught.value).startswith(said)
