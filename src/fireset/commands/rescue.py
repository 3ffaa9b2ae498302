"""Outputs that cannot be written where they were asked for: the model goes elsewhere, other results are still shown."""

import json
import os
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from fireset._util.errors import InputError, OutputError
from fireset._util.shard_files import own_shards
from fireset.distributed.agreement import all_gather_texts
from fireset.distributed.process_group import ProcessGroup, current_group

_SHORT_NAME_BYTES = 80


def save_or_rescue(
    save: Callable[[Path], None], out: Path, group: ProcessGroup | None = None
) -> tuple[Path, str | None]:
    """Save a model to ``out``, or else to the working folder, the temporary folder or the home folder.

    Returns the place, and why it is not ``out``. Other files are never replaced. Several workers, whose ``save`` fails
    on all of them if it fails on one, try the places of the first worker.
    """
    group = group or current_group()
    try:
        save(out)
    except InputError as error:
        problem = str(error)
    else:
        return out, None
    for own_place in _other_places(out):
        place = own_place
        if group.size > 1:
            place = Path(json.loads(all_gather_texts(group, json.dumps(str(own_place.absolute())))[0]))
        try:
            save(place)
        except InputError:
            continue
        if group.size > 1 and not group.all_true(group.rank > 0 or all(file.exists() for file in own_shards(place))):
            problem += (
                "; workers on other hosts wrote their shards to the same folder there: copy them beside the model"
            )
        return place, problem
    raise OutputError(f"the model was trained and could be written nowhere: {problem}; make room and train again")


def write_or_report(option: str, place: Path, write: Callable[[], None]) -> dict[str, Any]:
    """Write an output; returns its place, or why it could not be written, for the summary of the command."""
    try:
        write()
    except InputError as error:
        return {"not_written": [f"--{option}: {error}"]}
    return {option: str(place)}


def _other_places(out: Path) -> Iterator[Path]:
    name = out.name if len(os.fsencode(out.name)) <= _SHORT_NAME_BYTES else "fireset-model.safetensors"
    for folder in (Path(), Path(tempfile.gettempdir()), Path.home()):
        place = folder / name
        number = 2
        while place.exists() or place.is_symlink():
            place = folder / f"{Path(name).stem}-{number}{Path(name).suffix}"
            number += 1
        yield place
