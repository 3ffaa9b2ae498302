"""A sign of life for commands that go through stages and do not train."""

import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from fireset._util.text import print_status

if TYPE_CHECKING:
    from rich.console import Console
    from rich.text import Text

_SECONDS_BETWEEN_LINES = 5.0


class StageBar:
    """Says what is being done now, on standard error; for a ``with`` block. Without a terminal, a line now and then.

    ``left``, where there is one, gives the seconds that are left. They stand before the stage, which a narrow terminal
    cuts off.
    """

    def __init__(
        self,
        title: str,
        *,
        shown: bool = True,
        left: Callable[[], float] | None = None,
        console: "Console | None" = None,
    ):
        from rich.console import Console

        self._console = console or Console(stderr=True, quiet=not shown)
        self._shown, self._title, self._left, self._stage = shown, title, left, ""
        self._status = self._console.status(self)  # drawn anew several times a second, and with it the seconds left
        self._next_line = 0.0

    def __enter__(self) -> "StageBar":
        if self._shown and self._console.is_terminal:
            self._status.start()
        return self

    def __exit__(self, *_) -> None:
        self._status.stop()

    def __rich__(self) -> "Text":
        from rich.text import Text

        return Text(self._line(), no_wrap=True, overflow="ellipsis")

    def say(self, stage: str) -> None:
        """What is being done now."""
        self._stage = stage
        if self._shown and not self._console.is_terminal and time.monotonic() >= self._next_line:
            self._next_line = time.monotonic() + _SECONDS_BETWEEN_LINES
            print_status(self._line())

    def _line(self) -> str:
        left = "" if self._left is None else f", {self._left():.0f} s left"
        return f"{self._title}{left}: {self._stage}" if self._stage else f"{self._title}{left}"
