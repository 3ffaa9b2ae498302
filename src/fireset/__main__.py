"""``fireset`` and ``python -m fireset``."""

import codecs
import errno
import io
import json
import os
import sys
import warnings
from typing import Any, NoReturn

from fireset._util.errors import (
    BROKEN_PIPE,
    INTERNAL,
    INTERRUPTED,
    NOT_WRITTEN,
    WORKER_LOST,
    WRONG_INPUT,
    InputError,
    OutputError,
    WorkerLostError,
)
from fireset._util.text import print_status

_NOTHING_KEPT = "interrupted before there was anything to keep"
_WORKAROUNDS = {
    "train": "another --solver, --engine or --dtype often avoids it",
    "compare": "fewer --engines, or another --width, often avoid it",
}


def main() -> None:
    """Run the command line. Every failure is one line on standard error and one of the documented exit codes."""
    _replace_closed_streams()
    _buffer_output()
    for stream in (sys.stdout, sys.stderr):
        _replace_unknown_letters(stream)
    try:
        _run()
    except SystemExit as end:
        if end.code == INTERRUPTED and isinstance(_cause(end), KeyboardInterrupt):
            # typer turns Ctrl-C inside a command into this exit code. Training that was interrupted ends with the same
            # code, after it has kept its network and said so.
            _end(_NOTHING_KEPT, INTERRUPTED)
        if end.code == 1 and _is_broken_pipe(end.__context__):  # handled by typer
            _end_without_output(BROKEN_PIPE)
        raise
    except KeyboardInterrupt:
        _end(_NOTHING_KEPT, INTERRUPTED)
    except InputError as error:
        _end(str(error), WRONG_INPUT)
    except MemoryError as error:
        _end(f"not enough memory ({error}); give fewer rows or a smaller --width", WRONG_INPUT)
    except ImportError as error:
        if error.name != "fireset.kernels":  # whose message says why kernels cannot be compiled
            _end_on_exception(error)
        _end(str(error), WRONG_INPUT)
    except OutputError as error:  # the summary, as JSON with --json, says so as well
        _say(f"error: {error}")
        sys.exit(NOT_WRITTEN)
    except WorkerLostError as error:
        _end(f"{error}; with --checkpoint, run again with --resume", WORKER_LOST)
    except OSError as error:
        if error.filename is not None:
            _end(f"cannot use {error.filename}: {error.strerror}", WRONG_INPUT)
        if _is_broken_pipe(error):
            _end_without_output(BROKEN_PIPE)
        _say(f"error: standard output cannot be written: {error.strerror}")
        _end_without_output(NOT_WRITTEN)
    except BaseException as error:  # extensions written in Rust raise exceptions that are no Exception
        _end_on_exception(error)


def _run() -> None:
    from fireset.cli import app

    with warnings.catch_warnings():
        warnings.showwarning = _show_warning
        try:
            app()
        except SystemExit as end:
            if not _is_broken_pipe(end.__context__):
                sys.stdout.flush()  # here, where a failure is handled, not at the end of the interpreter
            raise


def _end(problem: str, code: int, **more: str) -> NoReturn:
    """Exit with one line on standard error and, with ``--json``, an object on standard output."""
    _say(f"error: {problem}")
    if "--json" in sys.argv and _worker() == 0:
        try:
            print(json.dumps({"error": problem, "exit_code": code, **more}), flush=True)
        except OSError:
            _end_without_output(code)
    sys.exit(code)


def _end_on_exception(error: BaseException) -> NoReturn:
    """Exit because of an exception that nothing else handles, with its traceback in a log file."""
    from fireset._util.crash_log import raised_at, write_crash_log

    log = write_crash_log(error, sys.argv[1:])
    what = " ".join(f"{type(error).__name__}: {error}".split()).rstrip(": ")
    command = next((word for word in sys.argv[1:] if not word.startswith("-")), "")
    steps = [
        f"an error in fireset itself ({what})",
        f"as a workaround, {_WORKAROUNDS[command]}" if command in _WORKAROUNDS else "",
        f"please report it, with the log {log}" if log else f"please report it; it was raised at {raised_at(error)}",
    ]
    _end("; ".join(filter(None, steps)), INTERNAL, **({"log": str(log)} if log else {}))


def _end_without_output(code: int) -> NoReturn:
    """Exit without the last attempt to write standard output that the interpreter makes at its end."""
    try:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except (OSError, ValueError):  # a stream without a descriptor
        sys.stdout = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115 - used until the interpreter ends
    sys.exit(code)


def _cause(end: BaseException) -> BaseException | None:
    return getattr(end.__context__, "__cause__", None)


def _is_broken_pipe(error: BaseException | None) -> bool:
    return isinstance(error, OSError) and error.filename is None and error.errno == errno.EPIPE


class _ClosedOutput(io.TextIOBase):
    """Standard output that was closed before the program began: every write fails as it does in other programs."""

    encoding = "utf-8"

    def writable(self) -> bool:
        return True

    def write(self, _: str, /) -> int:
        raise OSError(errno.EBADF, os.strerror(errno.EBADF))


def _replace_closed_streams() -> None:
    """Occupy the descriptors of closed standard streams, which would otherwise be given to the next file opened.

    Python has None for a closed stream, and ``print(..., file=None)`` writes to standard output.
    """
    for descriptor in (0, 1, 2):
        try:
            os.fstat(descriptor)
        except OSError:  # the lowest free descriptor is this one
            os.open(os.devnull, os.O_RDWR)
    if sys.stdout is None:
        sys.stdout = _ClosedOutput()
    if sys.stderr is None:
        sys.stderr = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115 - used until the interpreter ends


def _buffer_output() -> None:
    """Put a buffer behind standard output where Python has none (``python -u``, PYTHONUNBUFFERED).

    Without one the interpreter writes a text once and ignores how much of it was taken: a disk that fills up, or a
    reader that goes away, would cut off the output without an error.
    """
    stream = sys.stdout
    if not isinstance(stream, io.TextIOWrapper) or not isinstance(stream.buffer, io.RawIOBase):
        return
    encoding, errors = stream.encoding, stream.errors
    raw: Any = stream.detach()
    sys.stdout = io.TextIOWrapper(io.BufferedWriter(raw), encoding, errors, write_through=True)


def _replace_unknown_letters(stream: Any) -> None:
    """Have ``?`` written for what the terminal's encoding lacks; results are not lost for a name of a column.

    In UTF-8, which lacks nothing, names of files that are no UTF-8 pass through where Python lets them.
    """
    if not isinstance(stream, io.TextIOWrapper):  # replaced by the caller, or closed
        return
    if stream.errors != "surrogateescape" or codecs.lookup(stream.encoding).name != "utf-8":
        stream.reconfigure(errors="replace")


def _show_warning(message, category, filename, lineno, file=None, line=None) -> None:  # noqa: ARG001
    if _worker() == 0:  # the others warn of the same
        _say(f"warning: {message}")


def _say(text: str) -> None:
    """One line, whatever the names of files and columns hold; from another worker than the first, with its number."""
    print_status(f"fireset{f', worker {_worker()}' if _worker() else ''}: " + "\\n".join(text.splitlines()))


def _worker() -> int:
    """The number that torchrun gave this process; 0 without it."""
    number = os.environ.get("RANK", "0")
    return int(number) if number.isdecimal() else 0


if __name__ == "__main__":
    main()
