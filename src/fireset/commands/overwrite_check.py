"""Where results may go."""

import os
from collections.abc import Mapping
from itertools import permutations
from pathlib import Path

from fireset._util.errors import InputError


def check_outputs_differ_from_inputs(out: Path | None, *inputs: Path, flag: str = "--out") -> None:
    """Refuse to write over a file that is being read."""
    for file in inputs:
        if out is not None and os.path.realpath(out) == os.path.realpath(file):
            raise InputError(f"{flag} {out} would overwrite the input {file}; choose another name")


def check_outputs_differ(files: Mapping[str, Path | None], folders: Mapping[str, Path | None]) -> None:
    """Refuse places of which one would take that of another, however they are spelled and through whatever links.

    Parameters
    ----------
    files, folders : mapping of options to places
        Options that write a file, and those that fill a folder, which may hold such files and may be one for several.
    """
    given = {option: place for option, place in {**files, **folders}.items() if place is not None}
    real = {option: Path(os.path.realpath(place)) for option, place in given.items()}
    for file, other in permutations(given, 2):
        if file not in files:
            continue
        if real[other] == real[file]:
            said = f"{file} {given[file]} and {other} {given[other]} are one place"
        elif real[file] in real[other].parents:
            said = f"{other} {given[other]} is inside {file} {given[file]}, which is to be a file"
        else:
            continue
        raise InputError(f"{said}; give each a place of its own")
