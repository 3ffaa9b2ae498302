"""Solvers by name."""

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
    "nystrom": "fireset.training.solvers.nystrom:NystromGaussNewton",
}
SOLVERS = Registry("fireset.solvers", _BUILT_IN)
DESCENT, LEAST_SQUARES, CENTRES = "gradient", "gauss-newton", "nystrom"  # "auto" of the estimators chooses from these


def solver_class(solver: str | Solver) -> type[Solver]:
    """Return the class of a solver, for its label and defaults; ``Solver`` itself for an unknown name."""
    if isinstance(solver, Solver):
        return type(solver)
    return SOLVERS.load(solver, Solver) if solver in SOLVERS else Solver


def make_solver(solver: str | Solver, settings: Mapping[str, Any]) -> Solver:
    """Return the solver of a name, made with the settings that its class accepts, or ``solver`` itself."""
    if isinstance(solver, Solver):
        return solver
    if not isinstance(solver, str) or solver not in SOLVERS:
        raise InputError(f"solver must be one of {', '.join(SOLVERS)}, or an object; got {solver!r}")
    cls = SOLVERS.load(solver, Solver)
    if settings.get("batch_size") is not None and cls is GradientDescent:
        if settings.get("trained_outputs"):
            raise InputError("trained_outputs needs full batches; leave batch_size out, or use fireset.nn.ShiftedReLU")
        cls = MiniBatchDescent
    accepted = signature(cls).parameters
    for name, solvers in (("batch_size", "'gradient'"), ("trained_outputs", "'gradient', 'gauss-newton' or 'nystrom'")):
        if settings.get(name) and name not in accepted:
            raise InputError(f"{name} is for solver={solvers}, got solver={solver!r}")
    return cls(**{name: value for name, value in settings.items() if name in accepted})
