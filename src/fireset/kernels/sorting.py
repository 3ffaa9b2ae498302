"""Sorting the answers of many queries: short ones by insertion, long ones as rows of a matrix that NumPy sorts."""

import numpy as np

from fireset.kernels.compiling import vectorized

SHORT = 32


@vectorized
def sort_short(ids, counts):
    """Sort every run of ``ids`` of at most ``SHORT`` entries; run k has ``counts[k]``. By insertion, in place."""
    begin = 0
    for k in range(counts.shape[0]):
        end = begin + counts[k]
        if counts[k] <= SHORT:
            for p in range(begin + 1, end):
                value = ids[p]
                q = p
                while q > begin and ids[q - 1] > value:
                    ids[q] = ids[q - 1]
                    q -= 1
                ids[q] = value
        begin = end


@vectorized
def to_rows(ids, ends, counts, which, rows):
    """Copy the runs ``which`` of ``ids``, each of ``counts`` entries up to ``ends``, to rows, padded at the end."""
    for k in range(which.shape[0]):
        begin = ends[which[k]] - counts[which[k]]
        for p in range(counts[which[k]]):
            rows[k, p] = ids[begin + p]
        for p in range(counts[which[k]], rows.shape[1]):
            rows[k, p] = np.iinfo(np.int32).max


@vectorized
def from_rows(ids, ends, counts, which, rows):
    """The reverse of ``to_rows``."""
    for k in range(which.shape[0]):
        begin = ends[which[k]] - counts[which[k]]
        for p in range(counts[which[k]]):
            ids[begin + p] = rows[k, p]
