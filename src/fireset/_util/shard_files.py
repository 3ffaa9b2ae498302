"""Model files whose neurons lie in several files beside them: how these are called, read, and removed.

The model file names its shards, each with a checksum. Saving gives them names of their own each time, so that the model
that was there stays whole until the last moment; then the shards that it named are removed, and no others.
"""

import os
import re
import warnings
from pathlib import Path
from typing import Any

import numpy as np

from fireset._util.errors import InputError
from fireset._util.files import file_digest, read_description, read_model

_SUFFIX = ".safetensors"


def shard_path(path: str | os.PathLike, part: str) -> Path:
    """Where a shard of a file is: beside it, with the part before the suffix."""
    path = Path(path)
    return path.with_name(f"{path.name.removesuffix(_SUFFIX)}.{part}{_SUFFIX}")


def shard_files(path: str | os.PathLike, description: dict[str, Any]) -> list[Path]:
    """The files that hold the neurons of a model whose neurons are in several; they lie beside it.

    Where ``path`` is a link, they lie beside the link (a folder of links to all of a model's files) or beside the file
    that it leads to (which is where saving puts them).
    """
    shards = description.get("shards", [])
    if not isinstance(shards, list):
        raise InputError(f"{path} is damaged: it has no list of shards")
    names = [shard.get("file") if isinstance(shard, dict) else None for shard in shards]
    for name in names:
        if not isinstance(name, str) or name != os.path.basename(name) or not name.isprintable() or name in ("", ".."):
            raise InputError(f"{path} is damaged: it names a shard that is no file beside it")
    here, real = Path(path).parent, Path(path).resolve().parent
    files = [here / str(name) if (here / str(name)).is_file() else real / str(name) for name in names]
    known = [file.stat() for file in files if file.exists()]
    if len({(one.st_dev, one.st_ino) for one in known}) < len(known):
        raise InputError(f"{path} is damaged: it names a shard more than once")
    return files


def joined_shards(path: str | os.PathLike, description: dict[str, Any]) -> dict[str, np.ndarray]:
    """Weights and output weights of all shards, each as long as its file really is."""
    files = shard_files(path, description)
    parts: dict[str, list[np.ndarray]] = {"weights": [], "output_weights": []}
    for file, shard in zip(files, description["shards"], strict=True):
        arrays, _ = read_model(file)
        if file_digest(file).hex() != shard.get("checksum"):
            raise InputError(f"{file} is damaged, or does not belong to {path}: its checksum is another")
        if set(arrays) != set(parts):
            raise InputError(f"{file} is damaged: it does not hold weights and output_weights")
        for name, array in arrays.items():
            parts[name].append(array)
    try:
        return {name: np.concatenate(arrays) for name, arrays in parts.items()}
    except ValueError as error:  # none at all, or of different shapes
        raise InputError(f"{path} is damaged: its shards do not fit together ({error})") from None


def own_shards(target: Path) -> list[Path]:
    """The shards that the model file ``target`` names as its own; none if it is damaged, foreign or not there.

    Whatever a file says, only names that ``save`` gives to shards of this very file count.
    """
    try:
        named = shard_files(target, read_description(target))
    except InputError:
        return []
    stem = target.name.removesuffix(_SUFFIX)
    own = re.compile(rf"{re.escape(stem)}\.\d+-of-\d+\.[0-9a-f]{{8}}{re.escape(_SUFFIX)}")
    return [file for file in named if own.fullmatch(file.name)]


def remove_shards(shards: list[Path]) -> None:
    """Remove what no model needs any more; the new one is in its place, so that a failure is no more than litter."""
    for file in shards:
        try:
            file.unlink(missing_ok=True)
        except OSError as error:
            warnings.warn(f"cannot remove {file}, a shard of the model before: {error.strerror}", stacklevel=4)
