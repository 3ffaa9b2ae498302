"""Splits into training rows and hold-out rows.

``hold_out`` draws rows at random. If rows of one entity or of neighbouring days are similar, a random split leaks: the
model is scored on near copies of training rows. ``hold_out_groups`` holds out whole groups, ``hold_out_latest`` the
latest rows, and ``suggest_splits`` lists the columns for which this is advisable.
"""

from __future__ import annotations

import re
import warnings
from dataclasses import dataclass
from math import ceil
from typing import TYPE_CHECKING, Literal

import numpy as np

from fireset._util.errors import InputError
from fireset.tables.cells import is_text, quoted
from fireset.tables.text_formats import detect_dates, to_utc

if TYPE_CHECKING:
    import polars as pl

Split = tuple[np.ndarray, np.ndarray]

_MIN_ROWS = 20  # for a suggestion
_MIN_DAYS = 10  # different ones, for a split by time
_MIN_ENTITIES = 5  # for a split by groups
_ENTITY_NAMES = re.compile(
    r"(^|[\s_.-])(id|uuid|guid)$|(?-i:[a-z]I[dD]$)"
    r"|^(customer|client|user|member|person|patient|subject|student|employee|player|household|account|device|session)"
    r"([\s_.-]*(id|no|nr|number|name|code))?$",
    re.IGNORECASE,
)


@dataclass(frozen=True)
class SplitHint:
    """A suggestion to hold out rows by a column, because a random split may leak.

    Attributes
    ----------
    column : str
    kind : "groups" or "time"
        Whether to hold out whole groups or the latest rows.
    reason : str
        The contents of the column, for a message.
    """

    column: str
    kind: Literal["groups", "time"]
    reason: str


def hold_out(
    n_rows: int, share: float, *, seed: int, option: str, codes: np.ndarray | None = None, classes: list | None = None
) -> Split:
    """Split rows at random; return the numbers of training rows and of hold-out rows, both ascending.

    The number of hold-out rows is a ``share`` of all, rounded up. With ``codes`` of classes the split is stratified,
    and every class has training rows. Classes that are too rare are trained on only: those with a single row (with a
    warning), and the rarest if there are fewer hold-out rows than classes. For messages, ``option`` is the name of the
    setting, such as "--holdout", and ``classes`` are the labels of the codes.
    """
    from sklearn.model_selection import train_test_split

    if share == 0:
        return _all_rows(n_rows)
    n_test = ceil(share * n_rows)  # as scikit-learn rounds
    if n_test >= n_rows:
        raise InputError(f"{option} {share:g} leaves none of the {n_rows} rows to train on; give a smaller share")
    if codes is None:
        split = train_test_split(np.arange(n_rows), test_size=n_test, random_state=seed)
        return np.sort(split[0]), np.sort(split[1])
    splittable = _splittable_classes(codes, n_test, option, classes)
    rows = np.flatnonzero(splittable[codes])
    if n_test >= len(rows) or len(rows) - n_test < splittable.sum():
        raise InputError(
            f"{option} {share:g} leaves too few of the {n_rows} rows to train on for {len(splittable)} classes; "
            "give a smaller share"
        )
    kept, held = train_test_split(rows, test_size=n_test, random_state=seed, stratify=codes[rows])
    if len(rows) < n_rows:
        kept = np.concatenate([kept, np.flatnonzero(~splittable[codes])])
    _check_classes(kept, codes, f"{option} {share:g}", classes)
    return np.sort(kept), np.sort(held)


def hold_out_groups(
    groups: np.ndarray,
    share: float,
    *,
    seed: int,
    option: str,
    codes: np.ndarray | None = None,
) -> Split:
    """Split rows by the values of ``groups``, shape (rows,), so that rows of a group stay together.

    Groups are visited in random order. Each is held out if this brings the number of hold-out rows closer to ``share``,
    unless, with ``codes``, a class would lose its last training rows. At least one group is held out.
    """
    if share == 0:
        return _all_rows(len(groups))
    wanted = ceil(share * len(groups))
    numbers = np.unique(groups, return_inverse=True)[1].ravel()
    sizes = np.bincount(numbers)
    if len(sizes) < 2:
        raise InputError(f"{option} names a column with a single value; give one with several groups")
    by_class = np.ones((len(sizes), 1), np.int64) * sizes[:, None]
    if codes is not None:
        by_class = np.zeros((len(sizes), int(codes.max()) + 1), np.int64)
        np.add.at(by_class, (numbers, codes), 1)
    left = by_class.sum(axis=0)  # training rows of each class
    order = np.random.default_rng(seed).permutation(len(sizes))
    chosen, count = [], 0
    for group in order:
        if sizes[group] < 2 * (wanted - count) and (by_class[group] < left).all():
            chosen.append(group)
            left, count = left - by_class[group], count + sizes[group]
    if not chosen:  # all groups are too large: the smallest
        chosen = [group for group in order[np.argsort(sizes[order], kind="stable")] if (by_class[group] < left).all()]
        if not chosen:
            raise InputError(
                f"{option} has no group to hold out: each contains all rows of a class; give another column"
            )
        chosen = chosen[:1]
    held = np.isin(numbers, chosen)
    return np.flatnonzero(~held), np.flatnonzero(held)


