"""Solvers: one file each, one contract (``base.py``), and a registry of names (``registry.py``)."""

from fireset.training.solvers.base import Solver
from fireset.training.solvers.gauss_newton import GaussNewton
from fireset.training.solvers.gradient import GradientDescent
from fireset.training.solvers.mini_batches import MiniBatchDescent
from fireset.training.solvers.nystrom import NystromGaussNewton
from fireset.training.solvers.registry import SOLVERS, make_solver, solver_class

__all__ = [
    "SOLVERS",
    "GaussNewton",
    "GradientDescent",
    "MiniBatchDescent",
    "NystromGaussNewton",
    "Solver",
    "make_solver",
    "solver_class",
]
