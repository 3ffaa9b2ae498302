"""How the fire sets are found: one file for each way, one contract for all."""

from fireset.engines.base import Engine, EngineWork, Step, choose, create, describe, expected_costs

__all__ = ["Engine", "EngineWork", "Step", "choose", "create", "describe", "expected_costs"]
