"""What commands share that train piece after piece: what is done is kept after each, shown at the end, and gone on from."""

from __future__ import annotations

import contextlib
import os
import shlex
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Generic, Protocol, TypeVar

from rich.progress import TextColumn
from rich.text import Text

from softmaxima_lab.commands.terminal import (
    Output,
    about,
    check_writable,
    fail,
    in_the_table_alone,
    keeping,
    progress_bar,
    say,
)
from softmaxima_lab.interruption import heard

NUMBERS = "results.json"  # of the files, which --resume reads


class Partial(Protocol):
    """What is found, of all pieces or of the first ones."""

    @property
    def partial(self) -> bool: ...


F = TypeVar("F", bound=Partial)
P = TypeVar("P")


@dataclass(frozen=True)
class Pieces(Generic[P, F]):
    """An experiment: so many pieces, what trains them, and what they say together."""

    wanted: int
    one: str
    many: str
    trained: Callable[[int, Callable[[int], None]], Iterator[P]]  # from that number on; it calls the function after steps
    steps: Callable[[int], int]  # of training, from that number on
    seconds: Callable[[int], float]  # about what these take
    place: Callable[[int], str]  # what is trained after so many are done
    summary: Callable[[Sequence[P]], F]
    files: Mapping[str, Callable[[F], str]]  # their names, and what is written there


def command_given() -> str:
    """What makes all pieces anew: without --resume, which refuses to go on with other options, and without who trains them."""
    kept, given = [], iter(sys.argv[1:])
    for part in given:
        option, _, value = part.partition("=")
        if option in ("--workers", "--dask") and not value:
            next(given, None)
        elif option not in ("--resume", "--workers", "--dask"):
            kept.append(part)
    return shlex.join(["softmaxima", *kept])


def check_free(out: Path, experiment: str, resumes: bool = True) -> None:
    """End the command where a directory holds what was found before, done or interrupted, which would be lost.

    resumes: whether the experiment goes on from what it has found; one that does not finds it again.
    """
    from softmaxima_lab.compare.record import kept

    if (before := kept(out / NUMBERS)) is None or (not resumes and before == (experiment, False)):
        return
    found, partial = before
    resumed = ("go on with --resume, or " if partial else "show it with --resume, or ") if found == experiment else ""
    holds = f"softmaxima {found} that {'was interrupted' if partial else 'is done'}" if found else f"{NUMBERS} of something else"
    fail(f"--out: {out} holds a {holds}; {resumed}choose another --out")


_claims: list[int] = []  # descriptors of the directory that this command writes to


def claim(out: Path, experiment: str, resume: bool, resumes: bool = True) -> None:
    """Fail where a directory cannot be written, another command writes there, or results would be lost.

    Until this process ends or begins another command the directory is locked, and no file is left of that.
    """
    check_writable("--out", out, is_directory=True)
    while _claims:
        os.close(_claims.pop())
    with contextlib.suppress(ImportError, OSError):  # where there are no such locks, or none of directories
        import fcntl

        _claims.append(os.open(out, os.O_RDONLY))
        try:
            fcntl.flock(_claims[-1], fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            fail(f"--out: another softmaxima command is writing to {out}; wait for its end, or choose another --out")
    if not resume:
        check_free(out, experiment, resumes)


def run(
    pieces: Pieces[P, F], done: list[P], out: Path, show: Callable[[F], None], before: Sequence[str] = (), json: bool = False
) -> F:
    """Tell what is trained on, train what is left, and after each piece write what is known; then show it, or its JSON alone."""
    from softmaxima_lab.pages.columns import write_files

    tell = (lambda line: None) if json else say
    for line in before:
        tell(line)
    found = pieces.summary(done) if done else None
    interrupted, code = "", 0
    saved = len(done)  # of them, in the numbers
    left = pieces.wanted - saved
    try:
        if left:
            seconds = pieces.seconds(len(done))
            others = f", {len(done)} of {pieces.wanted} done before" if done else ""
            what = pieces.one if left == 1 else pieces.many
            tell(f"{about(seconds)}: {left} {what} of {about(seconds / left)}{others}")
        with progress_bar(TextColumn("{task.percentage:.0f} %")) as progress:
            bar = progress.add_task("", total=pieces.steps(len(done)))

            def advanced(steps: int) -> None:
                progress.update(bar, advance=steps, description=pieces.place(len(done)))

            for piece in pieces.trained(len(done), advanced):
                done.append(piece)
                found = pieces.summary(done)
                if found.partial:
                    with contextlib.suppress(OSError):  # a disk that is full now may have room at the end
                        write_files(pieces.files, found, out, [NUMBERS])
                        saved = len(done)
    except KeyboardInterrupt:
        interrupted, code = heard()
    if found is None:
        fail(f"{interrupted} before a {pieces.one} was done; nothing is kept", code)

    def write_all() -> None:
        nonlocal saved
        write_files(pieces.files, found, out, [NUMBERS])
        saved = len(done)
        write_files(pieces.files, found, out, [name for name in pieces.files if name != NUMBERS])

    def what_is_left() -> str:
        if not saved:
            return in_the_table_alone()
        then = "writes the rest" if saved == pieces.wanted else "goes on from there"
        return f"{out / NUMBERS} has {saved} of {pieces.wanted} {pieces.many}, and --resume {then} where there is room"

    with keeping("--out", out, write_all, what_is_left):
        if json:
            Output().print(Text(pieces.files[NUMBERS](found).rstrip()), soft_wrap=True)
        else:
            show(found)
    tell("")
    tell("written: " + ", ".join(str(out / name) for name in pieces.files))
    if interrupted:
        tell(f"{interrupted} after {len(done)} of {pieces.wanted} {pieces.many}; --resume goes on from there")
        raise SystemExit(code)
    return found
