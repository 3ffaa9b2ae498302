"""``fireset`` and ``python -m fireset``."""

import sys
import warnings

from fireset.errors import InputError

INTERRUPTED = 130  # what shells expect of a program ended by Ctrl-C


def main() -> None:
    """Run the command line. A user's mistake is one line on standard error and exit code 2."""
    from fireset.cli import app

    warnings.showwarning = _show_warning
    try:
        app()
    except InputError as error:
        _say(f"error: {error}")
        sys.exit(2)
    except KeyboardInterrupt:
        _say("interrupted")
        sys.exit(INTERRUPTED)
    except BrokenPipeError:  # the reader of our output has gone, as `head` does; nobody is left to tell
        sys.stderr.close()
        sys.exit(1)


def _show_warning(message, category, filename, lineno, file=None, line=None) -> None:  # noqa: ARG001
    _say(f"warning: {message}")


def _say(text: str) -> None:
    print(f"fireset: {text}", file=sys.stderr)


if __name__ == "__main__":
    main()
