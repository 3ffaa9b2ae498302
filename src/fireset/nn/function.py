"""f(x) = (κ/√m) σ_b(x Wᵀ) A for autograd: first and second derivatives over the active pairs."""

from threading import Lock
from typing import Any, NamedTuple

import numpy as np
import torch
from torch.autograd import Function

from fireset._util.aligned import aligned_rows
from fireset._util.errors import InputError
from fireset._util.parallel import one_blas_thread
from fireset.engines.batch_pairs import BatchPairs, find_active_pairs, kernel_neurons
from fireset.engines.row_lists import RowLists
from fireset.kernels.row_lists import Neurons
from fireset.nn.deferred import DeferredGradient, Term


class AttachedTable:
    """Rows X (n, d), and the candidate lists of neurons for them.

    A pass changes the lists, so each pass holds a lock. Copies by ``pickle`` or ``copy`` have their own lock and make
    their lists again.
    """

    def __init__(self, X: torch.Tensor):
        self.X = X
        self._lock = Lock()
        self._lists: RowLists | None = None

    def __len__(self) -> int:
        return len(self.X)

    def find_active_pairs(
        self, neurons: Neurons, rows: np.ndarray, *, with_values: bool
    ) -> tuple[np.ndarray, BatchPairs]:
        """Return sums and active pairs of rows, given by number, in the precision of the weights."""
        with self._lock:
            lists = self._checked_lists(rows, neurons.weights.dtype)
            lists.measure_drifts(neurons)
            return lists.find_active_pairs(neurons, rows, with_values=with_values)

    def _checked_lists(self, rows: np.ndarray, dtype: np.dtype) -> RowLists:
        """Return the lists; raise ``InputError`` if X has changed since they were made."""
        X = self.X.detach().numpy()
        if self._lists is None or dtype != self._lists.samples.dtype:
            self._lists = RowLists(np.ascontiguousarray(X, dtype))
        used = X[rows].astype(dtype, copy=False)
        if not np.array_equal(used, self._lists.samples[rows, : used.shape[1]]):
            raise InputError("the attached X has changed; call attach(X) again")
        return self._lists

    def __getstate__(self) -> dict[str, Any]:
        return {"X": self.X}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(state["X"])


class Call(NamedTuple):
    """The arguments of a pass that are not tensors."""

    threshold: float
    divisor: float  # √m/κ
    table: AttachedTable | None
    rows: np.ndarray | None  # row numbers of the table
    sparse: bool  # whether ∂L/∂W is sparse, with one row per active neuron
    deferred: DeferredGradient | None = None  # receives ∂L/∂W in place of autograd


class ActivePairs(Function):
    """``ActivePairs.apply(weight, outputs, x, call)``; x is None for rows of an attached table."""

    @staticmethod
    def forward(ctx, weight: torch.Tensor, outputs: torch.Tensor, x: torch.Tensor | None, call: Call) -> torch.Tensor:
        neurons = kernel_neurons(_array(weight), _array(outputs), call.threshold)
        with_values = ctx.needs_input_grad[1]
        with one_blas_thread():  # others would keep spinning on cores that the kernels of this step need
            if x is None:
                assert call.table is not None
                assert call.rows is not None
                sums, active = call.table.find_active_pairs(neurons, call.rows, with_values=with_values)
            else:
                sums, active = find_active_pairs(neurons, _array(x), with_values=with_values)
        ctx.save_for_backward(weight, outputs, *(() if x is None else (x,)))
        ctx.call, ctx.active = call, active
        with np.errstate(over="ignore"):
            return torch.from_numpy((sums / call.divisor).astype(neurons.weights.dtype))

    @staticmethod
    def backward(ctx, *gradients: torch.Tensor):  # pyright: ignore[reportIncompatibleMethodOverride]
        weight, outputs, *x = ctx.saved_tensors  # raises if one of them was changed in place since the forward pass
        if torch.is_grad_enabled() and ctx.call.sparse:
            raise InputError("sparse gradients cannot be differentiated again; construct the layer with sparse=False")
        needed = ctx.needs_input_grad[:3]
        if needed[0] and ctx.call.deferred is not None and not torch.is_grad_enabled():
            ctx.call.deferred.terms.append(_term(ctx.active, outputs, gradients[0] / ctx.call.divisor, x))
            needed = (False, *needed[1:])
        return *_Gradients.apply(weight, outputs, x[0] if x else None, *gradients, ctx.call, ctx.active, needed), None


