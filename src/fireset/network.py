"""The network 2NN(m, b) of the paper's Definition "prediction function and loss function"."""

import os
from collections.abc import Iterator
from math import isfinite, log, sqrt
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from fireset._util.aligned import aligned_empty
from fireset._util.checks import is_number, refuse_masked, whole_number
from fireset._util.errors import InputError
from fireset._util.files import read_model, write_model, write_target
from fireset._util.gaussian import upper_tail
from fireset._util.parallel import one_blas_thread, parallel_map, ranges
from fireset._util.rounding import deciding_band, row_norms
from fireset._util.shard_files import joined_shards, own_shards, remove_shards
from fireset.fire_sets import fire_sets_of_pairs
from fireset.hsr import build
from fireset.hsr.cost import pays_to_search
from fireset.initialization import copy_signs, draw_output_weights, draw_weights
from fireset.sparse_rows import Rows, SparseRows, first_nonfinite, is_sparse, kernel_rows

if TYPE_CHECKING:
    from scipy.sparse import csr_array

TILE_PAIRS = 1 << 18  # of pre-activations: 1 MB in float32, which an L2 cache holds
_MAX_ROWS_PER_TILE = 512
MAX_ROWS_AT_ONCE = 1 << 20  # of a forward pass, whose threads each have an array of the outputs
_MAX_UNTILED_PAIRS = 1 << 17  # up to which a prediction is one matrix product
_MAX_THRESHOLD = 1e150
_MAX_OUTPUT_SCALE = 1e12  # beyond it float64 weights do not resolve the steps of training
_MAX_WIDTH = 2**31 - 1  # lists of neurons are int32


class Tile(NamedTuple):
    """``activations[r − neurons.start, i − samples.start] = σ_b(⟨w_r, x_i⟩)``; positive exactly for active pairs."""

    neurons: slice
    samples: slice
    activations: np.ndarray


def check_dtype(dtype) -> Any:
    """Return ``dtype`` as a NumPy type, or raise InputError if it is neither float32 nor float64."""
    try:
        found = np.dtype(dtype)
    except (TypeError, ValueError):  # NumPy raises ValueError for "1_000"
        found = None
    if found is None or found not in (np.float32, np.float64):
        raise InputError(f"dtype must be 'float32' or 'float64', got {dtype!r}")
    return found


