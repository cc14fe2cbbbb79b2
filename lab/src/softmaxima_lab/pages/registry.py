"""The registry of what the documents show: an entry for each study, comparison and benchmark, which stands beside its tables."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from softmaxima_lab.pages import (
    bench_documents,
    calibration,
    compare_attention,
    compare_estimators,
    compare_heads,
    compare_table,
    confirmation,
    estimators,
    gallery,
    graph_study,
    lse_bounds,
    maps,
    mixtures,
    policies,
    precision,
    private,
    robustness,
    sampling,
    temperature,
    types,
)
from softmaxima_lab.pages.documents import Entry

ENTRIES: Mapping[str, Entry[Any]] = {
    entry.name: entry
    for entry in (
        maps.ENTRY,
        types.ENTRY,
        compare_table.ENTRY,
        confirmation.ENTRY,
        compare_attention.ENTRY,
        compare_heads.ENTRY,
        compare_estimators.ENTRY,
        bench_documents.ENTRY,
        precision.ENTRY,
        lse_bounds.ENTRY,
        *estimators.ENTRIES,
        temperature.ENTRY,
        calibration.ENTRY,
        sampling.ENTRY,
        gallery.ENTRY,
        policies.ENTRY,
        mixtures.ENTRY,
        graph_study.ENTRY,
        robustness.ENTRY,
        *private.ENTRIES,
    )
}
