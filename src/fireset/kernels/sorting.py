"""Sorting the answers of many queries: short ones by insertion, long ones by their digits."""

import numpy as np

from fireset.kernels.compiling import vectorized


@vectorized
def sort_answers(ids, counts, n_ids):
    """Sort the answer of every query in place; query k has the next ``counts[k]`` ids, all below ``n_ids``.

    Long answers are put in the order of their lower half of bits, and then, stably, of their upper half: O(count + √n)
    for ids below n. Numbers are unsigned throughout, which halves the time: of a signed one that comes from memory,
    numba asks at every use as an index whether it is negative.
    """
    width = 1
    while (np.int64(1) << (2 * width)) < n_ids:
        width += 1
    shift, mask, one = np.uint32(width), np.uint32((1 << width) - 1), np.uint32(1)
    low, high = np.empty(1 << width, np.uint32), np.empty(1 << width, np.uint32)
    longest = np.int64(0)
    for k in range(counts.shape[0]):
        longest = max(longest, counts[k])
    by_low = np.empty(longest, np.uint32)
    numbers = ids.view(np.uint32)
    begin = 0
    for k in range(counts.shape[0]):
        count = counts[k]
        run = numbers[begin : begin + count]
        begin += count
        if count * count <= 8 << width:  # clearing and adding up the digits would cost more
            _sort_by_insertion(run)
            continue
        low[:] = 0
        high[:] = 0
        for p in range(count):
            number = run[p]  # read once: for all the compiler knows, writing to ``low`` may change it
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


@vectorized
def _sort_by_insertion(run):
    for p in range(1, run.shape[0]):
        value = run[p]
        q = p
        while q > 0 and run[q - 1] > value:
            run[q] = run[q - 1]
            q -= 1
        run[q] = value
