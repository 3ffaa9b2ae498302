"""Sort the ids found by many queries: short lists by insertion sort, long ones by radix sort; merge sorted lists."""

import numpy as np

from fireset.kernels.allocation import new_array
from fireset.kernels.compiling import internal, vectorized
from fireset.kernels.extrema import larger, smaller


@vectorized
def sort_answers(ids, counts, n_ids):
    """Sort the ids of every query in place; query k has the next ``counts[k]`` ids, all below ``n_ids``.

    Long lists are radix sorted in two passes, by the lower and the upper half of the bits: O(count + √n_ids). Ids are
    treated as unsigned, which halves the time: for a signed index from memory numba checks whether it is negative.
    """
    width = 1
    while (np.int64(1) << (2 * width)) < n_ids:
        width += 1
    shift, mask, one = np.uint32(width), np.uint32((1 << width) - 1), np.uint32(1)
    low, high = new_array(1 << width, np.uint32), new_array(1 << width, np.uint32)
    longest = np.int64(0)
    for k in range(counts.shape[0]):
        longest = larger(longest, counts[k])
    by_low = new_array(longest, np.uint32)
    numbers = ids.view(np.uint32)
    begin = 0
    for k in range(counts.shape[0]):
        count = counts[k]
        run = numbers[begin : begin + count]
        begin += count
        if count * count <= 8 << width:  # clearing and summing the histograms would cost more
            _sort_by_insertion(run)
            continue
        sorted_until = 1  # ids of equal points, and of a tree that is reported as a whole, are often sorted
        while sorted_until < count and run[sorted_until - 1] < run[sorted_until]:
            sorted_until += 1
        if sorted_until == count:
            continue
        low[:] = 0
        high[:] = 0
        for p in range(count):
            number = run[p]  # read once: the compiler must assume that writing to ``low`` changes it
            low[number & mask] += one
            high[number >> shift] += one
        low_place, high_place = np.uint32(0), np.uint32(0)
        for digit in range(low.shape[0]):
            here, low[digit] = low[digit], low_place
            low_place += here
            here, high[digit] = high[digit], high_place
            high_place += here
        for p in range(count):
            number = run[p]
            place = low[number & mask]
            low[number & mask] = place + one
            by_low[place] = number
        for p in range(count):
            number = by_low[p]
            place = high[number >> shift]
            high[number >> shift] = place + one
            run[place] = number


@internal
def _sort_by_insertion(run):
    for p in range(1, run.shape[0]):
        value = run[p]
        q = p
        while q > 0 and run[q - 1] > value:
            run[q] = run[q - 1]
            q -= 1
        run[q] = value


@vectorized
def merge_ascending(left, right, merged):
    """Write the union of two ascending arrays without duplicates to ``merged``, ascending; return its length.

    ``merged`` needs space for both. Cost O(ids).
    """
    p, q, count = 0, 0, 0
    while p < left.shape[0] and q < right.shape[0]:
        a, b = left[p], right[q]
        merged[count] = smaller(a, b)
        p += a <= b
        q += b <= a
        count += 1
    while p < left.shape[0]:
        merged[count] = left[p]
        p += 1
        count += 1
    while q < right.shape[0]:
        merged[count] = right[q]
        q += 1
        count += 1
    return count
