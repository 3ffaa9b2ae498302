"""``Adam``: the optimizer of PyTorch, with one fused pass over the weights of ``ShiftedReLU`` layers.

Adam moves a neuron without gradient by its momentum, so a step must access every neuron that was ever active. The
update of several skipped steps has no closed form: with ε > 0 it is a sum of quotients that differ in every coordinate.
Steps are therefore not skipped, but a step accesses each *moving* neuron once (``fireset.kernels.adam``), and no other
neuron. Weights are up to date after every step, and the candidate lists of an attached table need no special treatment:
the next pass measures how far neurons have moved.
"""

from collections.abc import Callable
from math import sqrt
from typing import Any

import numpy as np
import torch
from torch.autograd.graph import increment_version

from fireset._util.errors import InputError
from fireset._util.parallel import parallel_map
from fireset.engines.batch_pairs import task_ranges
from fireset.kernels.adam import adam_blocks, adam_rows
from fireset.nn.deferred import DeferredGradient, defer_gradient

_OPTIONS_THAT_MUST_BE_OFF = ("weight_decay", "amsgrad", "maximize", "decoupled_weight_decay")


class Adam(torch.optim.Optimizer):
    """``torch.optim.Adam`` with a fused step for the weights of ``fireset.nn.ShiftedReLU``.

    Weights equal those of ``torch.optim.Adam`` up to rounding. For the weight of a ``ShiftedReLU`` the backward pass
    stores the active pairs instead of a gradient, and ``step`` computes gradient, moments and weights in one pass over
    the neurons that are or were active. Its ``grad`` stays None while this optimizer exists, unless the backward pass
    is differentiated itself (``create_graph=True``). All other parameters are updated as in PyTorch.

    States have the format of ``torch.optim.Adam``: either optimizer loads the ``state_dict`` of the other.

    Parameters
    ----------
    params : iterable of parameters or of parameter groups
    lr : float
        Learning rate.
    betas : (float, float)
        β₁ and β₂, the decay of the moments.
    eps : float
        ε, added to the denominator; must be positive.

    Examples
    --------
    >>> import torch
    >>> from fireset.nn import ShiftedReLU
    >>> from fireset.nn.optim import Adam
    >>> x = torch.nn.functional.normalize(torch.randn(5, 8))
    >>> layer = ShiftedReLU(8, 1000).attach(x)
    >>> optimizer = Adam(layer.parameters(), lr=0.01)
    >>> layer(rows=[0, 3]).square().sum().backward()
    >>> optimizer.step()
    """

    def __init__(
        self,
        params: Any,
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
    ):
        self._deferred: dict[torch.Tensor, DeferredGradient] = {}
        self._moving: dict[torch.Tensor, np.ndarray] = {}
        super().__init__(params, {"lr": lr, "betas": betas, "eps": eps, "weight_decay": 0.0, "amsgrad": False})

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add a group of parameters, as in ``torch.optim.Optimizer``."""
        super().add_param_group(param_group)
        group = self.param_groups[-1]
        try:
            _check_group(group)
        except InputError:
            self.param_groups.pop()
            raise
        for parameter in group["params"]:
            self._deferred[parameter] = defer_gradient(parameter, self)

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Discard all gradients, those that ``step`` has not computed yet included.

        ``torch.nn.Module.zero_grad`` does not reach the latter, which the next ``step`` would still apply.
        """
        super().zero_grad(set_to_none)
        for gradient in self._deferred.values():
            gradient.terms.clear()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load a state of this optimizer or of ``torch.optim.Adam``."""
        for group in state_dict["param_groups"]:
            _check_group(group)
        super().load_state_dict(state_dict)
        self._moving.clear()

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        if "_deferred" not in vars(self):  # a copy by ``pickle`` or ``copy``
            parameters = [parameter for group in self.param_groups for parameter in group["params"]]
            self._deferred = {parameter: defer_gradient(parameter, self) for parameter in parameters}
            self._moving = {}

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Update all parameters that have a gradient; return the value of ``closure``, if given."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            _check_group(group)
            for parameter in group["params"]:
                terms = self._deferred[parameter].terms
                if terms:
                    self._step_wide(parameter, group)
                elif parameter.grad is not None:
                    self._step_plain(parameter, group)
        return loss

    def _moments(self, parameter: torch.Tensor) -> tuple[int, torch.Tensor, torch.Tensor]:
        """Return the number of this step, and both moments."""
        state = self.state[parameter]
        if not state:
            state["step"] = torch.tensor(0.0)
            for name in ("exp_avg", "exp_avg_sq"):
                state[name] = torch.zeros_like(parameter, memory_format=torch.preserve_format)
        state["step"] += 1
        return int(state["step"]), state["exp_avg"], state["exp_avg_sq"]

    def _step_wide(self, weight: torch.Tensor, group: dict[str, Any]) -> None:
        """Update the weights of a wide layer by Adam, from its deferred terms and ``grad``; discard the terms."""
        count, mean, square = self._moments(weight)
        moving = self._moving.get(weight)
        if moving is None:
            moving = ((mean != 0) | (square != 0)).any(dim=1).numpy().view(np.uint8)
            self._moving[weight] = moving
        W, means, squares = weight.numpy(), mean.numpy(), square.numpy()
        rule = tuple(W.dtype.type(value) for value in _rule(group, count))
        terms = self._deferred[weight].terms
        if len(terms) == 1 and weight.grad is None and terms[0].active.parts:
            (active, outputs, residual), block = terms[0], terms[0].active.block
            parallel_map(
                lambda part: adam_blocks(
                    W, means, squares, moving, active.batch, outputs, residual, part[1], block, rule, *part[0]
                ),
                active.parts,
            )
        else:
            gradients = sum((term.gradients() for term in terms[1:]), terms[0].gradients())
            if weight.grad is not None:
                gradients[:, : W.shape[1]] += _dense(weight).numpy()
            parallel_map(lambda span: adam_rows(W, means, squares, moving, gradients, rule, *span), task_ranges(len(W)))
        terms.clear()
        for changed in (weight, mean, square):  # they were changed through NumPy, which autograd does not see
            increment_version(changed)

    def _step_plain(self, parameter: torch.Tensor, group: dict[str, Any]) -> None:
        """Update a parameter by its ``grad``, with the operations of PyTorch."""
        gradient = _dense(parameter)
        count, mean, square = self._moments(parameter)
        self._moving.pop(parameter, None)
        one_minus_beta1, beta2, one_minus_beta2, rate, root_factor, eps = _rule(group, count)
        mean.lerp_(gradient, one_minus_beta1)
        square.mul_(beta2).addcmul_(gradient, gradient, value=one_minus_beta2)
        parameter.addcdiv_(mean, (square.sqrt() * root_factor).add_(eps), value=-rate)


def _rule(group: dict[str, Any], count: int) -> tuple[float, ...]:
    """Return (1 − β₁, β₂, 1 − β₂, lr/(1 − β₁ᵗ), 1/√(1 − β₂ᵗ), ε) for step t = ``count``."""
    beta1, beta2 = group["betas"]
    rate = float(group["lr"]) / (1 - beta1**count)
    return 1 - beta1, beta2, 1 - beta2, rate, 1 / sqrt(1 - beta2**count), group["eps"]


def _dense(parameter: torch.Tensor) -> torch.Tensor:
    assert parameter.grad is not None
    if parameter.grad.is_sparse:
        raise InputError("gradients must be dense, got a sparse one; use torch.optim.SparseAdam")
    return parameter.grad


def _check_group(group: dict[str, Any]) -> None:
    """Raise ``InputError`` for values that this optimizer does not support."""
    lr, betas, eps = group["lr"], group["betas"], group["eps"]
    if not 0 <= float(lr) < float("inf"):
        raise InputError(f"`lr` must be a number of at least 0, got {lr}.")
    if len(betas) != 2 or not all(0 <= beta < 1 for beta in betas):
        raise InputError(f"`betas` must be two numbers of at least 0 and below 1, got {betas}.")
    if not 0 < eps < float("inf"):
        raise InputError(f"`eps` must be positive, got {eps}.")
    for name in _OPTIONS_THAT_MUST_BE_OFF:
        if group.get(name):
            raise InputError(f"`{name}` must be off, got {group[name]}; use torch.optim.Adam.")
