"""What is trained on: rows, targets and weights, checked once, validation rows at the end."""

import hashlib
from collections.abc import Sized
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from fireset._util.errors import InputError
from fireset._util.rounding import row_norms
from fireset.network import ShiftedReLUNetwork
from fireset.sparse_rows import Rows, SparseRows, stacked

_LARGEST_LOSS = 1e300  # leaves room for predictions that are off by more than the targets
_LARGEST_PUSH = 1e-3  # of the largest number of the network's precision, for the same reason


@dataclass(frozen=True)
class TrainingProblem:
    """Checked data; validation rows follow the training rows and have weight 0.

    Attributes
    ----------
    X : (n, d) array or SparseRows
        In the network's precision.
    targets : (n, c) array
    weight : (n,) array
        Of the rows that are trained on; 0 for validation rows, which so ride along in the engine without pushing.
    held_out : (n,) array
        1 for validation rows, 0 for the others.
    """

    X: Rows
    targets: np.ndarray
    weight: np.ndarray
    held_out: np.ndarray

    @classmethod
    def check(
        cls,
        network: ShiftedReLUNetwork,
        X: Any,
        y: Any,
        *,
        sample_weight: Any = None,
        validation: tuple[Any, Any] | None = None,
        any_norm: bool = False,
    ) -> "TrainingProblem":
        """Make one from what a user has passed, or refuse it with the reason."""
        X, targets = _check_pair(network, X, y, "", any_norm)
        weight = _check_weight(sample_weight, len(X))
        _check_sizes(targets, weight, network.dtype, "")
        if validation is None:
            return cls(X, targets, weight, np.zeros(len(X)))
        if not isinstance(validation, (tuple, list)) or len(validation) != 2:
            size = f" of {len(validation)}" if isinstance(validation, Sized) else ""
            raise InputError(f"validation must be a pair (X, y), got {type(validation).__name__}{size}")
        rows, held_targets = _check_pair(network, *validation, "validation ", any_norm)
        _check_sizes(held_targets, np.ones(len(rows)), network.dtype, "validation ")
        return cls(
            stacked(X, rows),
            np.concatenate([targets, held_targets]),
            np.concatenate([weight, np.zeros(len(rows))]),
            np.concatenate([np.zeros(len(X)), np.ones(len(rows))]),
        )

    @cached_property
    def has_validation(self) -> bool:
        return bool(self.held_out.any())

    def fingerprints(self) -> dict[str, str]:
        """What tells this problem from another, by the names that users know."""
        return {
            "X": fingerprint(self.X),
            "y": fingerprint(self.targets),
            "sample_weight": fingerprint(self.weight),
            "validation": fingerprint(self.held_out),
        }


def fingerprint(array: Rows) -> str:
    """A short text that tells one array from another."""
    if isinstance(array, SparseRows):
        parts = [fingerprint(part) for part in (array.indptr, array.indices, array.numbers)]
        return fingerprint(np.frombuffer(f"{array.shape} {parts}".encode(), np.uint8))
    array = np.ascontiguousarray(array)
    kind = f"{array.dtype.str} {array.shape} ".encode()
    total = hashlib.blake2b(kind, digest_size=8)
    total.update(array.reshape(-1).view(np.uint8).data)
    return total.hexdigest()


def _check_pair(network, X, y, what: str, any_norm: bool) -> tuple[Rows, np.ndarray]:
    X = network.check_rows(X, f"{what}X")
    if len(X) == 0:
        raise InputError(f"{what}X has no rows")
    norms = row_norms(X)
    off = np.flatnonzero(np.abs(norms - 1.0) > 1e-4)
    if len(off) and not any_norm:
        raise InputError(
            f"rows of {what}X must have norm 1, row {off[0]} has {norms[off[0]]:.6g}; divide rows by their norm, use "
            f"the estimators (they do it), or pass any_norm=True"
        )
    try:
        targets = np.asarray(y, np.float64)
    except (TypeError, ValueError):
        raise InputError(f"{what}y must hold numbers; code classes as 0/1 or one-hot") from None
    if targets.ndim == 1:
        targets = targets[:, None]
    if targets.shape != (len(X), network.n_outputs):
        raise InputError(f"{what}y must have shape ({len(X)}, {network.n_outputs}), got {np.shape(y)}")
    if not np.isfinite(targets).all():
        raise InputError(f"{what}y must be finite, row {np.argwhere(~np.isfinite(targets))[0][0]} is not")
    return X, targets


def _check_weight(sample_weight, n: int) -> np.ndarray:
    if sample_weight is None:
        return np.ones(n)
    try:
        weight = np.asarray(sample_weight, np.float64)
    except (TypeError, ValueError):
        raise InputError("sample_weight must hold numbers") from None
    if weight.shape != (n,):
        raise InputError(f"sample_weight must have shape ({n},), got {weight.shape}")
    if not (np.isfinite(weight).all() and weight.min() >= 0 and weight.max() > 0):
        raise InputError("sample_weight must be finite, at least 0, and not 0 everywhere")
    return weight


def _check_sizes(targets: np.ndarray, weight: np.ndarray, dtype: np.dtype, what: str) -> None:
    """Refuse targets whose loss is not a number, or whose gradient is none in the network's precision."""
    sizes = np.abs(targets).max(axis=1)
    with np.errstate(over="ignore", invalid="ignore"):
        squares = np.where(weight > 0, weight * np.square(targets).sum(axis=1), 0.0)
        pushes = weight * np.maximum(sizes, 1.0)
        if not squares.sum() <= _LARGEST_LOSS:
            limit, shares = f"the sum of {'' if what else 'sample_weight · '}y² to be finite", squares
        elif not what and not pushes.sum() <= _LARGEST_PUSH * float(np.finfo(dtype).max):
            limit, shares = f"gradients to be finite in {dtype}", pushes
        else:
            return
    worst = int(np.argmax(shares))
    remedies = ["divide y by its standard deviation"]
    at_weight = ""
    if weight[worst] != 1.0:
        at_weight = f" at weight {weight[worst]:g}"
        remedies.append("sample_weight by its mean")
    if shares is pushes and dtype == np.float32:
        remedies.append("use dtype='float64'")
    value = targets[worst, np.argmax(np.abs(targets[worst]))]
    raise InputError(
        f"{what}y must be small enough for {limit}, row {worst} holds {value:g}{at_weight}; {', or '.join(remedies)}"
    )
