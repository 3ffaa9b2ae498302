"""What a comparison of engines has found so far: the runs, and what follows from them."""

from dataclasses import dataclass, field

import numpy as np

from fireset.commands.budget import Budget
from fireset.commands.contenders import Contender, Problem, TimedStep
from fireset.commands.schedule import Expected
from fireset.commands.verdict import Crossover, Row, Scaling, verdict


@dataclass
class Run:
    """One contender's part: its row of the table, and what every step of it saw."""

    row: Row
    contender: Contender | None = None
    expected: Expected | None = None
    steps: list[TimedStep] = field(default_factory=list)
    last_loss: float | None = None  # after all steps
    reached: int = 0  # steps that ended with a finite loss and no error

    @property
    def alive(self) -> bool:
        return self.contender is not None and self.row.reason is None

    def losses(self) -> list[float]:
        return [taken.loss for taken in self.steps] + ([] if self.last_loss is None else [self.last_loss])


@dataclass
class Comparison:
    """All that a comparison found."""

    problem: Problem
    iterations: int  # asked for
    budget: Budget
    runs: list[Run]
    scaling: list[Scaling] = field(default_factory=list)
    crossing: Crossover | None = None
    interrupted: bool = False
    done: int = 0  # iterations that all have done
    notes: list[str] = field(default_factory=list)

    @property
    def rows(self) -> list[Row]:
        return [run.row for run in self.runs]

    def sentence(self) -> str:
        return verdict(self.rows, self.problem.network.width, self.iterations, self.crossing)

    def trained(self) -> np.ndarray | None:
        """The weights of the dense engine, or of the first exact one that ran, as they are now."""
        for run in sorted(self.runs, key=lambda run: run.row.name != "dense"):
            if run.contender is not None and run.steps and run.row.kind in ("dense", "preprocessed"):
                return run.contender.weights()
        return None
