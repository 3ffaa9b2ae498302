"""A fixed table of rows with candidate lists, for use from several threads."""

from threading import Lock
from typing import Any

import numpy as np
import torch

from fireset._util.errors import InputError
from fireset.engines.batch_pairs import BatchPairs
from fireset.engines.row_lists import RowLists
from fireset.kernels.row_lists import Neurons


class AttachedTable:
    """Rows X (n, d), and the candidate lists of neurons for them.

    A pass changes the lists, so each pass holds a lock. Copies by ``pickle`` or ``copy`` have their own lock and make
    their lists again.
    """

    def __init__(self, X: torch.Tensor):
        self.X = X
        self._lock = Lock()
        self._lists: RowLists | None = None

    def __len__(self) -> int:
        return len(self.X)

    def find_active_pairs(
        self, neurons: Neurons, rows: np.ndarray, *, with_values: bool
    ) -> tuple[np.ndarray, BatchPairs]:
        """Return sums and active pairs of rows, given by number, in the precision of the weights."""
        with self._lock:
            lists = self._checked_lists(rows, neurons.weights.dtype)
            lists.measure_drifts(neurons)
            return lists.find_active_pairs(neurons, rows, with_values=with_values)

    def _checked_lists(self, rows: np.ndarray, dtype: np.dtype) -> RowLists:
        """Return the lists; raise ``InputError`` if X has changed since they were made."""
        X = self.X.detach().numpy()
        if self._lists is None or dtype != self._lists.samples.dtype:
            self._lists = RowLists(np.ascontiguousarray(X, dtype))
        used = X[rows].astype(dtype, copy=False)
        if not np.array_equal(used, self._lists.samples[rows, : used.shape[1]]):
            raise InputError("the attached X has changed; call attach(X) again")
        return self._lists

    def __getstate__(self) -> dict[str, Any]:
        return {"X": self.X}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(state["X"])
