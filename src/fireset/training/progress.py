"""What callbacks are told after each forward pass, and a progress bar made of it."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, runtime_checkable

import numpy as np

from fireset._util.messages import tell
from fireset._util.wording import percent
from fireset.engines.base import Engine
from fireset.network import ShiftedReLUNetwork
from fireset.sparse_rows import Rows
from fireset.training.history import Iteration

if TYPE_CHECKING:
    from rich.console import Console

_SECONDS_BETWEEN_LINES = 5.0
_WIDE = 120  # columns of a terminal on which there is room for the title and a bar


@dataclass(frozen=True)
class Progress:
    """What a callback is given. It may return True to stop."""

    record: Iteration
    network: ShiftedReLUNetwork  # this worker's neurons
    engine: Engine
    predictions: np.ndarray
    residual: np.ndarray
    max_iter: int
    X: Rows  # (n, d) as the engine has them, validation rows at the end
    targets: np.ndarray  # (n, c)
    weight: np.ndarray  # (n,); 0 for validation rows
    momentum: float
    solver: str = "gradient"


Callback = Callable[[Progress], bool | None]


@runtime_checkable
class EndCallback(Protocol):
    """A callback that is also called once after the last iteration, before other weights are restored."""

    def end(self, progress: Progress) -> None: ...


class ProgressBar:
    """A callback for ``train``, for a ``with`` block: iterations, time left, loss, fired fraction, on standard error.

    In this order, on one line: what a narrow terminal has no room for is cut off at the end. Without a terminal it
    prints a line now and then.
    """

    def __init__(self, title: str = "training", *, console: "Console | None" = None):
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, SpinnerColumn, TextColumn, TimeRemainingColumn
        from rich.progress import Progress as Bar
        from rich.table import Column

        self._console = console or Console(stderr=True)
        wide = self._console.width >= _WIDE
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
        self._next_line = 0.0  # the first line comes at once: preparing has ended, training runs

    def __enter__(self) -> "ProgressBar":
        if self._console.is_terminal:
            self._bar.start()
        return self

    def __exit__(self, *_) -> None:
        if self._console.is_terminal:
            self._bar.stop()

    def __call__(self, progress: Progress) -> None:
        record = progress.record
        state = f"loss {record.loss:.4g}  active {percent(record.active_fraction, 2)}"
        if record.validation_loss is not None:
            state += f"  validation {record.validation_loss:.4g}"
        rounds = progress.solver == "gauss-newton"  # which end when nothing is left to gain, long before max_iter
        if self._console.is_terminal:
            total = None if rounds else progress.max_iter
            self._bar.update(self._task, total=total, completed=record.iteration, state=state)
        elif time.monotonic() >= self._next_line:
            self._next_line = time.monotonic() + _SECONDS_BETWEEN_LINES
            count = f"round {record.iteration}" if rounds else f"{record.iteration}/{progress.max_iter}"
            line = f"{self._title}: {count}  {state}"
            if record.iteration and not rounds:
                left = (progress.max_iter - record.iteration) * record.seconds / record.iteration
                line += f"  {left:.0f} s left at most"
            tell(line)
