"""The base class of engines with candidate lists: one list of rows per neuron that contains all its active rows.

Subclasses make and update the lists: ``data_search.py`` searches the rows for a neuron, ``weight_search.py`` the
neurons for a row. The passes over the lists are in ``list_passes.py``, the storage in ``candidate_lists.py``.
"""

from abc import abstractmethod
from typing import TYPE_CHECKING

import numpy as np

from fireset._util.checks import is_number
from fireset._util.errors import CertificateError, InputError
from fireset._util.rounding import row_norms
from fireset.engines.audit import ListAudit
from fireset.engines.fire_set_engine import FireSetEngine
from fireset.engines.list_passes import ListPasses
from fireset.engines.step_rule import NeuronGradients, StepRule
from fireset.engines.tangent import ActiveByNeuron, TangentOperator
from fireset.fire_sets import fire_sets_by_neuron
from fireset.hsr import HalfSpaceIndex, Report
from fireset.hsr.base import IndexWork
from fireset.kernels.candidates import Certificates
from fireset.sparse_rows import max_terms

if TYPE_CHECKING:
    from scipy.sparse import csr_array

_UNKNOWN_SPEED = 1e-300  # practically 0, but not 0: ``backward`` treats speed 0 as velocity 0 and skips the neuron


def check_radius(radius: float | str) -> float | str:
    """Check that ``radius`` is "auto" or a number of at least 0."""
    if radius != "auto" and not (is_number(radius) and float(radius) >= 0):
        raise InputError(f"radius must be 'auto' or a number of at least 0, got {radius!r}")
    return radius


