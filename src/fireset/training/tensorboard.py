"""A training run in TensorBoard: a callback for ``fireset.train`` and the estimators."""

import time
from os import PathLike

from fireset._util.errors import InputError
from fireset.training.progress import Progress

_SCALARS = ("loss", "validation_loss", "fired_fraction", "fired_pairs", "inner_products", "refreshes", "learning_rate")


class TensorBoardLog:
    """Writes an iteration's numbers as scalars to an event file; for a ``with`` block, or call ``close`` at the end.

    ``with TensorBoardLog("runs/first") as log: train(network, X, y, callbacks=[log])``, then
    ``tensorboard --logdir runs``. Needs the extra ``tensorboard``; neither torch nor TensorFlow.

    Parameters
    ----------
    folder : path
        Where the event file goes; created if need be. A folder for each run keeps their curves apart.
    """

    def __init__(self, folder: str | PathLike):
        try:
            from tensorboard.compat.proto import event_pb2, summary_pb2
            from tensorboard.summary.writer.event_file_writer import EventFileWriter
        except ImportError as error:
            raise InputError(
                "logging to TensorBoard needs tensorboard, which is missing; install it with "
                "pip install 'fireset[tensorboard]'"
            ) from error
        # Made by protobuf when they are loaded, and unknown to type checkers.
        self._event, self._summary = getattr(event_pb2, "Event"), getattr(summary_pb2, "Summary")  # noqa: B009
        try:
            self._writer = EventFileWriter(str(folder))
        except OSError as error:
            raise InputError(f"cannot write to the folder {folder}: {error.strerror or error}") from error

    def __call__(self, progress: Progress) -> None:
        record = progress.record
        values = [
            self._summary.Value(tag=f"fireset/{name}", simple_value=float(value))
            for name in _SCALARS
            if (value := getattr(record, name)) is not None
        ]
        event = self._event(wall_time=time.time(), step=record.iteration, summary=self._summary(value=values))
        self._writer.add_event(event)

    def close(self) -> None:
        """Write what is left. Nothing can be logged afterwards."""
        self._writer.close()

    def __enter__(self) -> "TensorBoardLog":
        return self

    def __exit__(self, *_) -> None:
        self.close()
