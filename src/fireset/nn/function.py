"""f(x) = (κ/√m) σ_b(x Wᵀ) A for autograd: forward finds the pairs that fire, backward goes over those alone."""

from typing import NamedTuple

import numpy as np
import torch
from torch.autograd import Function
from torch.autograd.function import once_differentiable

from fireset.engines.fired_rows import FiredRows, fire_rows, neurons_of
from fireset.engines.row_lists import RowLists


class Call(NamedTuple):
    """What a pass needs to know besides tensors."""

    threshold: float
    divisor: float  # √m/κ
    lists: RowLists | None  # of an attached table
    rows: np.ndarray | None  # of it
    sparse: bool  # whether ∂L/∂W has rows only for the neurons that fired


class FiredPairs(Function):
    """``FiredPairs.apply(weight, outputs, x, call)``; x is None for rows of an attached table."""

    @staticmethod
    def forward(ctx, weight: torch.Tensor, outputs: torch.Tensor, x: torch.Tensor | None, call: Call) -> torch.Tensor:
        neurons = neurons_of(weight.detach().numpy(), outputs.detach().contiguous().numpy(), call.threshold)
        options = {"with_values": ctx.needs_input_grad[1]}
        if x is None:
            assert call.lists is not None
            assert call.rows is not None
            call.lists.follow(neurons)
            sums, fired = call.lists.fire(neurons, call.rows, **options)
        else:
            sums, fired = fire_rows(neurons, x.detach().numpy(), **options)
        ctx.save_for_backward(weight, outputs, *(() if x is None else (x,)))
        ctx.call, ctx.fired = call, fired
        return torch.from_numpy((sums / call.divisor).astype(weight.detach().numpy().dtype))

    @staticmethod
    @once_differentiable
    def backward(ctx, *gradients: torch.Tensor):  # pyright: ignore[reportIncompatibleMethodOverride]
        weight, outputs = ctx.saved_tensors[:2]  # refuses, as ever, if somebody has changed them in the meantime
        call, fired = ctx.call, ctx.fired
        pushes = np.ascontiguousarray((gradients[0] / call.divisor).numpy())
        coefficients = outputs.detach().contiguous().numpy()
        for_weight = for_outputs = for_x = None
        if ctx.needs_input_grad[0]:
            for_weight = _weight_gradient(fired, coefficients, pushes, weight, call.sparse)
        if ctx.needs_input_grad[1]:
            for_outputs = torch.from_numpy(fired.output_gradients(pushes, len(weight)))
        if ctx.needs_input_grad[2]:
            neurons = neurons_of(weight.detach().numpy(), coefficients, call.threshold)
            for_x = torch.from_numpy(fired.row_gradients(neurons, pushes)[:, : weight.shape[1]].copy())
        return for_weight, for_outputs, for_x, None


def _weight_gradient(
    fired: FiredRows, outputs: np.ndarray, pushes: np.ndarray, weight: torch.Tensor, sparse: bool
) -> torch.Tensor:
    gradients = fired.weight_gradients(outputs, pushes, len(weight))[:, : weight.shape[1]]
    dense = torch.from_numpy(np.ascontiguousarray(gradients))
    if not sparse:
        return dense
    neurons = torch.from_numpy(fired.neurons(len(weight)))
    return torch.sparse_coo_tensor(
        neurons[None], dense[neurons], weight.shape, is_coalesced=True, check_invariants=False
    )
