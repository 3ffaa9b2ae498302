"""A training run in TensorBoard: a callback for ``fireset.train`` and the estimators."""

import os
import socket
import time
import warnings
from collections.abc import Callable
from itertools import count
from pathlib import Path
from typing import Any

from fireset._util.errors import InputError
from fireset.training.progress import Progress

_SCALARS = (
    "loss",
    "validation_loss",
    "active_fraction",
    "active_pairs",
    "inner_products",
    "refreshes",
    "learning_rate",
)
_LOGS = count()  # of this process, for a name of its own for each


class TensorBoardLog:
    """Writes an iteration's numbers as scalars to an event file; for a ``with`` block, or call ``close`` at the end.

    ``with TensorBoardLog("runs/first") as log: train(network, X, y, callbacks=[log])``, then
    ``tensorboard --logdir runs``. Needs the extra ``tensorboard``; neither torch nor TensorFlow.

    A log is never the end of a training run: where it cannot be written any more (the disk is full), it warns once,
    says why in ``failure`` and is silent from then on.

    Parameters
    ----------
    folder : path
        Where the event file goes; created if need be. A folder for each run keeps their curves apart.

    Attributes
    ----------
    failure : str
        Why nothing more is logged; empty as long as all is well.
    """

    def __init__(self, folder: str | os.PathLike):
        try:
            from tensorboard.compat.proto import event_pb2, summary_pb2
            from tensorboard.summary.writer.record_writer import RecordWriter
        except ImportError as error:
            raise InputError(
                "logging to TensorBoard needs tensorboard, which is missing; install it with "
                "pip install 'fireset[tensorboard]'"
            ) from error
        # Made by protobuf when they are loaded, and unknown to type checkers.
        self._event, self._summary = getattr(event_pb2, "Event"), getattr(summary_pb2, "Summary")  # noqa: B009
        self._folder, self.failure = folder, ""
        # The names are TensorBoard's. Its own writer of such files works in a thread that dies with a traceback.
        name = f"events.out.tfevents.{int(time.time()):010d}.{socket.gethostname()}.{os.getpid()}.{next(_LOGS)}"
        try:
            os.makedirs(folder, exist_ok=True)
            self._records = RecordWriter(open(Path(folder) / name, "wb"))  # noqa: SIM115 - closed by ``close``
        except OSError as error:
            raise InputError(f"cannot write to the folder {folder}: {error.strerror or error}") from error
        self._write(self._event(wall_time=time.time(), file_version="brain.Event:2"))

    def __call__(self, progress: Progress) -> None:
        record = progress.record
        values = [
            self._summary.Value(tag=f"fireset/{name}", simple_value=float(value))
            for name in _SCALARS
            if (value := getattr(record, name)) is not None
        ]
        self._write(self._event(wall_time=time.time(), step=record.iteration, summary=self._summary(value=values)))

    def close(self) -> None:
        """Write what is left. Nothing can be logged afterwards."""
        self._attempt(self._records.close)

    def _write(self, event: Any) -> None:
        def write() -> None:
            self._records.write(event.SerializeToString())
            self._records.flush()  # so that a curve is seen as it grows, and a full disk when it is full

        if not self.failure:
            self._attempt(write)

    def _attempt(self, write: Callable[[], None]) -> None:
        try:
            write()
        except OSError as error:
            if not self.failure:
                self.failure = f"cannot write to the folder {self._folder}: {error.strerror or error}"
                warnings.warn(f"{self.failure}; no more is logged", stacklevel=4)

    def __enter__(self) -> "TensorBoardLog":
        return self

    def __exit__(self, *_) -> None:
        self.close()