def hold_out_latest(
    times: np.ndarray, share: float, *, option: str, codes: np.ndarray | None = None, classes: list | None = None
) -> Split:
    """Split rows by time: hold out the latest, approximately a ``share`` of all rows.

    ``times`` is float64 of shape (rows,), NaN for unknown times, whose rows are trained on. Rows of the same time stay
    together.
    """
    if share == 0:
        return _all_rows(len(times))
    wanted = ceil(share * len(times))
    distinct, counts = np.unique(times[~np.isnan(times)], return_counts=True)
    later = np.cumsum(counts[::-1])[::-1]  # number of rows at this time or after
    allowed = later < len(times)
    if not allowed.any():
        raise InputError(f"{option} names a column with a single time; give one with several")
    first = distinct[allowed][np.abs(later[allowed] - wanted).argmin()]
    held = times >= first
    kept = np.flatnonzero(~held)
    if codes is not None:
        _check_classes(kept, codes, f"{option} with share {share:g}", classes)
    return kept, np.flatnonzero(held)


def hold_out_by(
    series: pl.Series,
    share: float,
    *,
    seed: int,
    option: str,
    codes: np.ndarray | None = None,
    classes: list | None = None,
) -> Split:
    """Split rows by a column: by time if it holds dates, else by groups of equal texts or whole numbers."""
    import polars as pl

    times = _times(series)
    if times is not None:
        days = times.to_physical().cast(pl.Float64).to_numpy()
        return hold_out_latest(days, share, option=option, codes=codes, classes=classes)
    if series.dtype.is_float():
        numbers = series.drop_nulls().drop_nans()
        if not (numbers == numbers.round(0)).all():
            raise InputError(
                f"{option}: column {quoted(series.name)} holds numbers that are not whole, which form no groups; "
                "give a column of texts, whole numbers or dates"
            )
        series = series.fill_nan(None)
    if not (is_text(series) or series.dtype.is_numeric() or series.dtype == pl.Boolean):
        raise InputError(
            f"{option}: column {quoted(series.name)} has the type {series.dtype}; "
            "give a column of texts, whole numbers or dates"
        )
    if is_text(series):
        series = series.cast(pl.String).str.strip_chars()
    # Missing cells are one group, because their rows may be of one entity.
    groups = series.rank("dense").fill_null(0).to_numpy()
    return hold_out_groups(groups, share, seed=seed, option=option, codes=codes)


def suggest_splits(table: pl.DataFrame) -> list[SplitHint]:
    """Suggest columns for a split by groups or by time, groups first.

    A column identifies groups if its name is that of an entity (customer_id, patient, userId), it holds texts or whole
    numbers, and it has at least five values with two rows each on average. A column of dates needs ten different days.
    """
    if table.height < _MIN_ROWS:
        return []
    groups, times = [], []
    for series in table:
        found = series.drop_nulls()
        if (moments := _times(series)) is not None:
            days = moments.dt.date().n_unique()
            if days >= _MIN_DAYS:
                times.append(SplitHint(series.name, "time", f"holds dates, {days:,} different days"))
        elif (is_text(series) or series.dtype.is_integer()) and _ENTITY_NAMES.search(series.name.strip()):
            entities = found.n_unique()
            if _MIN_ENTITIES <= entities <= found.len() / 2:
                reason = f"names {entities:,} entities that {found.len():,} rows share"
                groups.append(SplitHint(series.name, "groups", reason))
    return groups + times


def _times(series: pl.Series) -> pl.Series | None:
    """Return the times of a column of dates; None for other columns."""
    import polars as pl

    if series.dtype in (pl.Date, pl.Datetime):
        return to_utc(series)
    if series.dtype == pl.String and (found := detect_dates(series)) is not None:
        return found[0]
    return None


def _all_rows(n_rows: int) -> Split:
    return np.arange(n_rows), np.empty(0, np.int64)


def _splittable_classes(codes: np.ndarray, n_test: int, option: str, classes: list | None) -> np.ndarray:
    """Mark the classes to split, a mask over the codes; warn of classes with a single row."""
    counts = np.bincount(codes)
    splittable = counts >= 2
    if not splittable.any():
        raise InputError(f"every class has a single row, so none can be held out; give {option} 0, or more rows")
    if single := [_label(int(code), classes) for code in np.flatnonzero(counts == 1)]:
        named = ", ".join(single[:3]) + (f" and {len(single) - 3} more" if len(single) > 3 else "")
        has = f"the class {named} has" if len(single) == 1 else f"the classes {named} have"
        warnings.warn(f"{has} a single row, which is trained on and not held out", UserWarning, stacklevel=4)
    frequent = np.argsort(-counts, kind="stable")[n_test:]
    splittable[frequent] = False
    return splittable


def _check_classes(kept: np.ndarray, codes: np.ndarray, setting: str, classes: list | None) -> None:
    """Raise InputError if a class has no training row."""
    absent = np.flatnonzero(np.bincount(codes[kept], minlength=int(codes.max()) + 1) == 0)
    if len(absent):
        label = _label(int(absent[0]), classes)
        raise InputError(f"{setting} leaves no row of the class {label} to train on; give a smaller share")


def _label(code: int, classes: list | None) -> str:
    return str(code) if classes is None else quoted(classes[code])
