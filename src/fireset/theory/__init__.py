"""The shifted neural tangent kernel."""

from fireset.theory.kernel import largest_eigenvalue, shifted_ntk, smallest_eigenvalue

__all__ = ["largest_eigenvalue", "shifted_ntk", "smallest_eigenvalue"]
