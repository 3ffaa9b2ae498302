"""Gradient flow dW/dt = −∂L/∂W of a small network, integrated exactly from event to event.

While no pair changes state the flow is linear: with err = y − u, d err/dt = −H err for the constant kernel H of the
active pairs, so err(t + s) = V e^(−Λs) Vᵀ err(t), and the weights follow from its integral.

There are two kinds of events. (1) A pre-activation reaches the threshold. The pair becomes active, inactive or, where
the flow points to the threshold on both sides, sliding: it stays at the threshold (Filippov's solution) and w_r moves
orthogonally to x_i. (2) A sliding pair leaves the threshold when the share of its gradient, θ, leaves [0, 1].

Every event function is a linear function g of err or of its integral. Its second derivative is bounded by that at the
start of a step, as ‖H err‖ and ‖H² err‖ do not grow. A step of s with |g| + g′s − ½ max|g″| s² ≥ 0 cannot miss an
event, and such steps converge to the event quadratically.

Cost O(m n (n + d) + n³) per event and per step: for problems with some hundred neurons.
"""

from dataclasses import dataclass
from math import inf

import numpy as np

from fireset._util.errors import InputError

_EVENT_MARGIN = 1e-11  # margins up to this count as 0
_MIN_EVENT_SPEED = 1e-9  # no event below this speed: a pair that stops sliding leaves with speed 0
_MIN_STEP = 1e-10
_MAX_STEPS = 200_000


@dataclass(frozen=True)
class FlowPath:
    """Gradient flow at its events and at the requested times.

    Attributes
    ----------
    times : (k,) array
    squared_errors : (k,) array
        ‖err(t)‖².
    movement : (k,) array
        max_r ‖w_r(t) − w_r(0)‖.
    smallest_eigenvalues : (k,) array
        λ_min of the kernel from this time to the next.
    events : int
    weights : (m, d) array
        At the last time.
    """

    times: np.ndarray
    squared_errors: np.ndarray
    movement: np.ndarray
    smallest_eigenvalues: np.ndarray
    events: int
    weights: np.ndarray


class _Phase:
    """Linear flow while all pairs keep their states: active, inactive or sliding."""

    def __init__(self, X: np.ndarray, output_weights: np.ndarray, active: np.ndarray, sliding: np.ndarray):
        m = len(output_weights)
        self.X, self.output_weights, self.active = X, output_weights, active
        # dw_r/dt = velocity_map[r] err, of shape (d, n); sliding rows are projected out of it.
        self.velocity_map = (output_weights / np.sqrt(m))[:, None, None] * X.T[None] * active[:, None, :]
        self.pairs = np.argwhere(sliding)
        self.shares = np.zeros((len(self.pairs), X.shape[0]))  # (shares err)_l = θ_l err_i for sliding pair l
        for r in np.unique(self.pairs[:, 0]):
            held = np.flatnonzero(sliding[r])
            dual = np.linalg.pinv(X[held])  # (d, held); its transpose gives coefficients along the sliding rows
            coefficients = dual.T @ self.velocity_map[r] / (output_weights[r] / np.sqrt(m))
            self.shares[self.pairs[:, 0] == r] = -coefficients
            self.velocity_map[r] -= X[held].T @ (dual.T @ self.velocity_map[r])
        # du_i = Σ a_r/√m ⟨x_i, dw_r⟩ over the active neurons r.
        self.kernel = np.einsum("ri,id,rdj->ij", active * (output_weights / np.sqrt(m))[:, None], X, self.velocity_map)
        self.kernel = 0.5 * (self.kernel + self.kernel.T)
        self.values, self.vectors = np.linalg.eigh(self.kernel)
        self.values = np.maximum(self.values, 0.0)
        self.slopes = np.einsum("id,rdj->rij", X, self.velocity_map)  # d⟨w_r, x_i⟩/dt = slopes_ri err
        self.slope_norms = np.linalg.norm(self.slopes, axis=2)

    def error_after(self, err: np.ndarray, s: float) -> np.ndarray:
        """Return err after time s."""
        return self.vectors @ (np.exp(-self.values * s) * (self.vectors.T @ err))

    def integral(self, err: np.ndarray, s: float) -> np.ndarray:
        """Return ∫₀ˢ err."""
        small = self.values * s < 1e-12
        safe = np.where(small, 1.0, self.values)
        return self.vectors @ (np.where(small, s, -np.expm1(-safe * s) / safe) * (self.vectors.T @ err))


