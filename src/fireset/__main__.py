"""``fireset`` and ``python -m fireset``."""

import sys
import warnings

from fireset.errors import INTERRUPTED, InputError


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
    except KeyboardInterrupt:  # outside of a command; typer gives this exit code itself inside
        sys.exit(INTERRUPTED)


def _show_warning(message, category, filename, lineno, file=None, line=None) -> None:  # noqa: ARG001
    _say(f"warning: {message}")


def _say(text: str) -> None:
    """One line, whatever the names of files and columns hold."""
    print("fireset: " + "\\n".join(text.splitlines()), file=sys.stderr)


if __name__ == "__main__":
    main()
