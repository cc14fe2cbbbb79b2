"""`softmaxima compare`: one command for each comparison; without its name, that of a table."""

from __future__ import annotations

from cyclopts import App

from softmaxima_lab.commands.compare_attention import attention
from softmaxima_lab.commands.compare_estimators import estimators
from softmaxima_lab.commands.compare_heads import heads
from softmaxima_lab.commands.compare_table import table

COMPARISONS = {command.__name__: command for command in (table, attention, heads, estimators)}
HELP = """Train every candidate beside softmax, and tell which to take.

softmaxima compare FILE is short for softmaxima compare table FILE."""
app = App(name="compare", help=HELP, version_flags=())
for command in COMPARISONS.values():
    app.command(command)
app.default(table)
