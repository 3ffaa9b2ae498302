"""Fixtures of the command line's tests."""

import pytest

from support.command_tables import contents


@pytest.fixture
def refused(run):
    """Run a command that must be refused: exit code 2, one line, nothing else said, nothing left behind or changed."""

    def command(*arguments) -> str:
        before = contents()
        code, out, err = run(*arguments)
        assert code == 2, (out, err)
        assert out == "" or "--json" in arguments
        assert err.startswith("fireset: error: ")
        assert err.endswith("\n")
        assert err.count("\n") == 1
        assert contents() == before
        return err.removeprefix("fireset: error: ").removesuffix("\n")

    return command
