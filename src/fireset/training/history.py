"""The record of each iteration of a training run, and the counters that it is made from."""

import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, fields
from math import isfinite
from typing import Any

import numpy as np

from fireset._util.errors import InputError
from fireset.engines.base import Engine


@dataclass(frozen=True, slots=True)
class Iteration:
    """Record of one iteration. ``loss`` is L at its weights, before its step."""

    iteration: int
    loss: float
    validation_loss: float | None
    active_pairs: int
    active_fraction: float
    inner_products: int  # in this iteration, including the refreshes of the previous step
    refreshes: int
    learning_rate: float
    seconds: float  # since training began, without preprocessing, compilation and the choice of η
    oracle_queries: int | None = None  # of a quantum engine in this iteration; the first includes preprocessing
    missed_pairs: int | None = None  # active pairs that the searches of a quantum engine did not find


class History(list[Iteration]):
    """The records of a run, one for each iteration."""

    def column(self, name: str) -> np.ndarray:
        """Return one field of all iterations, for example ``history.column("loss")``."""
        if name not in {f.name for f in fields(Iteration)}:
            raise InputError(f"`name` must be one of {', '.join(f.name for f in fields(Iteration))}, got {name!r}.")
        return np.array([getattr(record, name) for record in self])

    def to_csv(self) -> str:
        """Return a header and one line for each iteration. Values that were not measured are empty."""
        names = [f.name for f in fields(Iteration)]
        lines = [",".join("" if value is None else str(value) for value in asdict(record).values()) for record in self]
        return "\n".join([",".join(names), *lines]) + "\n"

    def to_json(self) -> str:
        """Return a list with one object for each iteration. Infinite numbers, which JSON lacks, become null."""
        rows = self.to_dicts()
        for row in rows:
            row.update({name: None for name, value in row.items() if isinstance(value, float) and not isfinite(value)})
        return json.dumps(rows, indent=1)

    def to_dicts(self) -> list[dict[str, Any]]:
        return [asdict(record) for record in self]


class WorkCounter:
    """Work of an engine in each iteration, from its running totals."""

    def __init__(self, engine: Engine):
        self._inner_products = self._refreshes = self._oracle_queries = 0
        self.skip(engine)

    def skip(self, engine: Engine, *, oracle_queries: bool = True) -> None:
        """Exclude the work so far from the next iteration; ``oracle_queries=False`` includes the queries."""
        self._inner_products, self._refreshes = engine.work.inner_products, engine.work.refreshes
        if oracle_queries:
            self._oracle_queries = engine.work.oracle_queries or 0

    def since_last(self, engine: Engine) -> dict[str, Any]:
        """Return the fields of ``Iteration`` that count the work since the last call."""
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


class Clock:
    """Seconds spent inside ``running`` blocks. Nested blocks count once."""

    def __init__(self, before: float = 0.0):
        self._before = before
        self._since: float | None = None

    @property
    def seconds(self) -> float:
        return self._before + (time.perf_counter() - self._since if self._since is not None else 0.0)

    @contextmanager
    def running(self) -> Iterator[None]:
        if self._since is not None:
            yield
            return
        self._since = time.perf_counter()
        try:
            yield
        finally:
            self._before, self._since = self.seconds, None
