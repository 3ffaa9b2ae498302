"""Reading an index that ``HalfSpaceIndex.save`` or ``BallIndex.save`` wrote.

A file holds ``points``, (n, d), and ``ids``, (n,) int32 and ascending, and says of what ``kind`` the index is and which
id comes next. The points of a ``BallIndex`` are the lifted ones, and its description says ``balls``. Where the caller
gave ids it holds these as well: ``own_ids``, (n,) int64, all different. It holds no structure: that is built again, so
that whatever a file says, kernels only ever walk trees, hulls and layers that were made here.
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
    """The index that ``index.save(path)`` wrote: the same answers, ids and ids to come. ``options`` are for ``build``.

    Returns a ``HalfSpaceIndex`` or, of a file that a ``BallIndex`` wrote, a ``BallIndex``.

    Costs what reading the points and building an index of its kind over them costs. A damaged file is refused with an
    ``InputError``.
    """
    arrays, description = read_model(path, _INDEX)
    try:
        about = description.get("index")
        own_ids, next_own_id = _checked_own_ids(arrays.pop("own_ids", None), about, arrays.get("points"))
        kind, points, ids, next_id = _checked_parts(arrays, about)
    except ValueError as error:
        raise InputError(f"{path} is damaged, or holds no index: {error}; {_INDEX[1]}") from None
    if 0 < available_bytes() < index_class(kind).bytes_per_id * next_id:
        raise InputError(f"{path} has given out {next_id:,} ids, for which there is not enough memory")
    if kind == "scan":
        options = {"copy": False, **options}
    index = build(points, kind, **options)
    if isinstance(index, DynamicIndex):
        index.restore_numbers(ids, next_id)
    if own_ids is not None:
        index.restore_own_ids(own_ids, ids, next_own_id)
    if not description["index"].get("balls", False):
        return index
    try:
        return BallIndex.over_lifted(index)
    except ValueError as error:
        raise InputError(f"{path} is damaged, or holds no index: {error}; {_INDEX[1]}") from None


def _checked_own_ids(own_ids: np.ndarray | None, about: Any, points: Any) -> tuple[np.ndarray | None, int]:
    """Own ids and the next one, None and 0 if there are none, or a ValueError that says what is wrong with them."""
    if own_ids is None:
        return None, 0
    next_id: Any = about.get("next_own_id") if isinstance(about, dict) else None
    if own_ids.dtype != np.int64 or not isinstance(points, np.ndarray) or own_ids.shape != points.shape[:1]:
        raise ValueError(f"own ids are {own_ids.dtype} of shape {own_ids.shape}")
    if len(np.unique(own_ids)) < len(own_ids):
        raise ValueError("own ids are not different")
    if not is_whole_number(next_id) or not max(-1, own_ids.max(initial=-1)) < next_id <= 2**63:
        raise ValueError(f"the next own id is {next_id!r}")
    return own_ids, next_id


def _checked_parts(arrays: dict[str, np.ndarray], about: Any) -> tuple[str, np.ndarray, np.ndarray, int]:
    """Kind, points, ids and the next id, or a ValueError that says what is wrong with them."""
    if not isinstance(about, dict) or set(arrays) != {"points", "ids"}:
        raise ValueError("it does not hold points, ids and their description")
    kind, points, ids = about.get("kind"), arrays["points"], arrays["ids"]
    next_id: Any = about.get("next_id")
    if not isinstance(kind, str) or kind not in KINDS:
        raise ValueError(f"kind is {kind!r}")
    if points.ndim != 2 or points.shape[1] == 0 or not index_class(kind).suits(points.shape[1]):
        raise ValueError(f"points of a {kind} have shape {points.shape}")
    if points.dtype not in (np.float32, np.float64) and not (points.dtype == np.float16 and kind == "scan"):
        raise ValueError(f"points of a {kind} are {points.dtype}")
    if not np.isfinite(points).all():
        raise ValueError("points are not finite")
    if not is_whole_number(next_id) or not len(points) <= next_id <= MAX_IDS:
        raise ValueError(f"the next id is {next_id!r}")
    if ids.dtype != np.int32 or ids.shape != (len(points),):
        raise ValueError(f"ids are {ids.dtype} of shape {ids.shape}, for {len(points)} points")
    if len(ids) and not (ids[0] >= 0 and ids[-1] < next_id and (ids[1:] > ids[:-1]).all()):
        raise ValueError("ids do not ascend from 0 on to the next id")
    if not index_class(kind).dynamic and next_id != len(points):
        raise ValueError(f"a {kind} of {len(points)} points cannot have given out {next_id} ids")
    return kind, points, ids, next_id
