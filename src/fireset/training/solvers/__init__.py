"""How the weights are moved from one iteration to the next: one file for each way, one contract (``base.py``)."""

from fireset.training.solvers.base import Evaluation, Solver, SolverContext
from fireset.training.solvers.gauss_newton import GaussNewton
from fireset.training.solvers.gradient import GradientDescent
from fireset.training.solvers.mini_batches import MiniBatchDescent
from fireset.training.solvers.registry import SOLVERS, make_solver

__all__ = [
    "SOLVERS",
    "Evaluation",
    "GaussNewton",
    "GradientDescent",
    "MiniBatchDescent",
    "Solver",
    "SolverContext",
    "make_solver",
]
