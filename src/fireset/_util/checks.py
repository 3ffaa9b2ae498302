"""Checks of single arguments. ``True`` is a number to Python; nobody who passes it means 1."""

from math import isfinite
from numbers import Integral, Real
from typing import Any

from fireset._util.errors import InputError


def whole_number(name: str, value: Any, least: int) -> int:
    """``value`` as an int of at least ``least``."""
    if not is_whole_number(value) or int(value) < least:
        raise InputError(f"{name} must be a whole number of at least {least}, got {value!r}")
    return int(value)


def is_whole_number(value: Any) -> bool:
    """Whether this is an integer of Python or NumPy."""
    return isinstance(value, Integral) and not isinstance(value, bool)


def is_number(value: Any) -> bool:
    """Whether this is a finite real number."""
    return isinstance(value, Real) and not isinstance(value, bool) and isfinite(value)
