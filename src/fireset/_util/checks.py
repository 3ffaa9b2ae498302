"""Checks of single arguments. Booleans, which are numbers in Python, are refused."""

from math import isfinite
from numbers import Integral, Real
from typing import Any

import numpy as np

from fireset._util.errors import InputError


def whole_number(name: str, value: Any, least: int) -> int:
    """Return ``value`` as an int of at least ``least``, or raise an InputError."""
    if not is_whole_number(value) or int(value) < least:
        raise InputError(f"{name} must be a whole number of at least {least}, got {value!r}")
    return int(value)


def is_whole_number(value: Any) -> bool:
    """Return whether ``value`` is an integer of Python or NumPy."""
    return isinstance(value, Integral) and not isinstance(value, bool)


def is_number(value: Any) -> bool:
    """Return whether ``value`` is a finite real number."""
    return isinstance(value, Real) and not isinstance(value, bool) and isfinite(value)


def refuse_masked(name: str, values: Any) -> None:
    """Raise an InputError for a masked array with masked entries: converted, it would have the numbers below them."""
    if isinstance(values, np.ma.MaskedArray) and (count := int(np.ma.getmaskarray(values).sum())):
        remedy = f"use numpy.ma.filled({name}, numpy.nan), or leave these rows out"
        raise InputError(f"`{name}` must not be masked, got {count} masked entries; {remedy}")
