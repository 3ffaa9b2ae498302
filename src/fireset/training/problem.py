"""The checked data of a run: rows, targets and sample weights, with the validation rows at the end."""

import hashlib
from collections.abc import Sized
from dataclasses import dataclass, replace
from functools import cached_property
from math import sqrt
from typing import Any, NamedTuple

import numpy as np

from fireset._util.checks import refuse_masked
from fireset._util.errors import InputError
from fireset._util.rounding import row_norms
from fireset.distributed.process_group import SINGLE_PROCESS, ProcessGroup
from fireset.distributed.row_shares import RowShares
from fireset.network import ShiftedReLUNetwork
from fireset.sparse_rows import Rows, SparseRows, stack_rows
from fireset.training.losses import Loss
from fireset.training.run_identity import combined_hash, row_hashes

_MAX_LOSS = 1e300  # leaves a margin for predictions with errors larger than the targets
_MAX_GRADIENT = 1e-3  # of the largest number of the network's precision, for the same reason
_MAX_PERMUTED_ROWS = 10_000_000  # a permutation takes 8 bytes for each; beyond, rows are drawn one by one
_UNSCALED_EXPONENT = 16  # mean weights within 2^±16 are used as they are


@dataclass(frozen=True)
class TrainingProblem:
    """Checked data. Validation rows follow the training rows and have weight 0.

    If workers share the rows, all arrays contain the rows of this worker, and sums over rows are made by ``total``.

    Attributes
    ----------
    X : (n, d) array or SparseRows
        In the network's precision.
    targets : (n, c) array
    weight : (n,) array
        Sample weights divided by ``weight_unit``; 0 for validation rows, which therefore do not affect the gradient.
    held_out : (n,) array
        1 for validation rows, 0 for training rows.
    row_group : ProcessGroup
        The workers that share the rows; by default this process.
    weight_unit : float
        A power of two, 1 unless the mean of the sample weights is extreme: weights of 1e-100 would underflow in
        float32. Solvers work in this unit. Losses and ridges that users pass or read are ``weight_unit`` times those of
        the solver; learning rates are those of the solver divided by it.
    """

    X: Rows
    targets: np.ndarray
    weight: np.ndarray
    held_out: np.ndarray
    row_group: ProcessGroup = SINGLE_PROCESS
    whole: "WholeProblem | None" = None  # properties of all rows, if workers share them
    weight_unit: float = 1.0

    @classmethod
    def check(
        cls,
        network: ShiftedReLUNetwork,
        X: Any,
        y: Any,
        loss: Loss,
        sample_weight: Any = None,
        *,
        validation: tuple[Any, Any] | None = None,
        any_norm: bool = False,
        is_share: bool = False,
    ) -> "TrainingProblem":
        """Return the problem of the arguments of ``train``; raise InputError if they are invalid.

        With ``is_share`` they have the rows of one of several workers, and ``joined`` is to be called next.
        """
        _check_output_scale(network)
        X, targets = _check_pair(network, X, y, loss, "", any_norm)
        given = _check_weight(sample_weight, len(X))
        if not (is_share or given.any()):
            raise _invalid_weights()
        weight_unit = _unit_of_mean(*_mean_weight(given))
        weight = given / weight_unit
        _check_sizes(targets, given, weight, network.dtype, "")
        if validation is None:
            return cls(X, targets, weight, np.zeros(len(X)), weight_unit=weight_unit)
        if not isinstance(validation, (tuple, list)) or len(validation) != 2:
            size = f" of {len(validation)}" if isinstance(validation, Sized) else ""
            raise InputError(f"validation must be a pair (X, y), got {type(validation).__name__}{size}")
        rows, held_targets = _check_pair(network, *validation, loss, "validation ", any_norm, may_be_empty=is_share)
        ones = np.ones(len(rows))
        _check_sizes(held_targets, ones, ones, network.dtype, "validation ")
        return cls(
            stack_rows(X, rows),
            np.concatenate([targets, held_targets]),
            np.concatenate([weight, np.zeros(len(rows))]),
            np.concatenate([np.zeros(len(X)), np.ones(len(rows))]),
            weight_unit=weight_unit,
        )

    def share(self, group: ProcessGroup, unit: int = 1) -> "TrainingProblem":
        """Return a copy of this worker's rows. Training and validation rows are each distributed evenly.

        Shares of the training rows begin at multiples of ``unit`` if there are as many units as workers.
        """
        if group.size == 1:
            return self
        held = int(self.held_out.sum())
        trained = self.n_rows - held
        rows = np.r_[share_of_rows(group, trained, unit, trained=True), trained + share_of_rows(group, held)]
        return TrainingProblem(
            self.X[rows],
            self.targets[rows],
            self.weight[rows],
            self.held_out[rows],
            group,
            WholeProblem(self.n_rows, self.has_validation, self.fingerprints()),
            self.weight_unit,
        )

    def joined(self, group: ProcessGroup) -> "TrainingProblem":
        """Return this problem as the share of one of the workers of ``group``, each with its own rows.

        Training and validation rows are numbered in the order of the workers.
        """
        if group.size == 1:
            return self
        if isinstance(self.X, SparseRows):
            raise InputError(f"X must be dense with own_rows=True on {group.size} workers, got sparse rows")
        shares, held = RowShares(group, len(self.X)), int(self.held_out.sum())
        trained = len(self.X) - held
        largest, mean = _mean_weight(self.weight[:trained] * self.weight_unit)
        found = shares.concatenate(np.array([[largest, mean, trained, held]]), [1] * group.size)
        if not found[:, 0].any():
            raise _invalid_weights()
        largest, counts = float(found[:, 0].max()), found[:, 2:].astype(np.int64)
        mean = float((found[:, 1] * (found[:, 0] / largest) * found[:, 2]).sum() / found[:, 2].sum())
        unit = _unit_of_mean(largest, mean)
        weight = self.weight * (self.weight_unit / unit)
        problem = replace(self, weight=weight, weight_unit=unit, row_group=group)
        starts = np.vstack([np.zeros(2, np.int64), np.cumsum(counts, axis=0)])[group.rank]
        numbers = np.r_[starts[0] + np.arange(trained), counts[:, 0].sum() + starts[1] + np.arange(held)]
        prints = problem._hashes(numbers)
        return replace(problem, whole=WholeProblem(int(counts.sum()), bool(counts[:, 1].any()), prints))

    def for_targets(self, loss: Loss) -> Loss:
        """Return ``loss.for_targets`` of the targets of all workers."""
        return loss_for_targets(loss, self.targets, self.weight, self.shares)

    @cached_property
    def shares(self) -> RowShares:
        """This worker's rows among those of all workers."""
        return RowShares(self.row_group, len(self.X))

    def total(self, *sums: float) -> list[float]:
        """Return sums over all rows from those over this worker's rows, with equal bits on all workers."""
        return self.shares.totals(*sums)

    def sample(self, size: int) -> np.ndarray:
        """Return the numbers, ascending, of up to ``size`` random training rows of positive weight of all workers.

        The rows are the same for any number of workers. Deterministic; cost O(size) besides a pass over the weights.
        """
        positive = np.flatnonzero(self.weight > 0)
        ends = np.r_[0, np.cumsum(self.shares.counts(len(positive)))]
        rng, count = np.random.default_rng(0), int(ends[-1])
        if count <= _MAX_PERMUTED_ROWS:
            ranks = rng.permutation(count)[:size]
        else:
            ranks = rng.choice(count, size, replace=False, shuffle=False)
        edges = np.searchsorted(np.sort(ranks), ends)
        place = self.row_group.rank
        own = positive[np.sort(ranks)[edges[place] : edges[place + 1]] - ends[place]] + self.shares.first
        return self.shares.concatenate(own, np.diff(edges))

    def norm(self, vector: np.ndarray) -> float:
        """Return √(Σ v²) over all rows from this worker's part of v, (n, c)."""
        own = float(np.linalg.norm(vector))
        return own if self.row_group.size == 1 else sqrt(self.total(own * own)[0])

    @cached_property
    def n_rows(self) -> int:
        """Number of rows on all workers together."""
        return self.whole.n_rows if self.whole else len(self.X)

    @cached_property
    def has_validation(self) -> bool:
        """Whether there are validation rows, on this worker or another."""
        return self.whole.has_validation if self.whole else bool(self.held_out.any())

    def fingerprints(self) -> dict[str, str]:
        """Return hashes of all rows that identify the problem, by argument name, for any number of workers."""
        return self.whole.fingerprints if self.whole else self._hashes(np.arange(len(self.X)))

    def _hashes(self, numbers: np.ndarray) -> dict[str, str]:
        """Return the ``fingerprints`` of the rows of all workers, from those of this one and their numbers."""
        arrays = {
            "X": self.X,
            "y": self.targets,
            "sample_weight": (self.weight * self.weight_unit)[:, None],
            "validation": self.held_out[:, None],
        }
        return {
            name: fingerprint(rows)
            if isinstance(rows, SparseRows)
            else combined_hash(row_hashes(np.ascontiguousarray(rows)), numbers, self.row_group)
            for name, rows in arrays.items()
        }


