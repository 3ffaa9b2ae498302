"""What a training run remembers of each iteration."""

import json
from dataclasses import asdict, dataclass, fields
from math import isfinite
from typing import Any

import numpy as np

from fireset.errors import InputError


@dataclass(frozen=True, slots=True)
class Iteration:
    """What one iteration saw. ``loss`` is L at its weights, before its step."""

    iteration: int
    loss: float
    validation_loss: float | None
    fired_pairs: int
    fired_fraction: float
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
