"""Gradients of wide weights that an optimizer computes together with its update.

The gradient of a layer's weights is a sum over active pairs. Writing it to memory, (m, d), and reading it again costs
more than the sum. If a weight belongs to an optimizer of ``fireset.nn.optim``, the backward pass of the layer therefore
stores the active pairs and the gradient of the outputs (``DeferredGradient``), and ``weight.grad`` stays None.
"""

from typing import TYPE_CHECKING, Any, NamedTuple
from weakref import ref

import numpy as np
import torch
from torch.utils.weak import WeakTensorKeyDictionary

if TYPE_CHECKING:
    from fireset.engines.batch_pairs import BatchPairs


class Term(NamedTuple):
    """The gradient Σ_i active (Σ_c a_rc residual_ic) x_i of one backward pass, not yet computed."""

    active: "BatchPairs"
    outputs: np.ndarray  # (m, c), a_rc
    residual: np.ndarray  # (k, c), ∂L/∂f · κ/√m

    def gradients(self) -> np.ndarray:
        """Compute the gradient, (m, at least d)."""
        return self.active.weight_gradients(self.outputs, self.residual, len(self.outputs))


class DeferredGradient:
    """The gradient of one weight as a sum of terms, for the optimizer that owns the weight."""

    def __init__(self, owner: Any):
        self._owner = ref(owner)
        self.terms: list[Term] = []

    @property
    def has_owner(self) -> bool:
        """Whether the optimizer still exists."""
        return self._owner() is not None


_DEFERRED: Any = WeakTensorKeyDictionary()


def defer_gradient(weight: torch.Tensor, owner: Any) -> DeferredGradient:
    """Let ``owner`` compute the gradient of ``weight`` from now on; an earlier owner receives no more gradients."""
    _DEFERRED[weight] = gradient = DeferredGradient(owner)
    return gradient


def deferred_gradient(weight: torch.Tensor) -> DeferredGradient | None:
    """Return the deferred gradient of a weight; None if no optimizer that still exists owns it."""
    gradient = _DEFERRED.get(weight)
    return gradient if gradient is not None and gradient.has_owner else None
