"""The command line: one file a command.

torch and the experiments are imported inside the commands, so that help answers at once.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Sequence
from typing import Any

from cyclopts import App, CycloptsError, Parameter, UnknownCommandError, UnusedCliTokensError

from softmaxima.base.numbers import InputError, nearest
from softmaxima_lab.commands.bench import bench
from softmaxima_lab.commands.calibrate import calibrate
from softmaxima_lab.commands.compare import COMPARISONS
from softmaxima_lab.commands.compare import app as compare
from softmaxima_lab.commands.docs import docs
from softmaxima_lab.commands.lse import lse
from softmaxima_lab.commands.predict import predict
from softmaxima_lab.commands.terminal import NOT_WRITTEN, WRONG_RESULT, Output, OutputError, converted, fail, naming, short_warnings
from softmaxima_lab.commands.version import version
from softmaxima_lab.interruption import heeding

app = App(
    name="softmaxima",
    console=Output(),
    default_parameter=Parameter(converter=converted),
    help="Scores into probabilities: softmax, its alternatives, and their losses.",
    version_flags=(),
    help_format="plaintext",
    suppress_keyboard_interrupt=False,
)
COMMANDS = {
    "compare": COMPARISONS["table"],
    **{command.__name__: command for command in (predict, calibrate, bench, lse, docs)},
}
for name, command in COMMANDS.items():
    app.command(compare if name == "compare" else command)
app.command(version, name="--version")


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line."""
    given = sys.argv[1:] if arguments is None else list(arguments)
    with heeding(), short_warnings(), naming(options(given)):
        try:
            # standard input looks like a path, so that all else with a hyphen is an option
            app(["./-" if word == "-" else word for word in given], print_error=False, exit_on_error=False)
        except InputError as error:
            fail(error)
        except CycloptsError as error:
            fail(f"{problem_of(error)}; see {' '.join((app.name[0], *(error.command_chain or ())))} --help")
        except (MemoryError, RuntimeError) as error:
            if not isinstance(error, MemoryError) and "allocat" not in str(error) and "out of memory" not in str(error):
                raise
            fail("memory ran out; free some, or give less at a time", WRONG_RESULT)
        except OutputError as error:
            fail(f"standard output cannot be written ({error}); open it, free its disk, or write elsewhere", NOT_WRITTEN)


def options(given: list[str]) -> tuple[str, ...]:
    """The parameters that are options of the command that is called."""
    called = COMMANDS.get(given[0]) if given else None
    if given[:1] == ["compare"] and len(given) > 1:
        called = COMPARISONS.get(given[1], called)
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
