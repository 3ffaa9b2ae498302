"""Telling people how it goes, on standard error."""

import sys


def tell(line: str) -> None:
    """Print a line at once. Where nobody can be told any more, the work goes on untold.

    Standard error may lead to a disk that has filled up, or to a terminal that was closed; hours of training are not to
    end because of a line of progress. (Python treats its own warnings alike.)
    """
    try:
        print(line, file=sys.stderr, flush=True)
    except OSError:
        return
