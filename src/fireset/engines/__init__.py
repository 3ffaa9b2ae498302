"""How the fire sets are found: one file for each way, one contract for all (``base.py``)."""

from fireset.engines.base import Engine, EngineWork
from fireset.engines.registry import choose, create, describe, expected_costs
from fireset.engines.step_rule import RowGradients, StepRule

__all__ = [
    "Engine",
    "EngineWork",
    "RowGradients",
    "StepRule",
    "choose",
    "create",
    "describe",
    "expected_costs",
]
