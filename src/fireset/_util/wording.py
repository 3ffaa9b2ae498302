"""Numbers as every message, summary and report shows them."""

from math import floor, isfinite, log10


def percent(share: float, digits: int = 1) -> str:
    """A share in percent: 0.806 is "80.6 %"."""
    return f"{100 * share:.{digits}f} %"


def significant(value: float, digits: int = 3) -> str:
    """A number with three significant digits: 29,900, 11.8, 0.00123, 1.2e-07."""
    if not isfinite(value) or value == 0:
        return f"{value:g}"
    if not 1e-4 <= abs(value) < 1e15:
        return f"{value:.{digits}g}"
    value = round(value, digits - 1 - floor(log10(abs(value))))
    places = max(0, digits - 1 - floor(log10(abs(value))))
    return f"{value:,.{places}f}"


def counted(count: int, noun: str) -> str:
    """A count with its noun: "1 row", "1,200 rows"."""
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"


def duration(seconds: float) -> str:
    """A duration: 850 ms, 4.2 s, 95 s, 3 min."""
    if seconds >= 120:
        return f"{seconds / 60:.0f} min"
    if seconds >= 9.95:
        return f"{seconds:.0f} s"
    if seconds >= 0.995:
        return f"{seconds:.1f} s"
    return f"{1000 * seconds:.0f} ms" if seconds >= 0.00995 else f"{1000 * seconds:.1f} ms"
