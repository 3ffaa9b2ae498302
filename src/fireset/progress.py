"""A progress bar for training: loss, fired fraction, time left. On standard error: output can be piped."""

import sys
import time

from fireset.training import Progress

_SECONDS_BETWEEN_LINES = 5.0


class ProgressBar:
    """A callback for ``train``, for a ``with`` block. Without a terminal it prints a line now and then."""

    def __init__(self, title: str = "training"):
        from rich.console import Console
        from rich.progress import (
            BarColumn,
            MofNCompleteColumn,
            SpinnerColumn,
            TextColumn,
            TimeRemainingColumn,
        )
        from rich.progress import Progress as Bar

        self._console = Console(stderr=True)
        self._bar = Bar(
            SpinnerColumn(),
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[state]}"),
            TimeRemainingColumn(),
            console=self._console,
            transient=True,
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
        state = f"loss {record.loss:.4g}  fired {record.fired_fraction:.2%}"
        if record.validation_loss is not None:
            state += f"  validation {record.validation_loss:.4g}"
        if self._console.is_terminal:
            self._bar.update(self._task, total=progress.max_iter, completed=record.iteration, state=state)
        elif time.monotonic() >= self._next_line:
            self._next_line = time.monotonic() + _SECONDS_BETWEEN_LINES
            line = f"{self._title}: {record.iteration}/{progress.max_iter}  {state}"
            if record.iteration:
                left = (progress.max_iter - record.iteration) * record.seconds / record.iteration
                line += f"  {left:.0f} s left at most"
            print(line, file=sys.stderr, flush=True)


class StageBar:
    """Progress through stages that are no training; for a ``with`` block. Without a terminal, a line now and then."""

    def __init__(self, title: str, *, shown: bool = True):
        from rich.console import Console

        self._console = Console(stderr=True, quiet=not shown)
        self._shown, self._title = shown, title
        self._status = self._console.status(title)
        self._next_line = 0.0

    def __enter__(self) -> "StageBar":
        if self._shown and self._console.is_terminal:
            self._status.start()
        return self

    def __exit__(self, *_) -> None:
        self._status.stop()

    def say(self, stage: str) -> None:
        """What is being done now."""
        if not self._shown:
            return
        if self._console.is_terminal:
            from rich.markup import escape

            self._status.update(escape(f"{self._title}: {stage}"))
        elif time.monotonic() >= self._next_line:
            self._next_line = time.monotonic() + _SECONDS_BETWEEN_LINES
            print(f"{self._title}: {stage}", file=sys.stderr, flush=True)
