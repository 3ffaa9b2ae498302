"""Who fires for whom, as sparse arrays: S_{i,fire} by sample, S̃_{r,fire} by neuron."""

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from scipy.sparse import csr_array


PAIR_BYTES = 17  # that ``fire_sets_of_pairs`` and whoever collects the pairs for it take for each


def fire_sets_by_sample(indptr: np.ndarray, neurons: np.ndarray, width: int) -> "csr_array":
    """Boolean n × m array whose row i holds ``neurons[indptr[i]:indptr[i+1]]``, in the order given."""
    from scipy.sparse import csr_array

    if indptr[-1] < 2**31:  # else SciPy would turn all neurons into 64 bits as well
        indptr = indptr.astype(np.int32)
    return csr_array((np.ones(len(neurons), bool), neurons, indptr), shape=(len(indptr) - 1, width))


def fire_sets_by_neuron(indptr: np.ndarray, samples: np.ndarray, n_samples: int) -> "csr_array":
    """The same from lists by neuron, ``samples[indptr[r]:indptr[r+1]]``: n × m, rows sorted. Cost O(pairs + n)."""
    return fire_sets_by_sample(*transposed(indptr, samples, n_samples), len(indptr) - 1)


def transposed(indptr: np.ndarray, ids: np.ndarray, n_ids: int) -> tuple[np.ndarray, np.ndarray]:
    """Lists ``ids[indptr[k]:indptr[k+1]]`` the other way round: for each id below ``n_ids`` the k that have it.

    Cost O(pairs + n_ids), memory 4 bytes for each pair.
    """
    from fireset.kernels.fire_sets import count_ids, transpose

    counts = np.zeros(n_ids, np.int64)
    count_ids(ids, counts)
    offsets = list_offsets(counts)
    found = np.empty(len(ids), np.int32)
    transpose(indptr, ids, offsets[:-1].copy(), found)
    return offsets, found


def fire_sets_of_pairs(samples: np.ndarray, neurons: np.ndarray, shape: tuple[int, int]) -> "csr_array":
    """The same from single pairs, in any order, each given once."""
    from scipy.sparse import coo_array

    active = coo_array((np.ones(len(neurons), bool), (samples, neurons)), shape=shape).tocsr()
    active.sort_indices()
    return active


def list_offsets(counts: np.ndarray) -> np.ndarray:
    """Where lists of these lengths begin and end when they follow one another: 0, counts[0], counts[0] + counts[1] …"""
    return np.concatenate([[0], np.cumsum(counts, dtype=np.int64)])
