"""`python -m softmaxima` is the command."""

from softmaxima.cli import main

if __name__ == "__main__":
    main()
