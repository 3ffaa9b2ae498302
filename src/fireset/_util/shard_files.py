"""Model files whose neurons are in several shard files beside them: names, reading and removal.

The description of a model file lists its shards, each with a checksum. Every save uses new names for the shards, so
that the previous model stays complete until it is replaced; then the shards that it lists are removed, and no others.
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
    """Return the path of a shard: that of the model file, with ``part`` before the suffix."""
    path = Path(path)
    return path.with_name(f"{path.name.removesuffix(_SUFFIX)}.{part}{_SUFFIX}")


def shard_files(path: str | os.PathLike, description: dict[str, Any]) -> list[Path]:
    """Return the shard files of a model file, which are in its folder.

    If ``path`` is a link, they are beside the link (a folder of links to all files of a model) or beside its target
    (where they are saved).
    """
    shards = description.get("shards", [])
    if not isinstance(shards, list):
        raise InputError(f"{path} is damaged: it has no list of shards")
    names = [shard.get("file") if isinstance(shard, dict) else None for shard in shards]
    for name in names:
        if not isinstance(name, str) or name != os.path.basename(name) or not name.isprintable() or name in ("", ".."):
            raise InputError(f"{path} is damaged: the name of a shard is not that of a file beside it")
    here, real = Path(path).parent, Path(path).resolve().parent
    files = [here / str(name) if (here / str(name)).is_file() else real / str(name) for name in names]
    known = [file.stat() for file in files if file.exists()]
    if len({(one.st_dev, one.st_ino) for one in known}) < len(known):
        raise InputError(f"{path} is damaged: it lists a shard more than once")
    return files


def joined_shards(path: str | os.PathLike, description: dict[str, Any]) -> dict[str, np.ndarray]:
    """Read and concatenate the weights and output weights of all shards."""
    files = shard_files(path, description)
    parts: dict[str, list[np.ndarray]] = {"weights": [], "output_weights": []}
    for file, shard in zip(files, description["shards"], strict=True):
        arrays, _ = read_model(file)
        if file_digest(file).hex() != shard.get("checksum"):
            raise InputError(f"{file} is damaged, or does not belong to {path}: its checksum differs")
        if set(arrays) != set(parts):
            raise InputError(f"{file} is damaged: it must have weights and output_weights")
        for name, array in arrays.items():
            parts[name].append(array)
    try:
        return {name: np.concatenate(arrays) for name, arrays in parts.items()}
    except ValueError as error:  # no shards, or different shapes
        raise InputError(f"{path} is damaged: its shards do not fit together ({error})") from None


def own_shards(target: Path) -> list[Path]:
    """Return the shards that the model file ``target`` lists; none if it is damaged, not a model or does not exist.

    Only names that ``save`` gives to shards of this file are returned, so that a damaged file cannot name others.
    """
    try:
        named = shard_files(target, read_description(target))
    except InputError:
        return []
    stem = target.name.removesuffix(_SUFFIX)
    own = re.compile(rf"{re.escape(stem)}\.\d+-of-\d+\.[0-9a-f]{{8}}{re.escape(_SUFFIX)}")
    return [file for file in named if own.fullmatch(file.name)]


def remove_shards(shards: list[Path]) -> None:
    """Remove the shards of a replaced model; warn if that fails, since the new model is complete."""
    for file in shards:
        try:
            file.unlink(missing_ok=True)
        except OSError as error:
            warnings.warn(f"cannot remove {file}, a shard of the replaced model: {error.strerror}", stacklevel=4)