class _Gradients(Function):
    """∂L/∂W, ∂L/∂A and ∂L/∂x as functions of W, A, x and g = ∂L/∂f.

    With h = g/divisor and sums over active pairs,

        gW_r = Σ_i ⟨a_r, h_i⟩ x_i,  gA_r = Σ_i (⟨w_r, x_i⟩ − b) h_i,  gx_i = Σ_r ⟨a_r, h_i⟩ w_r.

    ``backward`` differentiates ⟨U, gW⟩ + ⟨V, gA⟩ + ⟨T, gx⟩. The set of active pairs is locally constant.
    """

    @staticmethod
    def forward(ctx, weight, outputs, x, gradient, call: Call, active: BatchPairs, needed: tuple[bool, ...]):
        ctx.save_for_backward(weight, outputs, gradient, *(() if x is None else (x,)))
        ctx.call, ctx.active = call, active
        ctx.set_materialize_grads(False)
        A, scaled = _array(outputs), _array(gradient / call.divisor)
        for_weight = for_outputs = for_x = None
        if needed[0]:
            for_weight = _weight_gradient(active, A, scaled, weight, call.sparse)
        if needed[1]:
            for_outputs = torch.from_numpy(active.output_gradients(scaled, len(weight)))
        if needed[2]:
            neurons = kernel_neurons(_array(weight), A, call.threshold)
            for_x = _unpadded(active.row_gradients(neurons, scaled), weight)
        return for_weight, for_outputs, for_x

    @staticmethod
    def backward(ctx, *cotangents: torch.Tensor | None):  # pyright: ignore[reportIncompatibleMethodOverride]
        if torch.is_grad_enabled():
            raise InputError(
                "third derivatives are not supported (create_graph=True in a double backward); use layer.to_dense()"
            )
        weight, outputs, gradient, *_ = ctx.saved_tensors
        call, active, m = ctx.call, ctx.active, len(weight)
        for_weight, for_outputs, for_x = (None if each is None else _array(each) for each in cotangents)
        A, scaled = _array(outputs), _array(gradient / call.divisor)
        totals: list[torch.Tensor | None] = [None, None, None, None]

        def add(position: int, term: torch.Tensor) -> None:
            before = totals[position]
            totals[position] = term if before is None else before + term

        W = kernel_neurons(_array(weight), A, call.threshold)
        products = []  # matrices (v, z) for which Σ ⟨v_r, z_i⟩ multiplies ⟨a_r, h_i⟩
        if for_weight is not None:
            U = kernel_neurons(for_weight, A, call.threshold)
            products.append((U.weights, active.batch.samples))
            if ctx.needs_input_grad[2]:
                add(2, _unpadded(active.row_gradients(U, scaled), weight))
        if for_x is not None:
            moved = active._replace(batch=active.batch._replace(samples=aligned_rows(for_x)))
            products.append((W.weights, moved.batch.samples))
            if ctx.needs_input_grad[0]:
                add(0, _unpadded(moved.weight_gradients(A, scaled, m), weight))
        if for_outputs is not None:
            if ctx.needs_input_grad[0]:
                add(0, _unpadded(active.weight_gradients(for_outputs, scaled, m), weight))
            if ctx.needs_input_grad[2]:
                add(2, _unpadded(active.row_gradients(W._replace(outputs=for_outputs), scaled), weight))
            if ctx.needs_input_grad[3]:
                add(3, torch.from_numpy(active.sums(for_outputs) / call.divisor).to(gradient.dtype))
        if products and (ctx.needs_input_grad[1] or ctx.needs_input_grad[3]):
            with_products = active.with_products(*products)
            if ctx.needs_input_grad[1]:
                add(1, torch.from_numpy(with_products.output_gradients(scaled, m)))
            if ctx.needs_input_grad[3]:
                add(3, torch.from_numpy(with_products.sums(A) / call.divisor).to(gradient.dtype))
        return *totals, None, None, None


def _array(tensor: torch.Tensor) -> np.ndarray:
    return tensor.detach().contiguous().numpy()


def _term(active: BatchPairs, outputs: torch.Tensor, residual: torch.Tensor, x: list[torch.Tensor]) -> Term:
    """Return ∂L/∂W as a term that does not depend on later changes of A and x."""
    A = _array(outputs)
    if x and np.shares_memory(active.batch.samples, x[0].detach().numpy()):
        active = active._replace(batch=active.batch._replace(samples=active.batch.samples.copy()))
    return Term(active, A.copy() if outputs.requires_grad else A, _array(residual))


def _unpadded(rows: np.ndarray, like: torch.Tensor) -> torch.Tensor:
    return torch.from_numpy(np.ascontiguousarray(rows[:, : like.shape[1]]))


def _weight_gradient(
    active: BatchPairs, outputs: np.ndarray, scaled: np.ndarray, weight: torch.Tensor, sparse: bool
) -> torch.Tensor:
    dense = _unpadded(active.weight_gradients(outputs, scaled, len(weight)), weight)
    if not sparse:
        return dense
    neurons = torch.from_numpy(active.active_neurons(len(weight)))
    return torch.sparse_coo_tensor(
        neurons[None], dense[neurons], weight.shape, is_coalesced=True, check_invariants=False
    )
