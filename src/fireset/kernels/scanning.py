"""Reading off a block of inner products which of them lie above a threshold."""

import numpy as np

from fireset.kernels.compiling import vectorized
from fireset.kernels.firing import refine_near_threshold
from fireset.kernels.masks import LANES, above_bits, count_bits, first_bit


@vectorized
def count_above(H, thresholds, counts):
    """``counts[k]`` = how many entries of row k of H lie above ``thresholds[k]``."""
    for k in range(H.shape[0]):
        row = H[k]
        threshold = thresholds[k]
        whole = row.shape[0] - row.shape[0] % LANES
        found = 0
        for start in range(0, whole, LANES):
            found += count_bits(above_bits(row, start, threshold))
        for i in range(whole, row.shape[0]):
            found += row[i] > threshold
        counts[k] = found


@vectorized
def collect_above(H, thresholds, first, columns, values):
    """Write column + ``first`` and value of the entries above each row's threshold, row after row.

    No values are written where ``values`` is empty.
    """
    with_values = values.shape[0] > 0
    end = 0
    for k in range(H.shape[0]):
        row = H[k]
        threshold = thresholds[k]
        begin = end
        whole = row.shape[0] - row.shape[0] % LANES
        for start in range(0, whole, LANES):
            bits = above_bits(row, start, threshold)
            while bits != 0:
                columns[end] = first + start + first_bit(bits)
                end += 1
                bits &= bits - 1
        for i in range(whole, row.shape[0]):
            if row[i] > threshold:
                columns[end] = first + i
                end += 1
        if with_values:
            for p in range(begin, end):
                values[p] = row[columns[p] - first]


@vectorized
def join_tiles(starts, counts, columns, values, all_columns, all_values):
    """Copy the ``counts[k]`` entries that a tile found for query k to ``starts[k]`` on in the arrays of all tiles."""
    with_values = all_values.shape[0] > 0
    p = 0
    for k in range(counts.shape[0]):
        for q in range(starts[k], starts[k] + counts[k]):
            all_columns[q] = columns[p]
            if with_values:
                all_values[q] = values[p]
            p += 1


@vectorized
def positions_above(H, normals, points, thresholds, bands, first):
    """The columns of the one row of ``H ≈ normals @ points.T`` above the threshold, each plus ``first``; int32.

    Within the band around the threshold ``deciding_dot`` decides; if it is negative, what is in H does.
    """
    if bands[0] >= 0:
        refine_near_threshold(H, normals, points, thresholds, bands)
    counts = np.empty(1, np.int64)
    count_above(H, thresholds, counts)
    columns = np.empty(counts[0], np.int32)
    collect_above(H, thresholds, first, columns, H[0, :0])
    return columns
