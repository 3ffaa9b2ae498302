"""Weights at initialization (the paper's Definition "weights at initialization"), drawn neuron by neuron.

``w_r ~ N(0, I_d)`` and ``a_r`` uniform in ``{−1, +1}`` come from Philox, a counter-based generator. Neuron ``r`` has a
fixed range of counters, so any range of neurons can be drawn on its own, and the network depends on the seed alone.
Normals are computed by the inverse distribution function because it takes exactly one word per number; the ziggurat of
``Generator.standard_normal`` takes a varying number of words.
"""

import numpy as np

from fireset._util.errors import InputError
from fireset._util.parallel import parallel_map

_WORDS_PER_COUNTER = 4  # Philox 4x64 returns four 64-bit words per counter value
_SIGNS_PER_COUNTER = 64 * _WORDS_PER_COUNTER
_WEIGHT_STREAM, _SIGN_STREAM = 0, 1
_NEURONS_PER_TASK = 4096


def draw_weights(seed: int, n_features: int, start: int, stop: int, dtype=np.float64) -> np.ndarray:
    """Draw rows ``start … stop−1`` of the initial weight matrix, shape ``(stop − start, n_features)``.

    Float32 weights are the float64 weights, rounded. Cost: about 20 ns per number and core.
    """
    from scipy.special import ndtri

    weights = np.empty((stop - start, n_features), dtype)
    counters = -(-n_features // _WORDS_PER_COUNTER)

    def draw(span: tuple[int, int]) -> None:
        lo, hi = span
        words = _words(seed, _WEIGHT_STREAM, lo, hi, counters)[:, :n_features]
        # 53 random bits, centered in their cell: strictly between 0 and 1, symmetric about 1/2.
        uniform = ((words >> np.uint64(11)) + 0.5) * 2.0**-53
        weights[lo - start : hi - start] = ndtri(uniform)

    spans = [(lo, min(lo + _NEURONS_PER_TASK, stop)) for lo in range(start, stop, _NEURONS_PER_TASK)]
    parallel_map(draw, spans)
    return weights


def draw_output_weights(seed: int, n_outputs: int, start: int, stop: int, dtype=np.float64) -> np.ndarray:
    """Draw rows ``start … stop−1`` of the output weights, ±1, shape ``(stop − start, n_outputs)``."""
    counters = -(-n_outputs // _SIGNS_PER_COUNTER)
    words = _words(seed, _SIGN_STREAM, start, stop, counters)
    bits = np.unpackbits(words.astype("<u8").view(np.uint8), axis=1, count=n_outputs, bitorder="little")
    return (2.0 * bits - 1.0).astype(dtype)


def copies_for_outputs(n_outputs: int) -> int:
    """Return the number Q of copies of a neuron at an orthogonal start: the least power of two above ``n_outputs``."""
    return 2 ** int(n_outputs).bit_length()


def copy_signs(start: str, n_outputs: int) -> np.ndarray:
    """Return the factors of the output weights of each copy of a neuron, (copies, n_outputs), all ±1.

    "paper" has one copy. "antisymmetric" has two with opposite signs. "orthogonal" has Q copies, and the factors are
    columns of a Hadamard matrix: for outputs k ≠ l, Σ_q s_qk s_ql = 0, and Σ_q s_qk = 0.
    """
    if start == "paper":
        return np.ones((1, n_outputs))
    if start == "antisymmetric":
        return np.repeat([[1.0], [-1.0]], n_outputs, axis=1)
    if start == "orthogonal":
        from scipy.linalg import hadamard

        return hadamard(copies_for_outputs(n_outputs))[:, 1 : n_outputs + 1].astype(np.float64)
    raise InputError(f"start must be 'paper', 'antisymmetric' or 'orthogonal', got {start!r}")


def _words(seed: int, stream: int, start: int, stop: int, counters: int) -> np.ndarray:
    """Return the random words of neurons ``start … stop−1``, each with the given number of counters."""
    generator = np.random.Philox(key=np.array([seed, stream], np.uint64))
    generator.advance(start * counters)
    words = generator.random_raw((stop - start) * counters * _WORDS_PER_COUNTER)
    return words.reshape(stop - start, counters * _WORDS_PER_COUNTER)
