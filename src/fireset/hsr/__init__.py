"""Exact half-space reporting: all points with ⟨normal, point⟩ > threshold. Needs no network."""

from fireset.hsr.balls import BallIndex
from fireset.hsr.base import HalfSpaceIndex, Report, TopK
from fireset.hsr.registry import build, check_kind, choose, kinds
from fireset.hsr.saving import load

__all__ = ["BallIndex", "HalfSpaceIndex", "Report", "TopK", "build", "check_kind", "choose", "kinds", "load"]
