"""Rows of a table as numbers, together with the encoder that produced them."""

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from fireset.tables.encoder import TableEncoder


@dataclass(frozen=True)
class EncodedTable:
    """Encoded rows of a table, which estimators accept in place of a DataFrame.

    Attributes
    ----------
    encoder : TableEncoder
        Learned on the training rows.
    matrix : ndarray of shape (rows, len(encoder.feature_names))
    columns : list of str
        All feature columns of the training table, unused ones included.
    """

    encoder: TableEncoder
    matrix: np.ndarray
    columns: list[str]

    def __len__(self) -> int:
        return len(self.matrix)

    def __getitem__(self, rows: Any) -> "EncodedTable":
        """Select rows by numbers, a mask or a slice."""
        return replace(self, matrix=self.matrix[rows])
