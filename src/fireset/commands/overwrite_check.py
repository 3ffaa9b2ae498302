"""Where results may go."""

import os
from pathlib import Path

from fireset._util.errors import InputError


def spare_inputs(out: Path | None, *inputs: Path, flag: str = "--out") -> None:
    """Refuse to write over a file that is being read."""
    for file in inputs:
        if out is not None and os.path.realpath(out) == os.path.realpath(file):
            raise InputError(f"{flag} {out} would overwrite the input {file}; choose another name")
