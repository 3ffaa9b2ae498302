"""The state of a run before each step, as callbacks and solvers receive it, and a progress bar."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Protocol, runtime_checkable

import numpy as np

from fireset._util.text import percent, print_status
from fireset.engines.base import Engine
from fireset.network import ShiftedReLUNetwork
from fireset.sparse_rows import Rows
from fireset.training.history import Iteration
from fireset.training.run import Run
from fireset.training.stopping import StopReason
from fireset.training.work_meter import WorkMeter

if TYPE_CHECKING:
    from rich.console import Console

_SECONDS_BETWEEN_LINES = 5.0
_WIDE_TERMINAL = 120  # columns, from which on the title and a bar fit


@dataclass(frozen=True)
class Progress:
    """The network at the current weights, before a step.

    Attributes
    ----------
    run : Run
    record : Iteration
    predictions : (n, c) array
        Outputs u for the rows of this worker.
    scaled_residual : (n, c) array
        ∂L/∂u in units of ``run.problem.weight_unit``, as solvers and engines use it.
    """

    run: Run
    record: Iteration
    predictions: np.ndarray
    scaled_residual: np.ndarray

    @cached_property
    def residual(self) -> np.ndarray:
        """∂L/∂u, (n, c)."""
        unit = self.run.problem.weight_unit
        return self.scaled_residual if unit == 1.0 else unit * self.scaled_residual

    @cached_property
    def weight(self) -> np.ndarray:
        """Sample weights, (n,); 0 for validation rows."""
        problem = self.run.problem
        return problem.weight if problem.weight_unit == 1.0 else problem.weight_unit * problem.weight

    @property
    def network(self) -> ShiftedReLUNetwork:
        """The network of this worker's neurons."""
        return self.run.network

    @property
    def engine(self) -> Engine:
        return self.run.engine

    @property
    def X(self) -> Rows:  # noqa: N802 - a matrix
        """Rows of the engine, (n, d); validation rows are last."""
        return self.run.problem.X

    @property
    def targets(self) -> np.ndarray:
        """(n, c)."""
        return self.run.problem.targets

    @property
    def max_iter(self) -> int:
        return self.run.max_iter

    @property
    def momentum(self) -> float:
        return self.run.solver.momentum

    @property
    def solver(self) -> str:
        """Name of the solver."""
        return self.run.solver.name

    @property
    def is_descent(self) -> bool:
        """Whether every step follows the gradient."""
        return self.run.solver.is_descent


# Return True or a ``StopReason`` to stop training.
Callback = Callable[[Progress], bool | StopReason | None]


@runtime_checkable
class EndCallback(Protocol):
    """A callback whose ``end`` is called once after the last iteration, before the best weights are restored."""

    def end(self, progress: Progress) -> None: ...


class ProgressBar:
    """A callback that shows iterations, time left, loss and active fraction on standard error.

    Use it in a ``with`` block. A narrow terminal cuts the line off at its end. Without a terminal, a line is printed
    every five seconds.
    """

    def __init__(self, title: str = "training", *, console: "Console | None" = None):
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, SpinnerColumn, TextColumn, TimeRemainingColumn
        from rich.progress import Progress as Bar
        from rich.table import Column

        self._console = console or Console(stderr=True)
        wide = self._console.width >= _WIDE_TERMINAL
        whole = {"no_wrap": True, "overflow": "ignore"}
        self._bar = Bar(
            *([SpinnerColumn(), TextColumn("{task.description}"), BarColumn()] if wide else []),
            MofNCompleteColumn(table_column=Column(**whole)),
            TimeRemainingColumn(compact=not wide, table_column=Column(**whole)),
            TextColumn("{task.fields[state]}", table_column=Column(no_wrap=True, overflow="ellipsis", ratio=1)),
            console=self._console,
            transient=True,
            expand=True,
        )
        self._title = title
        self._task = self._bar.add_task(title, total=None, state="preparing (the first time, kernels are compiled)")
        self._state = ""
        self._next_line = 0.0  # the first line is printed at once: it shows that training has begun

    def __enter__(self) -> "ProgressBar":
        if self._console.is_terminal:
            self._bar.start()
        return self

    def __exit__(self, *_) -> None:
        if self._console.is_terminal:
            self._bar.stop()

    def __call__(self, progress: Progress) -> None:
        record, solver = progress.record, progress.run.solver
        if not solver.runs_to_max_iter:
            progress.run.meter.listener = self._show_work
        state = f"loss {record.loss:.4g}  active {percent(record.active_fraction, 2)}"
        if record.validation_loss is not None:
            state += f"  validation {record.validation_loss:.4g}"
        total = progress.max_iter if solver.runs_to_max_iter else None
        self._state = state if total else f"{solver.iteration_label} {record.iteration}  {state}"
        if self._console.is_terminal:
            self._bar.update(self._task, total=total, completed=record.iteration, state=state)
        elif time.monotonic() >= self._next_line:
            self._next_line = time.monotonic() + _SECONDS_BETWEEN_LINES
            count = f"{solver.iteration_label} {record.iteration}" if total is None else f"{record.iteration}/{total}"
            line = f"{self._title}: {count}  {state}"
            if record.iteration and total is not None:
                left = (total - record.iteration) * record.seconds / record.iteration
                line += f"  {left:.0f} s left at most"
            print_status(line)

    def _show_work(self, meter: WorkMeter) -> None:
        """Show the part of the iteration that is done, and the time for the rest of it."""
        share = f"{meter.name} {percent(meter.done / meter.expected, 0)}" if meter.expected else meter.name
        state = f"{self._state}  {share}, {meter.seconds_left:.0f} s left in it"
        if self._console.is_terminal:
            self._bar.update(self._task, state=state)
        elif time.monotonic() >= self._next_line:
            self._next_line = time.monotonic() + _SECONDS_BETWEEN_LINES
            print_status(f"{self._title}: {state}")
