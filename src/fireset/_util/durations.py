"""Times as people write them: 90, 90s, 5m, 2h."""

import re

from fireset._util.errors import InputError

_UNITS = {"": 1.0, "s": 1.0, "m": 60.0, "h": 3600.0}
_LONGEST = 2400 * 3600.0


def parse_seconds(name: str, text: str, least: float = 0.0) -> float:
    """Seconds from the user's words for the option ``name``; ``least`` is refused if it is 0, and less always."""
    spelled = re.fullmatch(r"\s*(\d{1,9}(?:\.\d{1,9})?)\s*([smh]?)\s*", text.lower(), re.ASCII)
    seconds = float(spelled[1]) * _UNITS[spelled[2]] if spelled else 0.0
    if not (0 < seconds <= _LONGEST and seconds >= least):
        limits = f" from {least:g}s to 2400h" if least else ""
        raise InputError(f"{name} must be a time{limits} such as 90s, 5m or 2h, got {text!r}")
    return seconds
