"""What a reader library in Rust says when it panics on a damaged file."""

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Lock

_REDIRECTING = Lock()


@contextmanager
def without_panic_messages() -> Iterator[None]:
    """Keep from standard error what Rust says of a panic, a dozen lines for each thread: the exception says it in one.

    Rust writes to the descriptor itself, which therefore leads to a file meanwhile. Without a panic, what was written
    is handed on.
    """
    import polars as pl

    with _REDIRECTING, tempfile.TemporaryFile() as said:
        try:
            kept = os.dup(2)
        except OSError:  # there is no standard error
            yield
            return
        os.dup2(said.fileno(), 2)
        panicked = False
        try:
            yield
        except pl.exceptions.PanicException:
            panicked = True
            raise
        finally:
            os.dup2(kept, 2)
            os.close(kept)
            if not panicked:
                said.seek(0)
                os.write(2, said.read())
