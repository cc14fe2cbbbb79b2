"""What tests of several commands share."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from softmaxima.cli import main


@pytest.fixture
def run(capsys: pytest.CaptureFixture) -> Callable[..., tuple[int, str, str]]:
    """(exit code, stdout, stderr) of a command in this process."""

    def run(*arguments: str) -> tuple[int, str, str]:
        code = 0
        try:
            main(arguments)
        except SystemExit as end:
            code = int(end.code or 0)
        return code, *capsys.readouterr()

    return run
