"""Exact half-space reporting: every point with ⟨normal, point⟩ > threshold. Usable without any network."""

from fireset.hsr.base import HalfSpaceIndex, Report
from fireset.hsr.registry import build, check_kind, choose, kinds

__all__ = ["HalfSpaceIndex", "Report", "build", "check_kind", "choose", "kinds"]
