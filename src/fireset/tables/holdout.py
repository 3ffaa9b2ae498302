"""Rows held out from training, to score or to stop by: the one place that splits."""

from math import ceil

import numpy as np

from fireset._util.errors import InputError
from fireset.tables.encoder import quoted


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
    held = ceil(share * n_rows)  # as scikit-learn rounds
    asked = f"{option} {share:g}"
    if held >= n_rows:
        raise InputError(f"{asked} leaves none of the {n_rows} rows to train on; give a smaller share")
    if codes is not None:
        _check_classes(n_rows, held, asked, option, codes, classes)
    split = train_test_split(np.arange(n_rows), test_size=held, random_state=seed, stratify=codes)
    kept_rows, held_rows = np.asarray(split[0]), np.asarray(split[1])
    if codes is not None:
        lost = np.flatnonzero(np.bincount(codes[kept_rows], minlength=int(codes.max()) + 1) == 0)
        if len(lost):
            raise InputError(
                f"{asked} leaves no row of the class {_label(int(lost[0]), classes)} to train on; give a smaller share"
            )
    return kept_rows, held_rows


def _check_classes(n_rows: int, held: int, asked: str, option: str, codes: np.ndarray, classes: list | None) -> None:
    counts = np.bincount(codes)
    rarest = int(counts.argmin())
    if counts[rarest] < 2:
        raise InputError(
            f"the class {_label(rarest, classes)} has a single row, which cannot be both trained on and "
            f"held out; give {option} 0, or more rows of that class"
        )
    if min(held, n_rows - held) < len(counts):
        raise InputError(
            f"{asked} splits {n_rows} rows into {n_rows - held} to train on and {held} held out, "
            f"too few for {len(counts)} classes; give {option} 0 or another share"
        )


def _label(code: int, classes: list | None) -> str:
    return str(code) if classes is None else quoted(classes[code])
