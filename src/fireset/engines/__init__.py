"""Engines: methods to find the active pairs of every iteration. One file per method, one contract (``base.py``)."""

from fireset.engines.base import Engine, EngineWork
from fireset.engines.registry import choose, create, describe, expected_costs
from fireset.engines.step_rule import NeuronGradients, StepRule

__all__ = [
    "Engine",
    "EngineWork",
    "NeuronGradients",
    "StepRule",
    "choose",
    "create",
    "describe",
    "expected_costs",
]
