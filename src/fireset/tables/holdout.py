"""Splitting rows into those to train on and those held out, to score or to stop early."""

from math import ceil

import numpy as np

from fireset._util.errors import InputError
from fireset.tables.cells import quoted


def hold_out(
    n_rows: int, share: float, *, seed: int, option: str, codes: np.ndarray | None = None, classes: list | None = None
) -> tuple[np.ndarray, np.ndarray]:
    """Row numbers to train on and rows held out, a ``share`` of them, rounded up.

    With ``codes`` of classes each class is split alike, and has rows on the training side. ``option`` is what the user
    set to ask for it, such as "--holdout", for messages; ``classes`` are the labels of the codes.
    """
    from sklearn.model_selection import train_test_split

    if share == 0:
        return np.arange(n_rows), np.empty(0, np.int64)
    n_test = ceil(share * n_rows)  # as scikit-learn rounds
    setting = f"{option} {share:g}"
    if n_test >= n_rows:
        raise InputError(f"{setting} leaves none of the {n_rows} rows to train on; give a smaller share")
    if codes is not None:
        _check_classes(n_rows, n_test, setting, option, codes, classes)
    split = train_test_split(np.arange(n_rows), test_size=n_test, random_state=seed, stratify=codes)
    train_rows, test_rows = np.asarray(split[0]), np.asarray(split[1])
    if codes is not None:
        absent = np.flatnonzero(np.bincount(codes[train_rows], minlength=int(codes.max()) + 1) == 0)
        if len(absent):
            label = _label(int(absent[0]), classes)
            raise InputError(f"{setting} leaves no row of the class {label} to train on; give a smaller share")
    return train_rows, test_rows


def _check_classes(
    n_rows: int, n_test: int, setting: str, option: str, codes: np.ndarray, classes: list | None
) -> None:
    counts = np.bincount(codes)
    rarest = int(counts.argmin())
    if counts[rarest] < 2:
        raise InputError(
            f"the class {_label(rarest, classes)} has a single row, which cannot be both trained on and "
            f"held out; give {option} 0, or more rows of that class"
        )
    if min(n_test, n_rows - n_test) < len(counts):
        raise InputError(
            f"{setting} splits {n_rows} rows into {n_rows - n_test} to train on and {n_test} held out, "
            f"too few for {len(counts)} classes; give {option} 0 or another share"
        )


def _label(code: int, classes: list | None) -> str:
    return str(code) if classes is None else quoted(classes[code])
