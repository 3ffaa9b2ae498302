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


def in_order(*parts: str) -> str:
    """A pattern for a message with these names and values in this order, whatever the words between them."""
    return ".*".join(rf"(?<![\w.-]){re.escape(part)}(?![\w-])" for part in parts)


def mentions(message: str, *parts: str) -> bool:
    """Whether a message has these names and values in this order."""
    return re.search(in_order(*parts), message, re.DOTALL) is not None
