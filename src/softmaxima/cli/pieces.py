"""What commands share that train piece after piece: what is done is kept after each, shown at the end, and gone on from."""

from __future__ import annotations

import contextlib
import shlex
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Generic, Protocol, TypeVar

from rich.progress import TextColumn

from softmaxima.cli.terminal import (
    INTERRUPTED,
    TERMINATED,
    Terminated,
    about,
    fail,
    in_the_table_alone,
    keeping,
    progress_bar,
    say,
    terminable,
)

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
    write: Callable[..., object]  # (what was found, a directory, names of files)
    files: Sequence[str]


def command_given() -> str:
    """What makes all pieces anew: the command without --resume, which refuses to go on with other options."""
    return shlex.join(["softmaxima", *(part for part in sys.argv[1:] if part.partition("=")[0] != "--resume")])


def check_not_interrupted(out: Path, experiment: str) -> None:
    """End the command where a directory holds the pieces of an experiment that was interrupted, which would be lost."""
    from softmaxima.experiments.resumption import interrupted

    if (found := interrupted(out / NUMBERS)) is not None:
        advice = "go on with --resume, or choose another --out" if found == experiment else "choose another --out"
        fail(f"--out: {out} holds a softmaxima {found} that was interrupted; {advice}")


def run(pieces: Pieces[P, F], done: list[P], out: Path, show: Callable[[F], None], tell: Callable[[str], None] = say) -> F:
    """Train what is left, and after each piece write what is known; then show it."""
    found = pieces.summary(done) if done else None
    interrupted: KeyboardInterrupt | None = None
    saved = len(done)  # of them, in the numbers
    left = pieces.wanted - saved
    try:
        with terminable():
            if left:
                seconds = pieces.seconds(len(done))
                before = f", {len(done)} of {pieces.wanted} done before" if done else ""
                what = pieces.one if left == 1 else pieces.many
                tell(f"{about(seconds)}: {left} {what} of {about(seconds / left)}{before}")
            with progress_bar(TextColumn("{task.percentage:.0f} %")) as progress:
                bar = progress.add_task("", total=pieces.steps(len(done)))

                def advanced(steps: int) -> None:
                    progress.update(bar, advance=steps, description=pieces.place(len(done)))

                for piece in pieces.trained(len(done), advanced):
                    done.append(piece)
                    found = pieces.summary(done)
                    if found.partial:
                        with contextlib.suppress(OSError):  # a disk that is full now may have room at the end
                            pieces.write(found, out, [NUMBERS])
                            saved = len(done)
    except KeyboardInterrupt as error:
        interrupted = error
    code = TERMINATED if isinstance(interrupted, Terminated) else INTERRUPTED
    if found is None:
        fail(f"interrupted before a {pieces.one} was done; nothing is kept", code)

    def write_all() -> None:
        nonlocal saved
        pieces.write(found, out, [NUMBERS])
        saved = len(done)
        pieces.write(found, out, [name for name in pieces.files if name != NUMBERS])

    def what_is_left() -> str:
        if not saved:
            return in_the_table_alone()
        then = "writes the rest" if saved == pieces.wanted else "goes on from there"
        return f"{out / NUMBERS} has {saved} of {pieces.wanted} {pieces.many}, and --resume {then} where there is room"

    with keeping("--out", out, write_all, what_is_left):
        show(found)
    tell("\nwritten: " + ", ".join(str(out / name) for name in pieces.files))
    if interrupted is not None:
        tell(f"interrupted after {len(done)} of {pieces.wanted} {pieces.many}; --resume goes on from there")
        raise SystemExit(code)
    return found
