"""Locality-sensitive hashing in the manner of SLIDE: approximate, for comparison only.

After "SLIDE: In Defense of Smart Algorithms over Hardware Acceleration for Large-Scale Deep Learning Systems" (Chen,
Medini, Farwell, Gobriel, Tai, Shrivastava; MLSys 2020, arXiv 1903.03129). The weights are hashed into L tables by
codes of K hashes each; the candidates of a row are the members of its L buckets, and σ_b is applied to those. An active
pair that shares no bucket is missed: its neuron contributes nothing to the prediction and gets no gradient. ``recall``
measures the fraction of pairs found.

Two vectors at angle θ share a SimHash bucket in one table with probability (1 − θ/π)^K. A neuron with ‖w‖ ≈ √d is
active for angles below arccos(b/√d), which in high dimension is near a right angle: active pairs collide hardly more
often than others, and no choice of K and L gives both a good recall and short lists.

Deviations from SLIDE:

1. Full-batch gradient descent on all candidates: no sampling among them, no limit to a bucket.
2. A rehash hashes all weights. Between two of them the buckets, and so the lists, are unchanged.
3. SimHash has dense Gaussian hyperplanes; two thirds of SLIDE's entries are zero.
4. Winner-take-all is the original one (Yagnik et al. 2011), without densification: inputs here are dense.
"""

import numpy as np

from fireset._util.checks import is_number, whole_number
from fireset._util.errors import InputError
from fireset._util.parallel import parallel_map, ranges
from fireset._util.rounding import deciding_band, row_norms
from fireset.engines.list_engine import ListEngine
from fireset.kernels.hashing import bucket_members, sign_codes, winner_codes

_COORDINATES_PER_WINDOW = 8  # that a winner-take-all hash compares, as in SLIDE
_DEFAULT_HASHES = {"simhash": 8, "winner-take-all": 3}  # K: 256 and 512 buckets
_VECTORS_PER_TILE = 2048
_MAX_CODES = 2**62


class HashingEngine(ListEngine):
    """Find candidates in hash tables. Memory: 8 bytes per candidate pair, 16 · L per neuron.

    Parameters
    ----------
    family : "simhash" or "winner-take-all"
        Signs of random projections, or which of eight random coordinates is the largest.
    hashes : "auto" or int
        K, the number of hashes in a code. A larger number makes buckets smaller: less work, less recall. "auto" is 8
        for SimHash and 3 for winner-take-all.
    tables : int
        L, the number of tables. A larger number finds more pairs: more work, more recall.
    rehash_every : int
        N₀, the number of steps until the first rehash.
    rehash_growth : float
        Factor, at least 1, by which the number of steps grows after each rehash: weights move less and less.
    seed : int
        Seed of hyperplanes and windows.
    """

    name = "hashing"
    summary = "looks neurons up in hash tables, as SLIDE does, and misses some that fire; for comparison"
    exact = False

    def __init__(
        self,
        family: str = "simhash",
        hashes: int | str = "auto",
        tables: int = 50,
        rehash_every: int = 10,
        rehash_growth: float = 1.1,
        seed: int = 0,
    ):
        super().__init__()
        if family not in _DEFAULT_HASHES:
            raise InputError(f"family must be one of {', '.join(_DEFAULT_HASHES)}; got {family!r}")
        outcomes = 2 if family == "simhash" else _COORDINATES_PER_WINDOW
        hashes = _DEFAULT_HASHES[family] if hashes == "auto" else hashes
        whole_number("hashes", hashes, 1)
        if outcomes ** int(hashes) > _MAX_CODES:
            raise InputError(f"hashes must make at most {_MAX_CODES:.0e} codes with {family}, got {hashes}")
        whole_number("tables", tables, 1)
        whole_number("rehash_every", rehash_every, 1)
        if not (is_number(rehash_growth) and float(rehash_growth) >= 1):
            raise InputError(f"rehash_growth must be a number of at least 1, got {rehash_growth!r}")
        self._family, self._hashes, self._tables = family, int(hashes), int(tables)
        self._rehash_every, self._rehash_growth, self._seed = int(rehash_every), float(rehash_growth), seed

    def _first_lists(self) -> None:
        rng = np.random.default_rng(self._seed)
        d = self.network.n_features
        if self._family == "simhash":
            self._planes = rng.standard_normal((self._tables * self._hashes, d)).astype(self.network.dtype)
        else:
            size = min(_COORDINATES_PER_WINDOW, d)
            keys = rng.random((self._tables, self._hashes, d))
            self._windows = np.argsort(keys, axis=2)[:, :, :size].copy()  # a window has distinct coordinates
        self._row_codes = self._hashed(self.X)
        self._radii[:] = np.inf  # no certificates, hence no violations
        self._rehash_interval = float(self._rehash_every)
        self._until_rehash = self._rehash_every
        self._rehash()

    def _update_lists(self) -> None:
        self._until_rehash -= 1
        if self._until_rehash > 0:
            self._set_bands()
            return
        self._rehash_interval *= self._rehash_growth
        self._until_rehash = round(self._rehash_interval)
        self._rehash()

    def _rehash(self) -> None:
        """Hash all weights, and find the candidates of every row."""
        self._set_bands()
        m, n = self.network.width, len(self.X)
        codes = self._hashed(self.network.weights)
        order = np.argsort(codes, axis=1, kind="stable").astype(np.int32)
        begins, ends = (
            np.stack(
                [
                    np.searchsorted(weight_codes[by_code], row_codes, side)
                    for weight_codes, by_code, row_codes in zip(codes, order, self._row_codes, strict=True)
                ]
            )
            for side in ("left", "right")
        )

        def find(span: tuple[int, int]) -> tuple[np.ndarray, np.ndarray, int]:
            indptr = np.empty(span[1] - span[0] + 1, np.int64)
            most = int((ends - begins)[:, slice(*span)].sum(axis=0).clip(max=m).sum())
            members = np.empty(most, np.int32)
            visited = bucket_members(order, begins, ends, *span, np.full(m, -1), indptr, members)
            return indptr, members[: indptr[-1]], visited

        parts = parallel_map(find, ranges(n))
        starts = np.cumsum([0, *(len(members) for _, members, _ in parts)])
        indptr = np.concatenate([[0], *(own[1:] + at for (own, _, _), at in zip(parts, starts, strict=False))])
        ids = np.concatenate([members for _, members, _ in parts])
        self._passes.use_complete_lists(indptr, ids)
        self.work.nodes_visited += sum(visited for _, _, visited in parts)
        self.work.refreshes += m

    def _set_bands(self) -> None:
        network = self.network
        norms = row_norms(network.weights)
        self._bands[:] = deciding_band(network.n_features, network.dtype, norms, self._sample_norm)

    def _hashed(self, vectors: np.ndarray) -> np.ndarray:
        """Return the codes of vectors, (tables, vectors)."""
        codes = np.empty((self._tables, len(vectors)), np.int64)

        def hash_tile(lo: int) -> None:
            tile = vectors[lo : lo + _VECTORS_PER_TILE]
            if self._family == "simhash":
                sign_codes(tile @ self._planes.T, self._tables, codes, lo)
            else:
                winner_codes(tile, self._windows, codes, lo)

        parallel_map(hash_tile, range(0, len(vectors), _VECTORS_PER_TILE), uses_blas=True)
        if self._family == "simhash":
            self.work.inner_products += len(vectors) * len(self._planes)
        return codes

    def _audit_pass(self) -> None:
        """Do nothing: the lists have no certificates. ``recall`` measures what is missed."""
