"""Load an index that ``HalfSpaceIndex.save`` or ``BallIndex.save`` wrote.

A file has the arrays ``points`` (n, d) and ``ids`` (n,), the numbers of the points, int32 and ascending; its
description has ``kind`` and ``next_id``. The points of a ``BallIndex`` are the lifted ones, and its description has
``balls``. If the caller chose ids, it also has ``user_ids`` (n,), int64 and different, and ``next_user_id``. Trees,
hulls and layers are not stored but built again, so that a damaged or malicious file cannot make a kernel read beyond
its arrays.
"""

import os
from typing import Any

import numpy as np

from fireset._util.checks import is_whole_number
from fireset._util.errors import InputError
from fireset._util.files import read_model
from fireset._util.system_memory import available_bytes
from fireset.hsr.balls import BallIndex
from fireset.hsr.dynamic import MAX_IDS, DynamicIndex
from fireset.hsr.registry import KINDS, build, index_class

_INDEX = "index", "give a file that index.save wrote"


def load(path: str | os.PathLike, **options) -> Any:
    """Load the index that ``index.save(path)`` wrote, with its ids; ``options`` are those of ``build``.

    Returns a ``HalfSpaceIndex``, or a ``BallIndex`` if a ``BallIndex`` was saved. The cost is that of reading the
    points and building the index. A damaged file raises an ``InputError``.
    """
    arrays, description = read_model(path, _INDEX)
    try:
        stored = description.get("index")
        user_ids, next_user_id = _checked_user_ids(arrays.pop("user_ids", None), stored, arrays.get("points"))
        kind, points, ids, next_id = _checked_parts(arrays, stored)
    except ValueError as error:
        raise InputError(f"{path} is damaged, or not an index: {error}; {_INDEX[1]}") from None
    if 0 < available_bytes() < index_class(kind).bytes_per_id * next_id:
        raise InputError(f"{path} has assigned {next_id:,} ids, for which there is not enough memory")
    if kind == "scan":
        options = {"copy": False, **options}
    index = build(points, kind, **options)
    if isinstance(index, DynamicIndex):
        index.restore_numbers(ids, next_id)
    if user_ids is not None:
        index.restore_ids(user_ids, ids, next_user_id)
    if not description["index"].get("balls", False):
        return index
    try:
        return BallIndex.over_lifted(index)
    except ValueError as error:
        raise InputError(f"{path} is damaged, or holds no index: {error}; {_INDEX[1]}") from None


def _checked_user_ids(user_ids: np.ndarray | None, stored: Any, points: Any) -> tuple[np.ndarray | None, int]:
    """Return the ids of the caller and the next one, or (None, 0) if there are none; raise a ValueError if invalid."""
    if user_ids is None:
        return None, 0
    next_id: Any = stored.get("next_user_id") if isinstance(stored, dict) else None
    if user_ids.dtype != np.int64 or not isinstance(points, np.ndarray) or user_ids.shape != points.shape[:1]:
        raise ValueError(f"user_ids are {user_ids.dtype} of shape {user_ids.shape}")
    if len(np.unique(user_ids)) < len(user_ids):
        raise ValueError("user_ids are not different")
    if not is_whole_number(next_id) or not max(-1, user_ids.max(initial=-1)) < next_id <= 2**63:
        raise ValueError(f"next_user_id is {next_id!r}")
    return user_ids, next_id


def _checked_parts(arrays: dict[str, np.ndarray], stored: Any) -> tuple[str, np.ndarray, np.ndarray, int]:
    """Return kind, points, ids and the next id; raise a ValueError if one of them is invalid."""
    if not isinstance(stored, dict) or set(arrays) != {"points", "ids"}:
        raise ValueError("points, ids or their description are missing")
    kind, points, ids = stored.get("kind"), arrays["points"], arrays["ids"]
    next_id: Any = stored.get("next_id")
    if not isinstance(kind, str) or kind not in KINDS:
        raise ValueError(f"kind is {kind!r}")
    if points.ndim != 2 or points.shape[1] == 0 or not index_class(kind).suits(points.shape[1]):
        raise ValueError(f"points of a {kind} have shape {points.shape}")
    if points.dtype not in (np.float32, np.float64) and not (points.dtype == np.float16 and kind == "scan"):
        raise ValueError(f"points of a {kind} are {points.dtype}")
    if not np.isfinite(points).all():
        raise ValueError("points are not finite")
    if not is_whole_number(next_id) or not len(points) <= next_id <= MAX_IDS:
        raise ValueError(f"next_id is {next_id!r}")
    if ids.dtype != np.int32 or ids.shape != (len(points),):
        raise ValueError(f"ids are {ids.dtype} of shape {ids.shape}, for {len(points)} points")
    if len(ids) and not (ids[0] >= 0 and ids[-1] < next_id and (ids[1:] > ids[:-1]).all()):
        raise ValueError("ids must ascend from 0 to next_id − 1")
    if not index_class(kind).dynamic and next_id != len(points):
        raise ValueError(f"a {kind} of {len(points)} points cannot have assigned {next_id} ids")
    return kind, points, ids, next_id
