"""Locality-sensitive hash codes of vectors, and the union of the buckets of a sample.

Layout. ``codes[t, v]`` is the code of vector v in table t. A table is the list of neurons sorted by code, so that a
bucket is a contiguous range of it, and empty buckets take no space.
"""

from fireset.kernels.compiling import strict


@strict
def sign_codes(projections, tables, codes, lo):
    """SimHash: one bit for each hyperplane, 1 if the projection is positive.

    ``projections`` is (vectors, tables · K); the codes of vector v go to column ``lo + v`` of ``codes``. Cost
    O(projections.size).
    """
    bits = projections.shape[1] // tables
    for v in range(projections.shape[0]):
        for t in range(tables):
            code = 0
            for k in range(bits):
                code = 2 * code + (projections[v, t * bits + k] > 0)
            codes[t, lo + v] = code


@strict
def winner_codes(vectors, windows, codes, lo):
    """Winner-take-all: for each window of coordinates, the position of the largest, the first of equals.

    ``windows`` (tables, K, size) are coordinates to compare; the codes of vector v go to column ``lo + v`` of
    ``codes``. Cost O(vectors · windows.size).
    """
    tables, hashes, size = windows.shape
    for v in range(vectors.shape[0]):
        for t in range(tables):
            code = 0
            for k in range(hashes):
                winner = 0
                for j in range(1, size):
                    if vectors[v, windows[t, k, j]] > vectors[v, windows[t, k, winner]]:
                        winner = j
                code = size * code + winner
            codes[t, lo + v] = code


@strict
def bucket_members(order, begins, ends, lo, hi, last_seen, indptr, members):
    """Compute the union over all tables of the buckets of samples lo … hi−1, each neuron once, in the order found.

    The bucket of sample i in table t is ``order[t, begins[t, i]:ends[t, i]]``. ``last_seen`` (neurons,) is scratch, all
    −1. Fills ``indptr`` (hi − lo + 1) and ``members``, which must be long enough; returns the entries visited.
    Cost O(entries in the buckets).
    """
    used = 0
    visited = 0
    indptr[0] = 0
    for i in range(lo, hi):
        for t in range(order.shape[0]):
            for p in range(begins[t, i], ends[t, i]):
                r = order[t, p]
                visited += 1
                if last_seen[r] != i:
                    last_seen[r] = i
                    members[used] = r
                    used += 1
        indptr[i - lo + 1] = used
    return visited
