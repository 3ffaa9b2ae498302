"""The audit of candidate lists: comparison of the active pairs of some neurons with all rows."""

import numpy as np

from fireset._util.errors import CertificateError
from fireset._util.parallel import parallel_map
from fireset._util.rounding import deciding_band, dot_slack, row_norms
from fireset.engines.list_passes import ListPasses
from fireset.kernels.firing import activate
from fireset.network import ShiftedReLUNetwork
from fireset.sparse_rows import Rows, kernel_rows, max_terms

_PASSES_PER_ROUND = 4096  # every neuron is audited about once in this number of passes
_MAX_PAIRS_AT_ONCE = 1 << 20


class ListAudit:
    """Audits of the lists of ``passes``. A pass audits the next neurons in turn."""

    def __init__(self, network: ShiftedReLUNetwork, X: Rows, passes: ListPasses, sample_norm: float):
        self._network, self._X, self._passes, self._sample_norm = network, X, passes, sample_norm
        self._neurons_at_once = max(1, _MAX_PAIRS_AT_ONCE // max(1, len(X)))
        self._next = 0

    def next_neurons(self) -> np.ndarray:
        """Return the neurons to audit in this pass, ascending, and advance to the next ones."""
        m = self._network.width
        count = max(1, min(-(-m // _PASSES_PER_ROUND), _MAX_PAIRS_AT_ONCE // max(1, len(self._X))))
        neurons = np.sort((self._next + np.arange(min(count, m))) % m)
        self._next = (self._next + count) % m
        return neurons

    def check(self, neurons: np.ndarray) -> None:
        """Raise ``CertificateError`` if one of these neurons, ascending, is active for a row that its list lacks.

        Cost O(d·n) per neuron. In float32, rows within rounding distance of the threshold are accepted.
        """
        parts = [neurons[lo : lo + self._neurons_at_once] for lo in range(0, len(neurons), self._neurons_at_once)]
        # One BLAS thread per task: threads of BLAS would keep spinning on cores that the kernels need.
        parallel_map(self._check_some, parts, uses_blas=True)

    def _check_some(self, neurons: np.ndarray) -> None:
        network, terms = self._network, max_terms(self._X)
        W = network.weights[neurons]
        norms = row_norms(W)
        with np.errstate(over="ignore", invalid="ignore"):  # ``activate`` computes what overflows again
            excess = W @ self._X.T
        bands = deciding_band(terms, network.dtype, norms, self._sample_norm)
        threshold = network.dtype.type(network.threshold)
        if (bands >= 0).any():
            activate(excess, W, kernel_rows(self._X), threshold, bands)
        else:  # float32: the computed values decide, and a first fit does not compile the kernel
            np.maximum(excess - threshold, 0, out=excess)  # keeps NaN
        excess[self._passes.active_pairs_of(neurons)] = 0  # the rest are active pairs that the lists lack
        tolerance = np.zeros(len(neurons), network.dtype)
        if network.dtype == np.float32:
            tolerance += 2 * dot_slack(terms, network.dtype, norms, self._sample_norm)
        missed = excess > tolerance[:, None]
        if missed.any():
            k, sample = np.argwhere(missed)[0]
            raise CertificateError(
                f"neuron {neurons[k]} fires for sample {sample}, ⟨w, x⟩ − b = {excess[k, sample]:.3g}, but its "
                "candidate list does not contain it; call start() again if the weights were changed from outside"
            )
