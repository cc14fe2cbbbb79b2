"""The command, and `python -m softmaxima_lab`: Ctrl-C ends it with one line while it is still being loaded too."""

import sys


def main() -> None:
    """Run the command line."""
    try:
        from softmaxima_lab.commands import main as run

        run()
    except KeyboardInterrupt:
        sys.stderr.write("softmaxima: interrupted\n")
        raise SystemExit(130) from None


if __name__ == "__main__":
    main()
