"""The command line: one file a command.

torch and the experiments are imported inside the commands, so that help answers at once.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Sequence
from typing import Any

from cyclopts import App, CycloptsError, Parameter, UnknownCommandError, UnusedCliTokensError

from softmaxima.core.numbers import InputError, nearest
from softmaxima_lab.commands.bench import bench
from softmaxima_lab.commands.calibrate import calibrate
from softmaxima_lab.commands.compare import compare
from softmaxima_lab.commands.compare_attention import compare_attention
from softmaxima_lab.commands.compare_estimators import compare_estimators
from softmaxima_lab.commands.compare_heads import compare_heads
from softmaxima_lab.commands.lse import lse
from softmaxima_lab.commands.predict import predict
from softmaxima_lab.commands.terminal import INTERRUPTED, NOT_WRITTEN, Output, OutputError, converted, fail, naming, short_warnings
from softmaxima_lab.commands.version import version

app = App(
    name="softmaxima",
    console=Output(),
    default_parameter=Parameter(converter=converted),
    help="Scores into probabilities: softmax, its alternatives, and their losses.",
    version_flags=(),
    help_format="plaintext",
    suppress_keyboard_interrupt=False,
)
COMPARISONS = (compare, compare_attention, compare_heads, compare_estimators)
COMMANDS = {command.__name__.replace("_", "-"): command for command in (*COMPARISONS, predict, calibrate, bench, lse)}
for command in COMMANDS.values():
    app.command(command)
app.command(version, name="--version")


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line."""
    given = sys.argv[1:] if arguments is None else arguments
    with short_warnings(), naming(options(given)):
        try:
            # standard input looks like a path, so that all else with a hyphen is an option
            app(["./-" if word == "-" else word for word in given], print_error=False, exit_on_error=False)
        except InputError as error:
            fail(error)
        except CycloptsError as error:
            fail(f"{problem_of(error)}; see {' '.join((app.name[0], *(error.command_chain or ())))} --help")
        except OutputError as error:
            fail(f"standard output cannot be written ({error}); open it, free its disk, or write elsewhere", NOT_WRITTEN)
        except KeyboardInterrupt:
            fail("interrupted", INTERRUPTED)


def options(given: Sequence[str]) -> tuple[str, ...]:
    """The parameters that are options of the command that is called."""
    called = COMMANDS.get(given[0]) if given else None
    places = inspect.signature(called).parameters.values() if called else ()
    return tuple(place.name for place in places if place.kind is place.KEYWORD_ONLY)


def problem_of(error: CycloptsError) -> str:
    """What was wrong with a command, without what is to be done."""
    if isinstance(error, UnusedCliTokensError):
        return besides(error)
    if isinstance(error, UnknownCommandError) and error.unused_tokens:
        given = error.unused_tokens[0]
        return f"there is no command {given!r}; choose among: {', '.join(COMMANDS)}{nearest(given, COMMANDS)}"
    return str(error).rstrip(".")


def besides(error: UnusedCliTokensError) -> str:
    """What a command takes in one place each, and what it was given besides."""
    target: Callable[..., Any] = error.target or app
    places = inspect.signature(target).parameters.values()
    taken = [place.name.upper() for place in places if place.kind is place.POSITIONAL_ONLY]
    given = ", ".join(map(repr, error.unused_tokens or ()))
    return f"{' '.join(error.command_chain or ())} takes {' and '.join(taken) or 'options'} alone, got {given} besides"
