"""``fireset`` and ``python -m fireset``."""

import codecs
import io
import json
import os
import sys
import warnings
from typing import Any, NoReturn

from fireset._util.errors import INTERRUPTED, NOT_WRITTEN, WORKER_LOST, InputError, OutputError, WorkerLostError
from fireset._util.messages import tell

_NOTHING_KEPT = "interrupted before there was anything to keep"


def main() -> None:
    """Run the command line. A user's mistake is one line on standard error and exit code 2."""
    for stream in (sys.stdout, sys.stderr):
        _replace_unknown_letters(stream)
    try:
        _run()
    except OSError as error:
        if error.filename is not None:  # a file's, and whoever reads or writes one has words for it
            raise
        _give_up_output()
        _say(f"error: standard output cannot be written: {error.strerror}")
        sys.exit(NOT_WRITTEN)


def _run() -> None:
    try:
        from fireset.cli import app

        with warnings.catch_warnings():
            warnings.showwarning = _show_warning
            app()
    except InputError as error:
        _end(str(error), 2)
    except MemoryError as error:
        _end(f"not enough memory ({error}); give fewer rows or a smaller --width", 2)
    except OutputError as error:  # the summary, as JSON where asked for, has said so, too
        _say(f"error: {error}")
        sys.exit(NOT_WRITTEN)
    except WorkerLostError as error:
        _end(f"{error}; with --checkpoint, run again with --resume", WORKER_LOST)
    except KeyboardInterrupt:
        _end(_NOTHING_KEPT, INTERRUPTED)
    except SystemExit as end:
        # Inside a command typer turns Ctrl-C into this exit code, without a word; training that was interrupted, and
        # has kept its network, ends with the same code, and has said so.
        if end.code == INTERRUPTED and isinstance(getattr(end.__context__, "__cause__", None), KeyboardInterrupt):
            _end(_NOTHING_KEPT, INTERRUPTED)
        raise


def _end(problem: str, code: int) -> NoReturn:
    """Say what was wrong, on standard error and, for programs that asked for JSON, as an object where they look."""
    _say(f"error: {problem}")
    if "--json" in sys.argv and _worker() == 0:
        print(json.dumps({"error": problem, "exit_code": code}), flush=True)
    sys.exit(code)


def _give_up_output() -> None:
    """Nothing more to standard output, where the interpreter would try once more at its end."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


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
    tell(f"fireset{f', worker {_worker()}' if _worker() else ''}: " + "\\n".join(text.splitlines()))


def _worker() -> int:
    """The number that torchrun gave this process; 0 without it."""
    number = os.environ.get("RANK", "0")
    return int(number) if number.isdecimal() else 0


if __name__ == "__main__":
    main()
