"""What the examples share: options that are arguments of a function, what is not installed, and Ctrl-C, in one line each."""

from __future__ import annotations

import contextlib
import importlib.util
import re
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from multiprocessing import resource_tracker
from pathlib import Path
from typing import Any, NoReturn

from cyclopts import App, CycloptsError, Parameter

from softmaxima.base.numbers import InputError as InputError
from softmaxima_lab.bench.workers import leave
from softmaxima_lab.commands.terminal import WRONG_USE, Output, converted
from softmaxima_lab.interruption import heeding

NOT_INSTALLED = 1


def run(main: Callable[..., Any], about: str, needs: Sequence[str] = ()) -> None:
    """Calls `main`, whose arguments are the options.

    What is wrong with several of them together `main` says in an InputError.

    about: what --help says before them; of what needs more than softmaxima, with the line that installs it.
    needs: the modules of that, which --help does without.
    """
    script = Path(sys.argv[0])

    def fail(message: str | Exception, code: int) -> NoReturn:
        sys.stderr.write(f"{script.stem}: {' '.join(str(message).split()).rstrip('.')}\n")
        raise SystemExit(code)

    command = f"python examples/{script.name}"
    options = Parameter(converter=converted, negative=())
    app = App(name=command, help=about, help_format="plaintext", version_flags=(), console=Output(), default_parameter=options)
    app.default(main)
    with heeding(script.stem):
        try:
            call, given, _ = app.parse_args(sys.argv[1:], print_error=False, exit_on_error=False)
            for module in needs if call is main else ():
                if importlib.util.find_spec(module) is None:
                    install = re.search(r"pip install '[^']*'", about)
                    fail(f"this needs {module}, which is not installed: {install[0] if install else ''}", NOT_INSTALLED)
            call(*given.args, **given.kwargs)
        except CycloptsError as error:
            fail(f"{str(error).rstrip('.')}; see {command} --help", WRONG_USE)
        except InputError as error:
            fail(error, WRONG_USE)


def checked(help: str, check: Callable[[Any], Any]) -> Parameter:
    """An option of which `check` takes each value, or says in a ValueError what is wrong with it."""

    def check_all(hint: Any, value: Any) -> None:
        for each in value if isinstance(value, tuple) else (value,):
            check(each)

    return Parameter(help=help, validator=check_all)


def number(help: str, valid: Callable[[float], bool], domain: str) -> Parameter:
    """A number that is `valid`."""

    def check(value: float) -> None:
        if not valid(value):
            raise ValueError(f"must be {domain}, got {value}")

    return checked(help, check)


def count(help: str, least: int = 1) -> Parameter:
    """So many, and at least `least`."""
    return number(help, lambda value: value >= least, f"at least {least}")


@contextlib.contextmanager
def unheard() -> Iterator[None]:
    """Ctrl-C is not heard by processes that are begun here: it is for the one that began them, which hears it after."""
    resource_tracker.ensure_running()  # which would let Ctrl-C through again
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def processes(work: Callable[..., None], given: tuple[Any, ...], ranks: int) -> None:
    """Calls work(rank, *given) in a process for each rank, all of which are over when it returns."""
    from torch.multiprocessing.spawn import spawn

    with unheard():
        begun: Any = spawn(_work, (work, given), nprocs=ranks, join=False)
    try:
        while not begun.join():
            pass
    except KeyboardInterrupt:
        for process in begun.processes:
            process.kill()
            process.join()
        raise


def _work(rank: int, work: Callable[..., None], given: tuple[Any, ...]) -> None:
    work(rank, *given)
    leave()
