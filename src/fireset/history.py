"""What a training run remembers of each iteration."""

from dataclasses import asdict, dataclass, fields
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

    def to_dicts(self) -> list[dict[str, Any]]:
        return [asdict(record) for record in self]