class ListEngine(FireSetEngine):
    """Certificates of the candidate lists, and the passes over them.

    Per neuron, (m,) each: ``_radii`` are the certificate radii and ``_drifts`` the bounds on the drift, both in units
    of inner products; ``_speeds`` are bounds on the last ‖Δw_r‖; ``_near_misses`` counts tested pairs that were not
    active since the list was made; ``_bands`` are the half-widths around b in which ``deciding_dot`` decides.
    ``_moved`` are the neurons that the last step moved, ascending.

    A neuron is *live* while it has candidates to test or may move: its speed is not 0. Under plain gradient descent a
    neuron without active rows is at rest, so that most neurons are not live if there are few rows. An iteration reads
    and writes the numbers of live neurons only. With momentum a neuron stays live until its velocity is 0.
    """

    uses_list_passes = True

    _passes: ListPasses

    def _uses_chunks(self) -> bool:
        """Return whether the rows may be divided into chunks."""
        return True

    @abstractmethod
    def _first_lists(self) -> None:
        """Make the lists, at the end of ``start``."""

    @abstractmethod
    def _update_lists(self) -> None:
        """Make the lists valid for the current weights; called after every step."""

    def _prepare(self) -> None:
        network, X, m = self.network, self.X, self.network.width
        self._passes = ListPasses(network, X, chunked=self._uses_chunks())
        self._sample_norm = float(row_norms(X).max(initial=0.0)) * (1 + 1e-12)
        self._terms = max_terms(X)  # of an inner product, which its rounding error depends on
        self._audit = ListAudit(network, X, self._passes, self._sample_norm)
        state = self._passes.chunks[0].lists.neuron_state
        self._radii, self._drifts, self._speeds, self._near_misses, self._bands = state
        self._known_velocity: np.ndarray | None = None  # its rows are 0 for all neurons of speed 0
        self._moved = np.arange(m)
        self._forward_done = False
        self._diverged = False  # whether a weight is not finite: passes then return NaN
        self._first_lists()

    def release(self) -> None:
        """Free the memory of lists and sums; call ``start`` before any other method."""
        self._passes.release()

    @property
    def live_neurons(self) -> np.ndarray:
        """The neurons that the next pass processes, ascending. All others have no active rows and are at rest."""
        return self._passes.live

    def forward(self) -> np.ndarray:
        if self._diverged:
            return self._all_nan()
        predictions, counts = self._passes.forward(Certificates(self._radii, self._drifts, self._bands))
        if counts.violated >= 0:
            raise CertificateError(
                f"neuron {counts.violated} has drift {self._drifts[counts.violated]:.3g}, which exceeds its radius "
                f"{self._radii[counts.violated]:.3g}, and was not refreshed"
            )
        self.work.inner_products += counts.tested_pairs
        self.work.active_pairs = counts.active_pairs
        self._forward_done = True
        self._audit_pass()
        return predictions

    def _all_nan(self) -> np.ndarray:
        return np.full((len(self.X), self.network.n_outputs), np.nan)

    def _ensure_forward(self) -> None:
        """Run a forward pass unless the active pairs of the current weights are recorded."""
        if not self._forward_done:
            self.forward()

    def gradient(self, residual: np.ndarray) -> NeuronGradients:
        self._ensure_forward()
        if self._diverged:
            return NeuronGradients(np.arange(self.network.width), np.full_like(self.network.weights, np.nan))
        return self._passes.gradient(residual)

    def output_gradient(self, residual: np.ndarray) -> np.ndarray:
        self._ensure_forward()
        if self._diverged:
            return np.full_like(self.network.output_weights, np.nan)
        return self._passes.output_gradient(residual)

    def step(self, residual: np.ndarray, rule: StepRule) -> None:
        self._ensure_forward()
        if rule.momentum and rule.velocity is not None and rule.velocity is not self._known_velocity:
            # Any neuron may have a velocity.
            self._passes.make_all_live()
            self._speeds[self._speeds == 0.0] = _UNKNOWN_SPEED
        self._passes.step(residual, rule, self._speeds, self._near_misses)
        self._known_velocity = rule.velocity if rule.momentum else None
        self._add_drift()

    def weights_moved(self, neurons: np.ndarray, distances: np.ndarray) -> None:
        live = self._passes.live
        if self._forward_done:  # ``step`` counts near misses in the same way
            self._near_misses[live] += self._passes.near_misses()
        is_live = np.zeros(self.network.width, bool)
        is_live[live] = is_live[neurons] = True
        self._passes.live = np.flatnonzero(is_live)
        self._speeds[live] = 0.0
        self._speeds[neurons] = distances
        self._known_velocity = None
        self._add_drift()

    def _add_drift(self) -> None:
        """Add ``_speeds`` to the drifts after the weights have moved by at most that, and update the lists."""
        self._forward_done = False
        moved = self._passes.add_drifts(self._speeds, self._sample_norm * (1 + 1e-9), self._drifts)
        if moved is None:
            self._diverged = True
            return
        self._moved = moved
        self._update_lists()

    def tangent_operator(self) -> TangentOperator:
        self._ensure_forward()
        if self._diverged:
            return lambda direction: np.full(direction.shape, np.nan)
        return self._passes.tangent_operator()

    def jacobian_product(self, directions: np.ndarray) -> np.ndarray:
        self._ensure_forward()
        return self._all_nan() if self._diverged else self._passes.jacobian_product(directions)

    def fire_sets(self) -> "csr_array":
        """Computed from the lists only; otherwise as ``Engine.fire_sets``."""
        if self._diverged:
            return self.network.fire_sets(self.X)
        return fire_sets_by_neuron(*self.active_by_neuron())

    def active_by_neuron(self) -> ActiveByNeuron:
        if self._diverged:
            return super().active_by_neuron()
        self._ensure_forward()
        return self._passes.active_by_neuron()

    def _search_index(self, index: HalfSpaceIndex, normals: np.ndarray, thresholds, with_values: bool) -> Report:
        """Answer queries, with the ids in any order, and add their work to the work of the engine."""
        work = IndexWork()
        found = index.with_ids(index.search_numbers(normals, thresholds, with_values, False, work), False)
        self.work.nodes_visited += work.nodes_visited
        self.work.inner_products += work.points_tested
        return found

    def audit(self, neurons: np.ndarray | None = None) -> None:
        """Compare the lists of these neurons, ascending (default: all), with all rows; raise ``CertificateError``.

        Cost O(d·n) per neuron. In float32, rows within rounding distance of the threshold are accepted.
        """
        self._ensure_forward()
        neurons = np.arange(self.network.width) if neurons is None else np.asarray(neurons)
        self._audit.check(neurons)
        self.work.audited += len(neurons)

    def _audit_pass(self) -> None:
        """Audit the next neurons; called in every forward pass. Engines that are not exact override it."""
        self.audit(self._audit.next_neurons())
