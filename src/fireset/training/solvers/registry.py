"""Solvers by name, each with those of a user's settings that it takes."""

from collections.abc import Mapping
from inspect import signature
from typing import Any

from fireset._util.errors import InputError
from fireset._util.registry import Registry
from fireset.training.solvers.base import Solver
from fireset.training.solvers.gradient import GradientDescent
from fireset.training.solvers.mini_batches import MiniBatchDescent

_BUILT_IN = {
    "gradient": "fireset.training.solvers.gradient:GradientDescent",
    "gauss-newton": "fireset.training.solvers.gauss_newton:GaussNewton",
}
SOLVERS = Registry("fireset.solvers", _BUILT_IN)


def make_solver(solver: str | Solver, settings: Mapping[str, Any]) -> Solver:
    """A solver by name, or the object itself; of the settings it is given those that its class takes."""
    if isinstance(solver, Solver):
        return solver
    if not isinstance(solver, str) or solver not in SOLVERS:
        raise InputError(f"solver must be one of {', '.join(SOLVERS)}, or an object; got {solver!r}")
    cls = SOLVERS.load(solver, Solver)
    for name in ("batch_size", "trained_outputs"):
        if settings.get(name) and cls is not GradientDescent:
            raise InputError(f"{name} is for solver='gradient', got solver={solver!r}")
    if settings.get("batch_size") is not None:
        if settings.get("trained_outputs"):
            raise InputError("trained_outputs needs full batches; leave batch_size out, or use fireset.nn.ShiftedReLU")
        cls = MiniBatchDescent
    return cls(**{name: value for name, value in settings.items() if name in signature(cls).parameters})
