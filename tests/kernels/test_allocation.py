"""Arrays that kernels allocate."""

import numba
import numpy as np
import pytest

from fireset.kernels.allocation import new_array, zero_array


@numba.njit
def _allocate(rows, columns, like):
    full = zero_array((rows, columns), like)
    full[:, 1:] += like[0]
    ids = new_array(rows, np.int32)
    ids[:] = columns
    return full, ids, zero_array(rows - rows, like.dtype)


@pytest.mark.slow  # compiles; every kernel that allocates is a test as well
def test_shapes_types_and_zeros():
    for dtype in (np.float32, np.float64, np.int64):
        full, ids, empty = _allocate(5, 3, np.full(1, 7, dtype))
        assert (full.dtype, ids.dtype, empty.dtype) == (dtype, np.int32, dtype)
        np.testing.assert_array_equal(full, [[0, 7, 7]] * 5)
        np.testing.assert_array_equal(ids, [3] * 5)
        assert full.flags.c_contiguous
        assert empty.shape == (0,)
