"""``fireset`` and ``python -m fireset``."""

import os
import sys
import warnings

from fireset._util.errors import INTERRUPTED, NOT_WRITTEN, WORKER_LOST, InputError, OutputError, WorkerLostError
from fireset._util.messages import tell


def main() -> None:
    """Run the command line. A user's mistake is one line on standard error and exit code 2."""
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
    except OutputError as error:
        _say(f"error: {error}")
        sys.exit(NOT_WRITTEN)
    except WorkerLostError as error:
        _say(f"error: {error}; with --checkpoint, run again with --resume")
        sys.exit(WORKER_LOST)
    except KeyboardInterrupt:  # outside of a command; typer gives this exit code itself inside
        sys.exit(INTERRUPTED)


def _show_warning(message, category, filename, lineno, file=None, line=None) -> None:  # noqa: ARG001
    if _worker() == 0:  # the others warn of the same
        _say(f"warning: {message}")


def _say(text: str) -> None:
    """One line, whatever the names of files and columns hold; from another worker than the first, with its number."""
    tell(f"fireset{f', worker {_worker()}' if _worker() else ''}: " + "\\n".join(text.splitlines()))


def _worker() -> int:
    """The number that torchrun gave this process; 0 without it."""
    number = os.environ.get("RANK", "0")
    return int(number) if number.isdigit() else 0


if __name__ == "__main__":
    main()
