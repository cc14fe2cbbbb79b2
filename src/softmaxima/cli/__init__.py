"""The command line: `softmaxima compare`, `predict`, `bench` and `lse`, one file each.

torch and the experiments are imported inside the commands, so that help answers at once.
"""

from __future__ import annotations

from collections.abc import Sequence

from cyclopts import App, CycloptsError, UnusedCliTokensError

from softmaxima.cli.bench import bench
from softmaxima.cli.compare import compare
from softmaxima.cli.lse import lse
from softmaxima.cli.predict import predict
from softmaxima.cli.terminal import INTERRUPTED, NOT_WRITTEN, Output, OutputError, fail
from softmaxima.cli.version import version

REPORT_EXTRA = {"sklearn": "scikit-learn", "polars": "polars", "plotly": "plotly", "skops": "skops"}  # module and package

app = App(
    name="softmaxima",
    console=Output(),
    help="Scores into probabilities: softmax, its alternatives, and their losses.",
    version=version,
    help_format="plaintext",
    suppress_keyboard_interrupt=False,
)
for command in (compare, predict, bench, lse):
    app.command(command)


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line."""
    try:
        app(arguments, print_error=False, exit_on_error=False)
    except UnusedCliTokensError as error:
        besides = ", ".join(map(repr, error.unused_tokens or ()))
        fail(
            f"predict takes two files, lse and compare take one file, and bench none; got {besides} besides: leave that out, or "
            "see softmaxima --help"
        )
    except CycloptsError as error:
        fail(f"{str(error).rstrip('.')}; see softmaxima --help")
    except ModuleNotFoundError as error:
        missing = (error.name or "").partition(".")[0]
        if missing not in REPORT_EXTRA:
            raise
        fail(f'this needs {REPORT_EXTRA[missing]}, which is not installed: pip install ".[report]"')
    except OutputError as error:
        fail(f"standard output cannot be written ({error}); free its disk, or write elsewhere", NOT_WRITTEN)
    except KeyboardInterrupt:
        fail("interrupted", INTERRUPTED)
