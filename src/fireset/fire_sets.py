"""Fire sets as sparse arrays: S_{i,fire} by row, S̃_{r,fire} by neuron."""

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from scipy.sparse import csr_array


# Peak of ``fire_sets_of_pairs`` and of collecting its arguments: 8 in parts, which the allocator retains, 8 joined,
# 1 for the values and 5 for the result.
BYTES_PER_ACTIVE_PAIR = 22


def fire_sets_by_sample(indptr: np.ndarray, neurons: np.ndarray, width: int) -> "csr_array":
    """Return a boolean (n, m) array from lists by row, ``neurons[indptr[i]:indptr[i+1]]``, in the given order."""
    from scipy.sparse import csr_array

    if indptr[-1] < 2**31:  # otherwise SciPy converts the neurons to 64 bits as well
        indptr = indptr.astype(np.int32)
    return csr_array((np.ones(len(neurons), bool), neurons, indptr), shape=(len(indptr) - 1, width))


def fire_sets_by_neuron(indptr: np.ndarray, samples: np.ndarray, n_samples: int) -> "csr_array":
    """Return a boolean (n, m) array, rows sorted, from lists by neuron, ``samples[indptr[r]:indptr[r+1]]``.

    Cost O(pairs + n).
    """
    return fire_sets_by_sample(*transpose_lists(indptr, samples, n_samples), len(indptr) - 1)


def transpose_lists(indptr: np.ndarray, ids: np.ndarray, n_ids: int) -> tuple[np.ndarray, np.ndarray]:
    """Transpose lists ``ids[indptr[k]:indptr[k+1]]``: return for each id below ``n_ids`` the lists k that contain it.

    Cost O(pairs + n_ids), memory 4 bytes per pair.
    """
    from fireset.kernels.fire_sets import count_ids, transpose

    counts = np.zeros(n_ids, np.int64)
    count_ids(ids, counts)
    offsets = list_offsets(counts)
    found = np.empty(len(ids), np.int32)
    transpose(indptr, ids, offsets[:-1].copy(), found)
    return offsets, found


def fire_sets_of_pairs(samples: np.ndarray, neurons: np.ndarray, shape: tuple[int, int]) -> "csr_array":
    """Return a boolean (n, m) array, rows sorted, from distinct pairs in any order."""
    from scipy.sparse import coo_array

    active = coo_array((np.ones(len(neurons), bool), (samples, neurons)), shape=shape).tocsr()
    active.sort_indices()
    return active


def list_offsets(counts: np.ndarray) -> np.ndarray:
    """Return the offsets of concatenated lists of these lengths: 0, counts[0], counts[0] + counts[1] …"""
    return np.concatenate([[0], np.cumsum(counts, dtype=np.int64)])
