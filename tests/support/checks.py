"""Helpers of many tests: random unit rows, refusals in one line, and whether this is CI."""

import os
import re

import numpy as np
import pytest

from fireset import InputError

CI = os.environ.get("CI") == "true"


def sphere(rng: np.random.Generator, n: int, d: int) -> np.ndarray:
    """n random unit rows."""
    X = rng.standard_normal((n, d))
    X[np.linalg.norm(X, axis=1) == 0] = 1.0
    return X / np.linalg.norm(X, axis=1, keepdims=True)


def refusal(call, *arguments, **options) -> str:
    """The message of the InputError that a call raises, which must be one line."""
    with pytest.raises(InputError) as caught:
        call(*arguments, **options)
    message = str(caught.value)
    assert "\n" not in message
    return message


def facts(message: str) -> list[str]:
    """Return the quoted values, numbers and options of a message, which tests compare instead of its wording."""
    return re.findall(r"'[^']*'|--[\w-]+|-?\d+(?:[.,]\d+)*", message)
