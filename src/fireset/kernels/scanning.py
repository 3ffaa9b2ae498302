"""Positions of the entries above a threshold in a block H of inner products."""

import numpy as np

from fireset.kernels.allocation import new_array
from fireset.kernels.compiling import vectorized
from fireset.kernels.firing import fused_dot, refine_near_threshold
from fireset.kernels.masks import HAS_COMPRESS, LANES, above_bits, compress_range, count_bits, first_bit

_MIN_DENSITY = 0.003  # of entries above the threshold


@vectorized
def count_above(H, thresholds, counts):
    """Set ``counts[k]`` to the number of entries of row k of H (q, n) above ``thresholds[k]``. Cost O(H.size)."""
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
    """Write column + ``first`` and value of the entries above the threshold of their row, row after row.

    No values are written if ``values`` is empty. Cost O(H.size).
    """
    with_values = values.shape[0] > 0
    # A loop over few bits ends with a misprediction, unless there usually are none.
    compresses = HAS_COMPRESS and _MIN_DENSITY * H.size < columns.shape[0]
    end = 0
    for k in range(H.shape[0]):
        row = H[k]
        threshold = thresholds[k]
        begin = end
        whole = row.shape[0] - row.shape[0] % LANES
        for start in range(0, whole, LANES):
            bits = above_bits(row, start, threshold)
            if compresses and end + LANES <= columns.shape[0]:
                compress_range(first + start, bits, columns, end)
                end += count_bits(bits)
                continue
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
    """Copy the ``counts[k]`` entries of query k in one tile to ``starts[k]`` on in the arrays of all tiles."""
    with_values = all_values.shape[0] > 0
    p = 0
    for k in range(counts.shape[0]):
        for q in range(starts[k], starts[k] + counts[k]):
            all_columns[q] = columns[p]
            if with_values:
                all_values[q] = values[p]
            p += 1


_WIDER = 2.0**-48  # covers the rounding of threshold ± band
_EPS_FLOAT64 = float(np.finfo(np.float64).eps)


@vectorized
def ids_above(h, normal, points, threshold, largest_norm, first):
    """Return i + ``first``, int64, ascending, of the entries of h ≈ points @ normal above the threshold, in one pass.

    Arrays have the same type, in which nothing overflows, nor the square of a norm. ``threshold`` and
    ``largest_norm``, of a point, are float64. In float64 ``deciding_dot`` decides within the band around the threshold,
    in float32 the values of h do.
    """
    lower = upper = h.dtype.type(threshold)
    if h.itemsize == 8:
        squares = h.dtype.type(0)
        for j in range(normal.shape[0]):
            squares += normal[j] * normal[j]
        # Twice the ``dot_slack`` of ``fireset._util.rounding``, because the norm is rounded.
        band = 2 * (normal.shape[0] + 8) * _EPS_FLOAT64 * np.sqrt(squares) * largest_norm + 1e-30
        wide = band + (band + abs(threshold)) * _WIDER
        lower, upper = h.dtype.type(threshold - wide), h.dtype.type(threshold + wide)
    elif np.float64(lower) > threshold:
        lower = upper = h.dtype.type(np.nextafter(lower, h.dtype.type(-np.inf)))
    found = new_array(h.shape[0] + LANES, np.int32)  # pages that are not written take no time
    end = np.int64(0)
    whole = h.shape[0] - h.shape[0] % LANES
    for start in range(0, whole, LANES):
        bits = above_bits(h, start, lower)
        undecided = bits & ~above_bits(h, start, upper)
        while undecided != 0:
            lane = first_bit(undecided)
            if fused_dot(normal, points[start + lane]) <= threshold:
                bits &= ~(np.int64(1) << lane)
            undecided &= undecided - 1
        if HAS_COMPRESS:
            compress_range(start, bits, found, end)
            end += count_bits(bits)
            continue
        while bits != 0:
            found[end] = start + first_bit(bits)
            end += 1
            bits &= bits - 1
    for i in range(whole, h.shape[0]):
        if h[i] > lower and (h[i] > upper or fused_dot(normal, points[i]) > threshold):
            found[end] = i
            end += 1
    ids = new_array(end, np.int64)
    for p in range(end):
        ids[p] = first + found[p]
    return ids


@vectorized
def positions_above(H, normals, points, thresholds, bands, first):
    """Return column + ``first``, int32, of the entries above the threshold in the only row of H ≈ normals @ points.T.

    Within the band around the threshold ``deciding_dot`` decides; with a negative band the values of H decide.
    """
    if bands[0] >= 0:
        refine_near_threshold(H, normals, points, thresholds, bands)
    counts = new_array(1, np.int64)
    count_above(H, thresholds, counts)
    columns = new_array(counts[0], np.int32)
    collect_above(H, thresholds, first, columns, H[0, :0])
    return columns
