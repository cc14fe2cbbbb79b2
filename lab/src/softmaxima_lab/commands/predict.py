"""`softmaxima predict`: what a model that `softmaxima compare --save` wrote says of the rows of a table."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter
from rich.text import Text

from softmaxima.base.writing import visible_lines
from softmaxima_lab.commands.terminal import (
    NOT_WRITTEN,
    WIDE,
    Output,
    check_file,
    check_writable,
    fail,
    fitting,
    padding,
    plain_table,
    say,
)

if TYPE_CHECKING:
    from softmaxima_lab.compare.model import Predictions

SHOWN = 10  # rows


def predict(
    model: Annotated[Path, Parameter(help="A .skops or .pt that softmaxima compare --save wrote. Nothing in it is run.")],
    table: Annotated[Path, Parameter(help="Rows with the columns that the model learnt from, in any format that compare reads.")],
    /,
    *,
    out: Annotated[
        Path | None, Parameter(help="A CSV to write: row, class, and a probability a class. Without it: the first rows, printed.")
    ] = None,
) -> None:
    """Predict the target of every row of a table, read into memory at once, and the probability of each class.

    Where the table has the target too, accuracy and log loss are printed. Of the whole table that the model learnt from it is said
    that they tell little; a part of it cannot be known, for a model holds no rows.
    """
    check_file(model, " that softmaxima compare --save wrote")
    check_file(table, " of the kinds that softmaxima compare --help names")
    if out is not None:
        check_writable("--out", out)
        if any(out.exists() and out.samefile(other) for other in (model, table)):
            fail(f"--out: {out} is what is read; choose another file")
    from softmaxima_lab.compare.model import load
    from softmaxima_lab.compare.model import predict as predictions_of
    from softmaxima_lab.wording import rows

    predictions = predictions_of(load(model), table)
    say(f"{table.name}: {rows(len(predictions.p))}, predicting {predictions.target!r}")
    for note in predictions.notes:
        say(note)
    if predictions.score is not None:
        score = predictions.score
        say(f"accuracy {100 * score.accuracy:.2f} %, log loss {score.log_loss:.3f} nats, of {rows(predictions.scored)}")
    if out is None:
        show(predictions)
        return
    try:
        predictions.write(out)
    except OSError as error:
        fail(f"--out: cannot write to {out} ({error.strerror}); choose another file", NOT_WRITTEN)
    say(f"written: {out}")


def show(predictions: Predictions) -> None:
    """The first rows."""
    console = Output()
    # widths are those of what is shown
    frame, wide = predictions.shown(visible_lines), console.width >= WIDE
    rows = [[f"{cell:.4f}" if isinstance(cell, float) else str(cell) for cell in row] for row in frame.head(SHOWN).iter_rows()]
    kept = fitting(frame.columns, rows, console.width, padding(wide), range(frame.width)[:1:-1])
    shown = plain_table(list(kept.values()), wide)
    for row in rows:
        shown.add_row(*(Text(row[number]) for number in kept))
    console.print()
    console.print(shown)
    if len(kept) < frame.width:
        console.print()
        say(f"{frame.width - len(kept)} of {len(predictions.classes)} classes do not fit here; --out predictions.csv has all")
    if frame.height > SHOWN:
        console.print()
        say(f"{frame.height - SHOWN} more; --out predictions.csv writes all")
