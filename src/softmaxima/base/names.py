"""Names that the package does not have, and those of ours that are meant by them."""

from __future__ import annotations

import re
from collections.abc import Iterable

from softmaxima.base.numbers import nearest

# What other libraries call a function or a module of ours, in small letters and without underscores.
ELSEWHERE = {
    "nllloss": ("cross_entropy", "CrossEntropyLoss", ", which takes scores, not their log-probabilities"),
    "budgetbisect": ("budget_sparsemax", "BudgetSparsemax", ""),
}


def unknown_name(module: str, got: str, known: Iterable[str]) -> AttributeError:
    """That a module has no such name, with the one that is meant. Functions are meant by small letters, classes by capitals."""
    bare = got.lower().replace("_", "")
    function, made, why = ELSEWHERE.get(bare, ("", "", ""))
    alike = [each for each in known if each[:1].isupper() == got[:1].isupper() and not each.startswith("_")]
    if function:
        hint = f"; did you mean {made if got[:1].isupper() else function!r}{why}?"
    else:  # the entmax package has approximations by bisection beside what is exact
        hint = nearest(re.sub("_?bisect", "", got, flags=re.IGNORECASE), alike)
    if "bisect" in bare:
        hint += f"{'' if hint.endswith('?') else ';'} softmaxima.compat.entmax has the names of the entmax package"
    return AttributeError(f"module {module!r} has no attribute {got!r}{hint}")