def follow_flow(network, X: np.ndarray, y: np.ndarray, times: np.ndarray) -> FlowPath:
    """Integrate the gradient flow of ½ Σ (u − y)² from the network's weights, which are not changed.

    Parameters
    ----------
    network : ShiftedReLUNetwork
        With one output and output scale 1.
    X : (n, d) array
    y : (n,) array
    times : (k,) array
        Ascending times ≥ 0 that are reported in addition to the events; the flow ends at the last one.
    """
    if network.n_outputs != 1 or network.output_scale != 1.0:
        raise InputError(
            f"network must have one output and output_scale 1, got {network.n_outputs} outputs and output_scale "
            f"{network.output_scale:g}"
        )
    X, y = np.asarray(X, np.float64), np.asarray(y, np.float64).reshape(-1)
    start, b = network.weights.astype(np.float64), float(network.threshold)
    output_weights = network.output_weights[:, 0].astype(np.float64)
    W, stops = start.copy(), sorted({0.0, *(float(t) for t in times)})
    active = W @ X.T > b
    sliding = np.zeros_like(active)
    err = y - output_weights @ np.maximum(W @ X.T - b, 0.0) / np.sqrt(len(W))
    phase, now, events = _Phase(X, output_weights, active, sliding), 0.0, 0
    records = []

    def record() -> None:
        movement = np.linalg.norm(W - start, axis=1).max()
        records.append((now, float(err @ err), float(movement), float(phase.values[0])))

    record()
    for stop in stops[1:]:
        for _ in range(_MAX_STEPS):
            rate = float(np.linalg.norm(phase.kernel @ err))
            step, pair, share = _next_event(phase, W, b, err, sliding, rate)
            if pair is not None or share is not None:
                events += 1
                _change_state(phase, err, active, sliding, pair, share)
                phase = _Phase(X, output_weights, active, sliding)
                record()
                continue
            step = min(step, stop - now)
            W += np.einsum("rdj,j->rd", phase.velocity_map, phase.integral(err, step))
            err = phase.error_after(err, step)
            now = stop if step == stop - now else now + step
            if now == stop:
                break
        else:
            raise InputError(f"the flow needs more than {_MAX_STEPS:,} steps up to t = {stop:g}; pass smaller times")
        record()
    at, squared_errors, movement, smallest = np.array(records).T
    return FlowPath(at, squared_errors, movement, smallest, events, W)


def _next_event(phase: _Phase, W, b: float, err, sliding, rate: float):
    """Return (step, None, None) if no event occurs within the step, else (0, pair, None) or (0, None, share).

    ``pair`` (r, i) is at its threshold; ``share`` is the position in ``phase.pairs`` of a sliding pair whose share
    leaves [0, 1]. ``rate`` is ‖H err‖.
    """
    values = W @ phase.X.T - b
    margins = np.maximum(np.where(phase.active, values, -values), 0.0)
    towards = np.where(phase.active, -1.0, 1.0) * (phase.slopes @ err)
    due = (margins <= _EVENT_MARGIN) & (towards > _MIN_EVENT_SPEED) & ~sliding
    if due.any():
        return 0.0, tuple(np.argwhere(due)[0]), None
    free = ~sliding & ~(
        (margins <= _EVENT_MARGIN) & (towards <= _MIN_EVENT_SPEED) & (phase.slope_norms * rate <= _MIN_EVENT_SPEED)
    )
    steps = _safe_steps(margins, towards, phase.slope_norms * rate)[free]
    step = float(steps.min(initial=inf))
    if len(phase.pairs):
        own = err[phase.pairs[:, 1]]
        held = phase.shares @ err
        derivative, own_derivative = -phase.shares @ phase.kernel @ err, -(phase.kernel @ err)[phase.pairs[:, 1]]
        twice = float(np.linalg.norm(phase.kernel @ (phase.kernel @ err)))
        bend = np.linalg.norm(phase.shares, axis=1) * twice
        side = np.where(own >= 0, 1.0, -1.0)
        for margin, speed, bound in (
            (side * held, -side * derivative, bend),
            (side * (own - held), -side * (own_derivative - derivative), bend + twice),
        ):
            # A share can already be outside [0, 1] after another pair of the neuron changed state.
            leaves = (margin < -_EVENT_MARGIN) | (margin <= _EVENT_MARGIN) & (speed > _MIN_EVENT_SPEED)
            if leaves.any():
                return 0.0, None, int(np.flatnonzero(leaves)[0])
            step = min(step, float(_safe_steps(np.maximum(margin, 0.0), speed, bound).min()))
    return max(step, _MIN_STEP), None, None


def _safe_steps(margins, towards, bends) -> np.ndarray:
    """Return the largest s with margin − towards·s − ½ bend s² ≥ 0; ∞ where there is none."""
    root = np.sqrt(towards**2 + 2.0 * bends * margins)
    with np.errstate(divide="ignore", invalid="ignore"):
        steps = np.where(towards > 0, 2.0 * margins / (towards + root), (root - towards) / bends)
    return np.where(np.isnan(steps), inf, steps)


def _change_state(phase: _Phase, err, active, sliding, pair, share) -> None:
    """Flip a pair, make it sliding, or end its sliding."""
    if share is not None:
        r, i = phase.pairs[share]
        side = 1.0 if err[i] >= 0 else -1.0
        held = float(phase.shares[share] @ err)
        sliding[r, i] = False
        active[r, i] = side * held > side * (err[i] - held)  # θ at 1 becomes active, θ at 0 inactive
        return
    r, i = pair
    was = bool(active[r, i])
    before = float(phase.slopes[r, i] @ err)
    row, held = phase.X[i], phase.X[sliding[r]]
    if len(held):
        row = row - np.linalg.pinv(held) @ (held @ row)
    own = phase.output_weights[r] / np.sqrt(len(phase.output_weights)) * err[i] * float(row @ phase.X[i])
    after = before + (-own if was else own)
    if (after < 0) == (before < 0):
        active[r, i] = not was
    else:  # the flow points to the threshold on both sides
        active[r, i], sliding[r, i] = False, True
