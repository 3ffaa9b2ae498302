"""Sort the ids found by many queries: by insertion, in buckets or by radix sort; merge sorted lists."""

import numpy as np

from fireset.kernels.allocation import new_array
from fireset.kernels.column_sorting import COLUMNS, EMPTY, SLOTS, sort_columns, write_widened
from fireset.kernels.compiling import internal, vectorized
from fireset.kernels.extrema import larger, smaller

_BLOCK = COLUMNS * SLOTS
_MEAN_SLOTS = 5.5  # mean number of ids of a bucket, at most; of random ids one bucket in 30,000 has more than ``SLOTS``
_MAX_BUCKET_BITS = 16
_UPPER_BITS = 0xFFFF0000
_INSERTION_COST = 576  # a list is sorted by insertion up to the square root of this times the blocks of buckets


@vectorized
def sort_answers(ids, counts, n_ids):
    """Sort the ids of every query in place; query k has the next ``counts[k]`` ids, all below ``n_ids``.

    The ids are distributed over buckets, which are equal ranges of ids, and blocks of buckets are sorted at once
    (``fireset.kernels.column_sorting``). If a bucket overflows, because the ids are clustered, the list is radix sorted
    in two passes, by the lower and the upper half of the bits: O(count + √n_ids). Ids are treated as unsigned, which
    halves the time: for a signed index from memory numba checks whether it is negative.
    """
    width = 1
    while (np.int64(1) << (2 * width)) < n_ids:
        width += 1
    low, high = new_array(1 << width, np.uint32), new_array(1 << width, np.uint32)
    longest = np.int64(0)
    for k in range(counts.shape[0]):
        longest = larger(longest, counts[k])
    scratch = new_array(longest, np.uint32)
    blocks = _bucket_blocks(_bucket_bits(longest, n_ids), n_ids)
    slots, rows = new_array(blocks * _BLOCK, np.uint16), new_array(_BLOCK, np.uint16)
    places = new_array(blocks * COLUMNS, np.uint32)
    numbers = ids.view(np.uint32)
    begin = 0
    for k in range(counts.shape[0]):
        count = counts[k]
        run = numbers[begin : begin + count]
        begin += count
        bits = _bucket_bits(count, n_ids)
        if count * count <= _INSERTION_COST * _bucket_blocks(bits, n_ids):
            _sort_by_insertion(run)
            continue
        sorted_until = 1  # ids of equal points, and of a tree that is reported as a whole, are often sorted
        while sorted_until < count and run[sorted_until - 1] < run[sorted_until]:
            sorted_until += 1
        if sorted_until < count and not _sort_by_buckets(run, bits, n_ids, slots, places, rows):
            _sort_by_radix(run, width, low, high, scratch)


@internal
def _bucket_bits(count, n_ids):
    """Return the number of bits in which the ids of a bucket differ: those in excess of 1 to 2 buckets per 5.5 ids."""
    bits = 0
    while bits < _MAX_BUCKET_BITS and (np.int64(1) << bits) * count < _MEAN_SLOTS / 2 * n_ids:
        bits += 1
    return bits


@internal
def _bucket_blocks(bits, n_ids):
    """Return the number of blocks of ``COLUMNS`` buckets."""
    return (n_ids >> bits) // COLUMNS + 1


@internal
def _sort_by_buckets(run, bits, n_ids, slots, places, rows):
    """Sort ids, and return True; if a bucket overflows, leave them unchanged and return False."""
    blocks = _bucket_blocks(bits, n_ids)
    for p in range(blocks * _BLOCK):
        slots[p] = EMPTY
    for block in range(blocks):
        for column in range(COLUMNS):
            places[block * COLUMNS + column] = block * _BLOCK + column
    shift, one_block, one_slot = np.uint32(bits), np.uint32(_BLOCK), np.uint32(COLUMNS)
    for p in range(run.shape[0]):
        number = run[p]
        bucket = number >> shift
        place = places[bucket]
        if place // one_block != bucket // one_slot:  # all slots are filled
            return False
        slots[place] = np.uint16(number)
        places[bucket] = place + one_slot
    end = np.int64(0)
    for block in range(blocks):
        sort_columns(slots, block * _BLOCK, rows)
        for column in range(COLUMNS):
            bucket = block * COLUMNS + column
            upper_bits = np.uint32((bucket << bits) & _UPPER_BITS)
            held = np.int64((places[bucket] - np.uint32(block * _BLOCK + column)) // one_slot)
            if end + SLOTS <= run.shape[0]:
                write_widened(rows, column * SLOTS, upper_bits, run, end)  # what is not held is overwritten later
            else:
                for s in range(held):
                    run[end + s] = upper_bits + np.uint32(rows[column * SLOTS + s])
            end += held
    return True


@internal
def _sort_by_radix(run, width, low, high, by_low):
    """Sort in two passes, by the lower ``width`` bits and by the others; ``by_low`` has space for the run."""
    shift, mask, one = np.uint32(width), np.uint32((1 << width) - 1), np.uint32(1)
    count = run.shape[0]
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
