"""How the weights are moved from one iteration to the next: one file for each way, one contract (``base.py``)."""

from fireset.training.solvers.base import Evaluation, Solver, SolverContext
from fireset.training.solvers.gradient import GradientDescent

__all__ = ["Evaluation", "GradientDescent", "Solver", "SolverContext"]
