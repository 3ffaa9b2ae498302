"""Exact half-space reporting: every point with ⟨normal, point⟩ > threshold. Usable without any network."""

from fireset.hsr.balls import BallIndex
from fireset.hsr.base import HalfSpaceIndex, Report
from fireset.hsr.largest import Largest
from fireset.hsr.registry import build, check_kind, choose, kinds
from fireset.hsr.saving import load

__all__ = ["BallIndex", "HalfSpaceIndex", "Largest", "Report", "build", "check_kind", "choose", "kinds", "load"]
