"""References to arrays in functions that only kernels call: counted where they are made, and nowhere else."""

import sys

import numba
import numpy as np
import pytest
from numba.core.runtime import _nrt_python  # pyright: ignore[reportAttributeAccessIssue] - compiled
from numba.core.runtime.nrt import rtsys

from fireset.kernels import compiling
from fireset.kernels.allocation import zero_array


@pytest.fixture
def functions(monkeypatch):
    """Functions of each kind, and which of them count references, filled in when they are compiled."""
    counts: dict[str, bool] = {}
    decide = compiling._makes_references

    def record(state):
        counts[state.func_id.func_name] = decide(state)
        return counts[state.func_id.func_name]

    monkeypatch.setattr(compiling, "_makes_references", record)

    @compiling.internal
    def borrow(pair, r):
        rows, other = pair
        row, both, total = rows[r], (rows, other), 0.0
        for j in range(row.shape[0]):
            total += row[j] * both[1][j]
        return total

    @compiling.inlined
    def view(rows, r):
        return rows[r]

    @compiling.internal
    def use_view(rows, r):
        return view(rows, r)[0]

    @compiling.internal
    def allocate(rows, r):
        return zero_array(rows.shape[1], rows)[r - r] + rows[r, 0]

    @compiling.internal
    def copy(rows, r):
        rows[r] = rows[r - r]
        return rows[r, 0]

    @numba.njit
    def kernel(rows, other):
        total = 0.0
        for r in range(rows.shape[0]):
            total += borrow((rows, other), r) + use_view(rows, r) + allocate(rows, r) + copy(rows, r)
        return total

    return kernel, counts


def test_only_functions_that_make_references_count_them(functions):
    kernel, counts = functions
    rows, other = np.ones((50, 3)), np.arange(3.0)
    assert kernel(rows, other) == 50 * (3.0 + 1.0 + 1.0 + 1.0)
    assert counts == {"borrow": False, "view": True, "use_view": True, "allocate": True, "copy": True}


def test_no_reference_is_lost_or_kept(functions, request):
    kernel, _ = functions
    rows, other = np.ones((50, 3)), np.arange(3.0)
    kernel(rows, other)
    _nrt_python.memsys_enable_stats()
    request.addfinalizer(_nrt_python.memsys_disable_stats)
    references, stats = (sys.getrefcount(rows), sys.getrefcount(other)), rtsys.get_allocation_stats()
    for _ in range(3):
        kernel(rows, other)
    after = rtsys.get_allocation_stats()
    assert (sys.getrefcount(rows), sys.getrefcount(other)) == references
    assert after.alloc - stats.alloc == after.free - stats.free >= 150
    assert after.mi_alloc - stats.mi_alloc == after.mi_free - stats.mi_free
