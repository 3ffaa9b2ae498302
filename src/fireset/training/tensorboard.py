"""A TensorBoard callback for ``fireset.train`` and the estimators."""

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
_LOG_NUMBERS = count()  # make the file names of one process unique


class TensorBoardLog:
    """Write the record of each iteration as scalars to an event file. Use a ``with`` block, or call ``close``.

    ``with TensorBoardLog("runs/first") as log: train(network, X, y, callbacks=[log])``, then
    ``tensorboard --logdir runs``. It needs the extra ``tensorboard``, and neither torch nor TensorFlow.

    A log that cannot be written, for example because the disk is full, does not end training. It warns once and sets
    ``failure``.

    Parameters
    ----------
    folder : path
        Folder of the event file; created if necessary. Use one folder for each run.

    Attributes
    ----------
    failure : str
        Why logging has stopped; empty if it has not.
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
        # Created by protobuf at import time and unknown to type checkers.
        self._event, self._summary = getattr(event_pb2, "Event"), getattr(summary_pb2, "Summary")  # noqa: B009
        self._folder, self.failure = folder, ""
        # File names as TensorBoard's. Its own writer uses a thread, which ends with a traceback on a full disk.
        name = f"events.out.tfevents.{int(time.time()):010d}.{socket.gethostname()}.{os.getpid()}.{next(_LOG_NUMBERS)}"
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
        """Close the event file. Nothing can be logged afterwards."""
        self._attempt(self._records.close)

    def _write(self, event: Any) -> None:
        def write() -> None:
            self._records.write(event.SerializeToString())
            self._records.flush()  # shows curves during training, and detects a full disk at once

        if not self.failure:
            self._attempt(write)

    def _attempt(self, write: Callable[[], None]) -> None:
        """Call ``write``; on the first OSError set ``failure`` and warn."""
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