class ShiftedReLUNetwork:
    """f(x) = (κ/√m) Σ_r a_r σ_b(⟨w_r, x⟩), with σ_b(z) = max(z − b, 0), for one or several outputs.

    Attributes
    ----------
    weights : (m, d) array
        w_r, trained in place.
    output_weights : (m, c) array
        a_r, one for each neuron and output: ±1, or real numbers once the output weights are trained.
    threshold : float
        b. Neuron r *fires* for x when ⟨w_r, x⟩ > b. Representable in the weights' precision.
    output_scale : float
        κ; 1 in the paper. Training moves the weights by 1/κ as much, so that fewer pairs change state.
    """

    def __init__(self, weights: np.ndarray, output_weights: np.ndarray, threshold: float, output_scale: float = 1.0):
        weights, output_weights = np.asarray(weights), np.asarray(output_weights)
        if weights.dtype not in (np.float32, np.float64):
            raise InputError(f"weights must be float32 or float64, got {weights.dtype}")
        if weights.ndim != 2 or weights.shape[0] < 2 or weights.shape[1] < 1:
            raise InputError(f"weights must have shape (width ≥ 2, n_features ≥ 1), got {weights.shape}")
        if output_weights.ndim != 2 or output_weights.shape[0] != weights.shape[0] or output_weights.shape[1] < 1:
            raise InputError(
                f"output_weights must have shape ({weights.shape[0]}, n_outputs ≥ 1), got {output_weights.shape}"
            )
        if not np.isfinite(weights).all():
            raise InputError("weights must be finite")
        if output_weights.dtype.kind in "iub" and not np.isin(output_weights, (-1, 1)).all():
            raise InputError(
                "output_weights of an integer type must be −1 or +1; use float32 or float64 for other values"
            )
        if not np.isfinite(output_weights).all():
            raise InputError("output_weights must be finite")
        if not isfinite(threshold) or abs(threshold) > float(np.finfo(weights.dtype).max):
            raise InputError(f"threshold must be a finite number in {weights.dtype}, got {threshold}")
        if abs(threshold) > _MAX_THRESHOLD:
            raise InputError(
                f"threshold must be at most {_MAX_THRESHOLD:g} in size, got {threshold:g}: its square would overflow"
            )
        if not is_number(output_scale) or not 1 / _MAX_OUTPUT_SCALE <= output_scale <= _MAX_OUTPUT_SCALE:
            limits = f"{1 / _MAX_OUTPUT_SCALE:g} to {_MAX_OUTPUT_SCALE:g}"
            raise InputError(f"output_scale must be a number from {limits}, got {output_scale!r}")
        self.output_scale = float(output_scale)
        self.weights = np.require(weights, requirements=["C", "A", "W"])
        self.output_weights = np.ascontiguousarray(output_weights, weights.dtype)
        self.threshold = float(weights.dtype.type(threshold))

    @classmethod
    def initialize(
        cls,
        width: int,
        n_features: int,
        n_outputs: int = 1,
        *,
        threshold: float | str = "paper",
        alpha: float | None = None,
        start: str = "paper",
        output_scale: float = 1.0,
        seed: int = 0,
        dtype="float32",
        neurons: tuple[int, int] | None = None,
    ) -> "ShiftedReLUNetwork":
        """Draw a network: w_r ~ N(0, I_d), a_r = ±1 at random (Definition "weights at initialization").

        A seed gives the same network in both precisions up to rounding, and any range of its neurons can be drawn on
        its own (``fireset.initialization``).

        Parameters
        ----------
        width : int
            m, the number of neurons.
        threshold : "paper" or float
            b; "paper" is √(0.4 ln m).
        alpha : float, optional
            Set b = √(0.5 (1 − α) ln m) instead; α = 0.2 in the paper. The smaller α, the fewer pairs are active.
        start : "paper", "antisymmetric" or "orthogonal"
            "antisymmetric" draws half of the neurons; the other half has equal weights and opposite output weights, so
            that f is 0 before training. ``width`` must then be even. "orthogonal" draws ``width``/Q neurons and copies
            each Q times (``copies_for_outputs``), with output weights whose columns are orthogonal over the copies and
            have sum 0: f is 0, and the tangent kernel between different outputs is 0 as well. ``width`` must then be
            divisible by Q.
        output_scale : float
            κ.
        neurons : (start, stop), optional
            Draw only this range of the m neurons.
        """
        width = whole_number("width", width, 2)
        if width > _MAX_WIDTH:
            raise InputError(f"width must be at most {_MAX_WIDTH:,}, got {width:,}")
        n_features, n_outputs = whole_number("n_features", n_features, 1), whole_number("n_outputs", n_outputs, 1)
        seed = whole_number("seed", seed, 0)
        if seed >= 2**64:
            raise InputError(f"seed must be below 2**64, got {seed}")
        dtype = check_dtype(dtype)
        signs = copy_signs(start, n_outputs)
        if width % len(signs):
            needed = "even" if len(signs) == 2 else f"divisible by {len(signs)}"
            raise InputError(f"width must be {needed} for start={start!r} with {n_outputs} outputs, got {width}")
        drawn = width // len(signs)  # the others are copies of these
        first, stop = neurons or (0, width)
        weights, output_weights = [], []
        for copy in range(first // drawn, -(-stop // drawn)):
            part = max(first - copy * drawn, 0), min(stop - copy * drawn, drawn)
            weights.append(draw_weights(seed, n_features, *part, dtype))
            output_weights.append(draw_output_weights(seed, n_outputs, *part, dtype) * signs[copy].astype(dtype))
        b = choose_threshold(width, threshold, alpha)
        aligned = aligned_empty(stop - first, n_features, dtype)
        out = aligned if aligned.shape[1] == n_features else None  # aligned only if rows fill whole cache lines
        return cls(np.concatenate(weights, out=out), np.concatenate(output_weights), b, output_scale)

    @property
    def width(self) -> int:
        return self.weights.shape[0]

    @property
    def n_features(self) -> int:
        return self.weights.shape[1]

    @property
    def n_outputs(self) -> int:
        return self.output_weights.shape[1]

    @property
    def dtype(self) -> np.dtype:
        return self.weights.dtype

    @property
    def divisor(self) -> float:
        """√m / κ, the divisor of sums over the neurons."""
        return sqrt(self.width) / self.output_scale

    @property
    def squared_divisor(self) -> float:
        """m / κ², the divisor of products with J Jᵀ."""
        return self.width / self.output_scale**2

    def part(self, neurons) -> "ShiftedReLUNetwork":
        """Return the network of some of the neurons, of their own width. A slice gives views."""
        return ShiftedReLUNetwork(
            self.weights[neurons], self.output_weights[neurons], self.threshold, self.output_scale
        )

    def copy(self) -> "ShiftedReLUNetwork":
        """Return a copy with its own memory."""
        return ShiftedReLUNetwork(self.weights.copy(), self.output_weights.copy(), self.threshold, self.output_scale)

    @property
    def has_sign_outputs(self) -> bool:
        """Whether all output weights are ±1, as in the paper, and thus not trained."""
        return bool((np.abs(self.output_weights) == 1).all())

    def stored_output_weights(self) -> np.ndarray:
        """Return ``output_weights`` in the type that files use: int8 if all are ±1."""
        return self.output_weights.astype(np.int8) if self.has_sign_outputs else self.output_weights

    def __repr__(self) -> str:
        scale = f"output_scale={self.output_scale:g}, " if self.output_scale != 1.0 else ""
        return (
            f"ShiftedReLUNetwork(width={self.width}, n_features={self.n_features}, n_outputs={self.n_outputs}, "
            f"threshold={self.threshold:.6g}, {scale}dtype={self.dtype})"
        )

    def predict(self, X) -> np.ndarray:
        """Return f(x_i) for every row of a NumPy matrix or a sparse matrix of SciPy; shape (n, c), float64.

        In high dimension every pair is computed, 2·n·m·d operations, in tiles. In low dimension, and with enough rows
        to compensate for building it, a half-space index over the weights finds the active pairs.
        """
        X = self.check_rows(X)
        if len(X) > MAX_ROWS_AT_ONCE:
            blocks = range(0, len(X), MAX_ROWS_AT_ONCE)
            return np.concatenate([self._predict(X[lo : lo + MAX_ROWS_AT_ONCE]) for lo in blocks])
        return self._predict(X)

    def _predict(self, X: Rows) -> np.ndarray:
        if len(X) * self.width <= _MAX_UNTILED_PAIRS:
            return self._predict_untiled(X)
        if isinstance(X, np.ndarray) and pays_to_search(self.width, self.n_features, len(X), self._expected_output()):
            return self._predict_by_search(X)

        def span_sum(span: tuple[int, int]) -> np.ndarray:
            total = np.zeros((len(X), self.n_outputs))
            for tile in self.tiles(X, *span):
                total[tile.samples] += tile.activations.T @ self.output_weights[tile.neurons]
            return total

        return np.sum(parallel_map(span_sum, ranges(self.width), uses_blas=True), axis=0) / self.divisor

    def _predict_untiled(self, X: Rows) -> np.ndarray:
        """Predict with one matrix product, for so few pairs that distributing the work would take longer."""
        with one_blas_thread(), np.errstate(over="ignore", invalid="ignore"):  # equal bits beside other threads
            activations = X @ self.weights.T
            activations -= self.dtype.type(self.threshold)
            np.maximum(activations, 0, out=activations)
            total = (activations @ self.output_weights).astype(np.float64)
        if self.dtype == np.float32 and not np.isfinite(total).all():  # a sum overflowed
            wide = (self.weights.astype(np.float64), self.output_weights.astype(np.float64))
            return ShiftedReLUNetwork(*wide, self.threshold, self.output_scale)._predict_untiled(X.astype(np.float64))
        return total / self.divisor

    def _expected_output(self) -> float:
        """Return the expected number of active neurons of a row of norm 1 at initialization."""
        return self.width * upper_tail(self.threshold)

    def _predict_by_search(self, X: np.ndarray) -> np.ndarray:
        from scipy.sparse import csr_array

        index = build(self.weights, "partition-tree")
        total = np.empty((len(X), self.n_outputs))
        at_once = max(1, int(TILE_PAIRS / (self._expected_output() + 1)))
        for lo in range(0, len(X), at_once):
            rows = X[lo : lo + at_once]
            found = index.report(rows, np.full(len(rows), self.threshold), ordered=False)
            excess = found.values.astype(np.float64) - self.threshold
            active = csr_array((excess, found.ids, found.indptr), shape=(len(rows), self.width))
            total[lo : lo + at_once] = active @ self.output_weights.astype(np.float64, copy=False)
        return total / self.divisor

    def fire_sets(self, X) -> "csr_array":
        """Return the active pairs as a boolean CSR array of shape (n, m); row i is the paper's S_{i,fire}."""
        X = self.check_rows(X)

        def span_pairs(span: tuple[int, int]) -> list[tuple[np.ndarray, np.ndarray]]:
            found = []
            for tile in self.tiles(X, *span):
                neurons, samples = (positions.astype(np.int32) for positions in np.nonzero(tile.activations > 0))
                found.append((neurons + np.int32(tile.neurons.start), samples + np.int32(tile.samples.start)))
            return found

        pairs = [pair for found in parallel_map(span_pairs, ranges(self.width), uses_blas=True) for pair in found]
        neurons, samples = (np.concatenate([p[k] for p in pairs] or [np.empty(0, np.int32)]) for k in (0, 1))
        del pairs
        return fire_sets_of_pairs(samples, neurons, (len(X), self.width))

    def tiles(self, X: Rows, start: int, stop: int) -> Iterator[Tile]:
        """Yield the activations of neurons ``start … stop−1`` on the rows of X, tile by tile."""
        from fireset.kernels.firing import activate

        threshold = self.dtype.type(self.threshold)
        refines = self.dtype == np.float64  # in float32 the computed value decides, unless it may overflow
        sample_norm = float(row_norms(X).max(initial=0.0))
        W, bands = self.weights[:0], np.empty(0)
        for neurons, samples in self.tile_slices(len(X), start, stop):
            if samples.start == 0:  # the first tile of these neurons
                W = self.weights[neurons]
                norms = row_norms(W) if refines else np.full(len(W), _norm_bound(W))
                bands = deciding_band(self.n_features, self.dtype, norms, sample_norm)
            rows = X[samples]
            with np.errstate(over="ignore", invalid="ignore"):  # ``activate`` computes what overflows again
                H = W @ rows.T
            activate(H, W, kernel_rows(rows), threshold, bands)
            yield Tile(neurons, samples, H)

    @staticmethod
    def tile_slices(n_samples: int, start: int, stop: int) -> Iterator[tuple[slice, slice]]:
        """Yield the slices of neurons and rows of the tiles of ``tiles``."""
        per_tile = max(1, min(n_samples, _MAX_ROWS_PER_TILE))
        neurons_per_tile = max(1, TILE_PAIRS // per_tile)
        for lo in range(start, stop, neurons_per_tile):
            for i in range(0, n_samples, per_tile):
                yield slice(lo, min(lo + neurons_per_tile, stop)), slice(i, min(i + per_tile, n_samples))

    def check_rows(self, X, name: str = "X") -> Any:
        """Return X in the network's precision as a C-contiguous matrix, or ``SparseRows`` for a sparse matrix of SciPy.

        Raise ``InputError`` if it is not a finite matrix with ``n_features`` columns.
        """
        refuse_masked(name, X)
        try:
            if isinstance(X, SparseRows):
                X = X.astype(self.dtype, copy=False)
            elif is_sparse(X):
                X = SparseRows.from_scipy(X, self.dtype, name)
            else:
                X = np.require(X, self.dtype, ["C", "A", "W"])  # a read-only array has another type in numba
        except InputError:
            raise
        except (TypeError, ValueError) as error:
            raise InputError(f"{name} must be a matrix of numbers: {error}") from None
        if len(X.shape) != 2 or X.shape[1] != self.n_features:
            raise InputError(f"{name} must have shape (n, {self.n_features}), got {X.shape}")
        wrong = first_nonfinite(X)
        if wrong is not None:
            row, column, value = wrong
            raise InputError(f"{name} holds {value} in row {row}, column {column}; remove or impute it")
        return X

    def save(self, path: str | os.PathLike, description: dict[str, Any] | None = None, **arrays: np.ndarray) -> None:
        """Write a safetensors file, atomically, with further arrays and a description that JSON can represent.

        If ``path`` was a model of several files, its shards are removed at the end.
        """
        own, old = (
            {"weights": self.weights, "output_weights": self.stored_output_weights()},
            own_shards(write_target(path)),
        )
        write_model(path, {**arrays, **own}, {**(description or {}), **self.scalars()})
        remove_shards(old)

    def scalars(self) -> dict[str, float]:
        """Return the numbers of the network that its file stores besides arrays; ``output_scale`` if it is not 1."""
        scale = {"output_scale": self.output_scale} if self.output_scale != 1.0 else {}
        return {"threshold": self.threshold, **scale}

    @classmethod
    def load(cls, path: str | os.PathLike) -> "ShiftedReLUNetwork":
        """Read a network that ``save`` or the command line wrote."""
        return cls.from_file(path)[0]

    @classmethod
    def from_file(cls, path: str | os.PathLike) -> tuple["ShiftedReLUNetwork", dict[str, np.ndarray], dict[str, Any]]:
        """Return the network of a model file, the other arrays, and the description stored with it."""
        arrays, description = read_model(path)
        if "shards" in description:
            arrays |= joined_shards(path, description)
        try:
            weights, output_weights = arrays.pop("weights"), arrays.pop("output_weights")
            threshold, scale = description.pop("threshold"), description.pop("output_scale", 1.0)
            network = cls(weights, output_weights, float(threshold), float(scale))
        except KeyError as error:
            raise InputError(f"{path} is damaged: {error.args[0]} is missing") from error
        except (TypeError, ValueError, OverflowError) as error:
            raise InputError(f"{path} is damaged: {error}") from error
        return network, arrays, description


def _norm_bound(W: np.ndarray) -> float:
    """Return √d max |w_rj|, an upper bound on the norm of every row, in one fast pass."""
    return sqrt(W.shape[1]) * max(float(W.max(initial=0.0)), -float(W.min(initial=0.0)))


def choose_threshold(width: int, threshold: float | str = "paper", alpha: float | None = None) -> float:
    """Return b for the arguments of ``initialize``: "paper" is √(0.4 ln m), α gives √(0.5 (1 − α) ln m)."""
    if alpha is not None:
        if not is_number(alpha) or not 0.0 <= alpha <= 1.0:
            raise InputError(f"alpha must be between 0 and 1, got {alpha!r}")
        if threshold != "paper":
            raise InputError(f"give threshold or alpha, not both: got threshold={threshold} and alpha={alpha}")
        return sqrt(0.5 * (1.0 - alpha) * log(width))
    if isinstance(threshold, str):
        if threshold != "paper":
            raise InputError(f"threshold must be 'paper' or a number, got {threshold!r}")
        return sqrt(0.4 * log(width))
    if not is_number(threshold):
        raise InputError(f"threshold must be 'paper' or a finite number, got {threshold}")
    return float(threshold)
