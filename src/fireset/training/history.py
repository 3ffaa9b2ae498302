"""What a training run remembers of each iteration."""

import json
from dataclasses import asdict, dataclass, fields
from math import isfinite
from typing import Any

import numpy as np

from fireset._util.errors import InputError
from fireset.engines.base import Engine


@dataclass(frozen=True, slots=True)
class Iteration:
    """What one iteration saw. ``loss`` is L at its weights, before its step."""

    iteration: int
    loss: float
    validation_loss: float | None
    active_pairs: int
    active_fraction: float
    inner_products: int  # in this iteration, refreshes of the step before included
    refreshes: int
    learning_rate: float
    seconds: float  # since training began; preprocessing, compiling and choosing η apart
    oracle_queries: int | None = None  # of a quantum engine, in this iteration; the first one's include preprocessing
    missed_pairs: int | None = None  # pairs that fire and that its searches did not find


class History(list[Iteration]):
    """One ``Iteration`` after the other."""

    def column(self, name: str) -> np.ndarray:
        """One field of all iterations, e.g. ``history.column("loss")``."""
        if name not in {f.name for f in fields(Iteration)}:
            raise InputError(f"name must be one of {', '.join(f.name for f in fields(Iteration))}; got {name!r}")
        return np.array([getattr(record, name) for record in self])

    def to_csv(self) -> str:
        """A header and one line for each iteration; what was not measured is left empty."""
        names = [f.name for f in fields(Iteration)]
        lines = [",".join("" if value is None else str(value) for value in asdict(record).values()) for record in self]
        return "\n".join([",".join(names), *lines]) + "\n"

    def to_json(self) -> str:
        """A list with one object for each iteration. JSON knows no infinity: a loss beyond all numbers is null."""
        rows = self.to_dicts()
        for row in rows:
            row.update({name: None for name, value in row.items() if isinstance(value, float) and not isfinite(value)})
        return json.dumps(rows, indent=1)

    def to_dicts(self) -> list[dict[str, Any]]:
        return [asdict(record) for record in self]


class WorkCounter:
    """What an engine has done since the last iteration, from what it has done in all."""

    def __init__(self, engine: Engine):
        self._inner_products = self._refreshes = self._oracle_queries = 0
        self.skip(engine)

    def skip(self, engine: Engine, *, oracle_queries: bool = True) -> None:
        """What was done until now belongs to no iteration; with ``oracle_queries=False`` the queries still do."""
        self._inner_products, self._refreshes = engine.work.inner_products, engine.work.refreshes
        if oracle_queries:
            self._oracle_queries = engine.work.oracle_queries or 0

    def since_last(self, engine: Engine) -> dict[str, Any]:
        """Fields of an ``Iteration``."""
        work = engine.work
        counted = {
            "active_pairs": work.active_pairs,
            "inner_products": work.inner_products - self._inner_products,
            "refreshes": work.refreshes - self._refreshes,
            "oracle_queries": None if work.oracle_queries is None else work.oracle_queries - self._oracle_queries,
            "missed_pairs": work.missed_pairs,
        }
        self.skip(engine)
        return counted
