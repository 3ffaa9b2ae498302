"""Lists by sample turned into lists by neuron, and back: who fires for whom, read the other way."""

from fireset.kernels.compiling import vectorized


@vectorized
def count_ids(ids, counts):
    """Add up how often each id occurs."""
    for p in range(ids.shape[0]):
        counts[ids[p]] += 1


@vectorized
def transpose(indptr, ids, places, out):
    """List k, ``ids[indptr[k]:indptr[k+1]]``, is written as k to the next of the ``places`` of each of its ids."""
    for k in range(indptr.shape[0] - 1):
        for p in range(indptr[k], indptr[k + 1]):
            place = places[ids[p]]
            out[place] = k
            places[ids[p]] = place + 1