class WholeProblem(NamedTuple):
    """Properties of all rows of a problem whose rows workers share."""

    n_rows: int
    has_validation: bool
    fingerprints: dict[str, str]


def share_of_rows(group: ProcessGroup, count: int, unit: int = 1, *, trained: bool = False) -> np.ndarray:
    """Return the indices of this worker's rows: contiguous ranges whose lengths differ by at most one unit.

    Raise InputError if ``trained`` rows are fewer than workers.
    """
    if trained and count < group.size:
        raise InputError(f"X must have a row for each of the {group.size} shares of the rows, got {count}")
    unit = unit if count >= unit * group.size else 1
    units = -(-count // unit)
    first, end = (min(units * rank // group.size * unit, count) for rank in (group.rank, group.rank + 1))
    return np.arange(first, end)


def loss_for_targets(loss: Loss, targets: np.ndarray, weight: np.ndarray, shares: RowShares) -> Loss:
    """Return ``loss.for_targets`` of the rows of all workers, of which this one has ``targets`` and ``weight``."""
    if type(loss).for_targets is Loss.for_targets:  # no parameter is relative to the targets
        return loss
    return loss.for_targets(shares.gather(targets), shares.gather(weight))


def fingerprint(array: Rows) -> str:
    """Return a hash of the shape, the type and the entries of an array."""
    if isinstance(array, SparseRows):
        parts = [fingerprint(part) for part in (array.indptr, array.indices, array.values)]
        return fingerprint(np.frombuffer(f"{array.shape} {parts}".encode(), np.uint8))
    array = np.ascontiguousarray(array)
    kind = f"{array.dtype.str} {array.shape} ".encode()
    total = hashlib.blake2b(kind, digest_size=8)
    total.update(array.reshape(-1).view(np.uint8).data)
    return total.hexdigest()


def _check_output_scale(network: ShiftedReLUNetwork) -> None:
    """Raise InputError for a scale κ at which steps, of order 1/κ, are below rounding or overflow when squared."""
    limits = np.finfo(network.dtype)
    low, high = float(limits.tiny) ** 0.25, 1.0 / float(limits.eps)
    if not low <= network.output_scale <= high:
        raise InputError(
            f"output_scale must be between {low:.1g} and {high:.1g} to train in {network.dtype}, got "
            f"{network.output_scale:g}; use 1000 or less"
        )


def _check_pair(
    network, X, y, loss: Loss, what: str, any_norm: bool, *, may_be_empty: bool = False
) -> tuple[Rows, np.ndarray]:
    X = network.check_rows(X, f"{what}X")
    if len(X) == 0 and not may_be_empty:
        raise InputError(f"{what}X has no rows")
    norms = row_norms(X)
    off = np.flatnonzero(np.abs(norms - 1.0) > 1e-4)
    if len(off) and not any_norm:
        raise InputError(
            f"rows of {what}X must have norm 1, row {off[0]} has {norms[off[0]]:.6g}; divide rows by their norm, use "
            f"the estimators (they do it), or pass any_norm=True"
        )
    refuse_masked(f"{what}y", y)
    try:
        targets = np.asarray(y, np.float64)
    except (TypeError, ValueError):
        raise InputError(f"{what}y must hold numbers; encode classes as 0/1 or one-hot") from None
    if targets.ndim == 1:
        targets = targets[:, None]
    if loss.outputs_per_target > 1 and targets.ndim == 2 and targets.shape[1] == 1:
        targets = np.repeat(targets, network.n_outputs, axis=1)
    if targets.shape != (len(X), network.n_outputs):
        raise InputError(f"{what}y must have shape ({len(X)}, {network.n_outputs}), got {np.shape(y)}")
    if not np.isfinite(targets).all():
        raise InputError(f"{what}y must be finite, row {np.argwhere(~np.isfinite(targets))[0][0]} is not")
    loss.check_targets(targets)
    return X, targets


def _check_weight(sample_weight, n: int) -> np.ndarray:
    if sample_weight is None:
        return np.ones(n)
    refuse_masked("sample_weight", sample_weight)
    try:
        weight = np.asarray(sample_weight, np.float64)
    except (TypeError, ValueError):
        raise InputError("sample_weight must hold numbers") from None
    if weight.shape != (n,):
        raise InputError(f"sample_weight must have shape ({n},), got {weight.shape}")
    if not (np.isfinite(weight).all() and weight.min() >= 0):
        raise _invalid_weights()
    return weight


def _invalid_weights() -> InputError:
    return InputError("sample_weight must be finite, at least 0, and not 0 everywhere")


def _mean_weight(weight: np.ndarray) -> tuple[float, float]:
    """Return the largest weight, and the mean weight divided by it, since sums may overflow."""
    largest = float(weight.max())
    return largest, float(np.mean(weight / largest)) if largest else 0.0


def _unit_of_mean(largest: float, mean: float) -> float:
    """Return the power of two nearest to the mean weight, or 1 if that is within 2^±16.

    Division by a power of two changes no digits unless numbers over- or underflow.
    """
    if not largest:
        return 1.0
    exponent = int(np.clip(np.round(np.log2(largest * mean)), -1022, 1022))
    return 1.0 if abs(exponent) <= _UNSCALED_EXPONENT else float(np.ldexp(1.0, exponent))


def _check_sizes(targets: np.ndarray, weight: np.ndarray, scaled: np.ndarray, dtype: np.dtype, what: str) -> None:
    """Raise InputError if the loss, or the gradient in the network's precision, would not be finite.

    ``scaled`` are the weights in units of ``weight_unit``, which gradients are computed with.
    """
    sizes = np.abs(targets).max(axis=1)
    with np.errstate(over="ignore", invalid="ignore"):
        squares = np.where(weight > 0, weight * np.square(targets).sum(axis=1), 0.0)
        gradients = scaled * np.maximum(sizes, 1.0)
        if not squares.sum() <= _MAX_LOSS:
            limit, shares = f"the sum of {'' if what else 'sample_weight · '}y² to be finite", squares
        elif not what and not gradients.sum() <= _MAX_GRADIENT * float(np.finfo(dtype).max):
            limit, shares = f"gradients to be finite in {dtype}", gradients
        else:
            return
    worst = int(np.argmax(shares))
    remedies = ["divide y by its standard deviation"]
    at_weight = ""
    if weight[worst] != 1.0:
        at_weight = f" at weight {weight[worst]:g}"
        remedies.append("sample_weight by its mean")
    if shares is gradients and dtype == np.float32:
        remedies.append("use dtype='float64'")
    value = targets[worst, np.argmax(np.abs(targets[worst]))]
    raise InputError(
        f"{what}y must be small enough for {limit}, row {worst} holds {value:g}{at_weight}; {', or '.join(remedies)}"
    )
