"""The command, and `python -m softmaxima_lab`: Ctrl-C ends it with one line while it is still being loaded too."""

import signal

from softmaxima_lab.interruption import ENDS, heeding


def main() -> None:
    """Run the command line."""
    try:
        with heeding():
            from softmaxima_lab.commands import main as run

            run()
    finally:
        for number in ENDS:  # all is done and said
            signal.signal(number, signal.SIG_IGN)


if __name__ == "__main__":
    main()
