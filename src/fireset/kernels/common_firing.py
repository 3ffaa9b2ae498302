"""How many neurons fire for both of two samples: the counts behind H(t), from bits or from lists.

A neuron that fires for k of n samples adds 1 to k² entries. Where k is a few samples, they are gone through. Where it
is a share of all, it is cheaper to keep a bit for every sample and neuron, and to count the bits that two samples have
in common: 64 neurons in an instruction, or 512 with AVX-512.
"""

import numpy as np

from fireset.kernels.compiling import vectorized
from fireset.kernels.masks import count_bits

WORDS_AT_ONCE = 8  # rows of bits are whole multiples of so many words, so that no loop has a rest
_TILE = 32  # samples whose bits stay in the cache
_TOGETHER = 4  # samples that are counted against another one at a time


@vectorized
def pack_bits(indptr, samples, neurons, bits, lo, hi):
    """Bit k of row i of ``bits`` (n, words) becomes 1 where neuron ``neurons[k]`` fires for i, for lo ≤ k < hi.

    Neuron r fires for ``samples[indptr[r]:indptr[r+1]]``, in any order. Ranges that begin at multiples of 64 write to
    different words.
    """
    for k in range(lo, hi):
        r = neurons[k]
        word, bit = np.uint64(k >> 6), np.uint64(1) << np.uint64(k & 63)
        for p in range(indptr[r], indptr[r + 1]):
            bits[np.uint64(samples[p]), word] |= bit


@vectorized
def count_common_bits(bits, table, lo, hi):
    """Add to ``table[i, j]``, lo ≤ i < hi and j ≤ i, how many bits rows i and j have in common.

    Cost n² words / 2 over all rows.
    """
    words = bits.shape[1]
    for first in range(0, hi, _TILE):
        last = min(first + _TILE, hi)
        for i in range(max(lo, first), hi):
            stop = min(last, i + 1)
            j = first
            while j + _TOGETHER <= stop:
                a = b = c = d = np.int64(0)
                for w in range(words):
                    own = bits[i, w]
                    a += count_bits(np.int64(own & bits[j, w]))
                    b += count_bits(np.int64(own & bits[j + 1, w]))
                    c += count_bits(np.int64(own & bits[j + 2, w]))
                    d += count_bits(np.int64(own & bits[j + 3, w]))
                table[i, j] += a
                table[i, j + 1] += b
                table[i, j + 2] += c
                table[i, j + 3] += d
                j += _TOGETHER
            while j < stop:
                a = np.int64(0)
                for w in range(words):
                    a += count_bits(np.int64(bits[i, w] & bits[j, w]))
                table[i, j] += a
                j += 1


@vectorized
def count_common_pairs(indptr, samples, neurons, table, lo, hi):
    """Add to ``table[i, j]``, lo ≤ i < hi and all j, how many of these neurons fire for both i and j.

    Rows are shared out, not neurons: whoever has rows lo … hi−1 writes to nothing else. Cost Σ_r k̃_r² over all rows.
    """
    for r in neurons:
        begin, end = indptr[r], indptr[r + 1]
        for p in range(begin, end):
            i = np.int64(samples[p])
            if lo <= i < hi:
                row = table[i]
                for q in range(begin, end):
                    row[np.uint64(samples[q])] += 1


@vectorized
def count_bits_of_rows(bits, chosen, factor, table, lo, hi):
    """``table[k, j]``, lo ≤ j < hi, becomes ``factor`` times the bits that ``chosen[k]`` and row j have in common."""
    words = bits.shape[1]
    for j in range(lo, hi):
        for k in range(chosen.shape[0]):
            common = np.int64(0)
            for w in range(words):
                common += count_bits(np.int64(bits[j, w] & chosen[k, w]))
            table[k, j] = common * factor
