"""``fireset`` and ``python -m fireset``."""

import codecs
import io
import os
import sys
import warnings
from typing import Any

from fireset._util.errors import INTERRUPTED, WORKER_LOST, InputError, WorkerLostError


def main() -> None:
    """Run the command line. A user's mistake is one line on standard error and exit code 2."""
    for stream in (sys.stdout, sys.stderr):
        _replace_unknown_letters(stream)
    try:
        from fireset.cli import app

        with warnings.catch_warnings():
            warnings.showwarning = _show_warning
            app()
    except InputError as error:
        _say(f"error: {error}")
        sys.exit(2)
    except MemoryError as error:
        _say(f"error: not enough memory ({error}); give fewer rows or a smaller --width")
        sys.exit(2)
    except WorkerLostError as error:
        _say(f"error: {error}; with --checkpoint, run again with --resume")
        sys.exit(WORKER_LOST)
    except KeyboardInterrupt:  # outside of a command; typer gives this exit code itself inside
        sys.exit(INTERRUPTED)


def _replace_unknown_letters(stream: Any) -> None:
    """Have ``?`` written for what the terminal's encoding lacks; results are not lost for a name of a column.

    In UTF-8, which lacks nothing, names of files that are no UTF-8 pass through where Python lets them.
    """
    if not isinstance(stream, io.TextIOWrapper):  # somebody else's, or closed
        return
    if stream.errors != "surrogateescape" or codecs.lookup(stream.encoding).name != "utf-8":
        stream.reconfigure(errors="replace")


def _show_warning(message, category, filename, lineno, file=None, line=None) -> None:  # noqa: ARG001
    if _worker() == 0:  # the others warn of the same
        _say(f"warning: {message}")


def _say(text: str) -> None:
    """One line, whatever the names of files and columns hold; from another worker than the first, with its number."""
    print(f"fireset{f', worker {_worker()}' if _worker() else ''}: " + "\\n".join(text.splitlines()), file=sys.stderr)


def _worker() -> int:
    """The number that torchrun gave this process; 0 without it."""
    number = os.environ.get("RANK", "0")
    return int(number) if number.isdecimal() else 0


if __name__ == "__main__":
    main()
