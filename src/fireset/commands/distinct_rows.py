"""Merging equal rows of a table, for commands that need distinct ones: with two equal rows λ_min(H^cts) is 0."""

from typing import NamedTuple

import numpy as np


class DistinctRows(NamedTuple):
    """The first of each group of equal rows, and what stands for the targets of the group."""

    rows: np.ndarray  # positions of the first rows, ascending
    y: np.ndarray  # mean of the targets, or the most frequent class
    merged: int  # rows that were dropped


def merge_equal_rows(X: np.ndarray, y: np.ndarray, *, classes: bool, dtype: str) -> DistinctRows:
    """Merge rows of X (n, p) that are equal in precision ``dtype``; of equally frequent classes the lowest is kept."""
    _, first, group = np.unique(X.astype(dtype), axis=0, return_index=True, return_inverse=True)
    group = group.reshape(-1)
    if len(first) == len(X):
        return DistinctRows(np.arange(len(X)), y, 0)
    order = np.argsort(first)
    if classes:
        votes = np.zeros((len(first), int(y.max()) + 1), np.int64)
        np.add.at(votes, (group, y), 1)
        merged = votes.argmax(axis=1).astype(y.dtype)
    else:
        merged = np.bincount(group, y) / np.bincount(group)
    return DistinctRows(first[order], merged[order], len(X) - len(first))


def merged_in_words(merged: int, *, classes: bool) -> str:
    """A sentence about rows that were merged."""
    kept = "the most frequent class" if classes else "the mean target"
    count = "1 row equals" if merged == 1 else f"{merged:,} rows equal"
    return f"{count} an earlier row; equal rows were merged, with {kept}, since λ is 0 with two equal rows."
