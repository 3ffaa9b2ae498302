"""A sign of life for commands that go through stages and do not train."""

import sys
import time

_SECONDS_BETWEEN_LINES = 5.0


class StageBar:
    """Says what is being done now, on standard error; for a ``with`` block. Without a terminal, a line now and then."""

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
