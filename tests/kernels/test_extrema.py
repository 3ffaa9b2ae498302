"""The smaller and the larger of two numbers in kernels, against Python."""

from itertools import product

import numpy as np
import pytest

from fireset.kernels.compiling import strict
from fireset.kernels.extrema import larger, smaller


@strict
def _smaller(a, b):
    return smaller(a, b)


@strict
def _larger(a, b):
    return larger(a, b)


@pytest.mark.parametrize("kind", [np.int64, np.int32, np.uint64, np.float32, np.float64])
def test_equal_to_min_and_max_of_python(kind):
    numbers = [0, 1, 2, 5] if kind is np.uint64 else [-3, 0, 1, 2, 5]
    if issubclass(kind, np.floating):
        numbers += [np.nan, np.inf, -np.inf]
    for a, b in product(map(kind, numbers), repeat=2):
        np.testing.assert_equal(_smaller(a, b), min(a, b))
        np.testing.assert_equal(_larger(a, b), max(a, b))


def test_numbers_of_two_types():
    assert _smaller(2, 1.5) == 1.5
    assert _larger(np.int32(-1), 2**40) == 2**40
