"""Unfinished sums over the rows, stored beside the checkpoints.

A solver whose iteration is one pass over all rows may need hours for it. It adds up blocks of rows in a fixed order.
Every minute the sums so far are written, so that a killed run continues from there, with the same bits.
"""

import re
import time
import warnings
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path

import numpy as np

from fireset._util.errors import InputError
from fireset._util.files import read_model, write_model
from fireset.training.checkpoint_files import checksum
from fireset.training.problem import fingerprint

_NAME = re.compile(r"\.?pass-[0-9a-f]{16,}\.")  # other files of the folder are not deleted
_SECONDS = 60.0  # between two files of a pass


class PassState:
    """The sums of the passes of one run, in files of its checkpoint folder.

    Files of other runs are ignored, and deleted when the run ends. Each of several workers has a file of its own: their
    inputs differ in the range of rows.
    """

    def __init__(self, folder: Path, settings: Mapping[str, object]):
        """``settings`` identify the run with its data, as in its checkpoints."""
        self._folder, self._settings = folder, settings
        self._written = time.monotonic()

    def resume(self, inputs: Mapping[str, np.ndarray], sums: Mapping[str, np.ndarray]) -> tuple[Path, int]:
        """Begin a pass over the rows: set ``sums`` to those of a stored pass with equal inputs, if there is one.

        Returns the file of the pass, and the number of rows that the sums include. ``inputs`` are all that the sums
        depend on besides the data.
        """
        self._written = time.monotonic()
        prints = {name: fingerprint(array) for name, array in inputs.items()}
        key = checksum({}, {"run": dict(self._settings), "inputs": prints, "sums": sorted(sums)})
        path = self._folder / f"pass-{key}.safetensors"
        if not path.exists():
            return path, 0
        try:
            arrays, description = read_model(path)
            rows = description.get("rows")
            shapes = {name: array.shape for name, array in arrays.items()}
            valid = shapes == {name: array.shape for name, array in sums.items()}
            if not (valid and isinstance(rows, int) and description.get("checksum") == checksum(arrays, description)):
                raise InputError(f"{path} is damaged")
        except InputError as error:
            warnings.warn(f"{error}; the pass over the rows begins again", UserWarning, stacklevel=2)
            return path, 0
        for name, array in sums.items():
            array[:] = arrays[name]
        return path, rows

    def save(self, path: Path, rows: int, sums: Mapping[str, np.ndarray]) -> None:
        """Write the sums over the first ``rows`` rows, if the last file is a minute old. A failure is a warning."""
        if time.monotonic() < self._written + _SECONDS:
            return
        description = {"rows": rows}
        try:
            write_model(path, sums, {**description, "checksum": checksum(sums, description)})
        except InputError as error:
            warnings.warn(f"the sums of the first {rows:,} rows are not stored: {error}", UserWarning, stacklevel=2)
        self._written = time.monotonic()

    def clear(self) -> None:
        """Delete all files, as far as possible: the result of the run is not saved yet."""
        for file in self._files():
            with suppress(OSError):
                file.unlink()

    def _files(self) -> Iterator[Path]:
        for pattern in ("pass-*.safetensors", ".pass-*.part"):
            yield from (file for file in self._folder.glob(pattern) if _NAME.match(file.name))
