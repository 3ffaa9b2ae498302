"""Text for people: numbers and durations in messages and reports, and status lines on standard error."""

import re
import sys
from math import floor, isfinite, log10

from fireset._util.errors import InputError

_SECONDS = {"": 1.0, "s": 1.0, "m": 60.0, "h": 3600.0}
_MAX_SECONDS = 2400 * 3600.0


def percent(share: float, digits: int = 1) -> str:
    """Format a share in percent: 0.806 is "80.6 %"."""
    return f"{100 * share:.{digits}f} %"


def significant(value: float) -> str:
    """Format a number with three significant digits: 29,900, 11.8, 0.00123, 1.2e-07."""
    if not isfinite(value) or value == 0:
        return f"{value:g}"
    if not 1e-4 <= abs(value) < 1e15:
        return f"{value:.3g}"
    value = round(value, 2 - floor(log10(abs(value))))
    places = max(0, 2 - floor(log10(abs(value))))
    return f"{value:,.{places}f}"


def counted(count: int, noun: str) -> str:
    """Format a count with its noun: "1 row", "1,200 rows"."""
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"


def duration(seconds: float) -> str:
    """Format a duration: 850 ms, 4.2 s, 95 s, 3 min."""
    if seconds >= 120:
        return f"{seconds / 60:.0f} min"
    if seconds >= 9.95:
        return f"{seconds:.0f} s"
    if seconds >= 0.995:
        return f"{seconds:.1f} s"
    return f"{1000 * seconds:.0f} ms" if seconds >= 0.00995 else f"{1000 * seconds:.1f} ms"


def parse_seconds(name: str, text: str, least: float = 0.0) -> float:
    """Parse a duration such as "90", "90s", "5m" or "2h" of the option ``name`` into seconds.

    It must be positive, at least ``least`` seconds and at most 2400 hours.
    """
    match = re.fullmatch(r"\s*(\d{1,9}(?:\.\d{1,9})?)\s*([smh]?)\s*", text.lower(), re.ASCII)
    seconds = float(match[1]) * _SECONDS[match[2]] if match else 0.0
    if not (0 < seconds <= _MAX_SECONDS and seconds >= least):
        limits = f" from {least:g}s to 2400h" if least else ""
        raise InputError(f"{name} must be a time{limits} such as 90s, 5m or 2h, got {text!r}")
    return seconds


def print_status(line: str) -> None:
    """Print a line to standard error at once; ignore errors.

    Standard error may be a full disk or a closed terminal, and a status line must not end hours of training. (Python
    ignores errors of its own warnings, too.)
    """
    try:
        print(line, file=sys.stderr, flush=True)
    except OSError:
        return
