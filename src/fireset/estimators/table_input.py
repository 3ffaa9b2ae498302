"""Convert arrays, sparse matrices and DataFrames to matrices of features."""

from typing import TYPE_CHECKING, Any

import numpy as np
from sklearn.utils.validation import check_X_y, validate_data

from fireset._util.checks import is_whole_number, refuse_masked
from fireset._util.errors import InputError
from fireset.sparse_rows import is_sparse
from fireset.tables.column_notes import warn_of_columns
from fireset.tables.encoded import EncodedTable
from fireset.tables.encoded_blocks import EncodedBlocks
from fireset.tables.encoder import TableEncoder
from fireset.tables.frames import as_table, frame_of_objects, is_frame
from fireset.tables.sphere import SphereMap

if TYPE_CHECKING:
    import polars as pl


class TableInput:
    """Input conversion of both estimators."""

    missing: str
    categorical: Any
    dtype: str
    n_features_in_: int
    feature_names_in_: np.ndarray
    encoder_: TableEncoder
    sphere_: SphereMap
    _by_name: bool  # whether the rows of fit came in a table whose columns have names

    def _encoded(self, X, y, *, reset: bool, **checks) -> tuple[Any, np.ndarray]:
        """Return features and targets to train on, without missing values; ``reset`` learns the encoder."""
        refuse_masked("X", X)
        refuse_masked("y", y)
        if isinstance(X, EncodedTable):
            if reset:
                self._set_columns(X.encoder, X.columns)
            return self._with_targets(X.matrix, y, checks)
        if not is_frame(X):
            if reset and self.categorical is not None and len(self.categorical):
                return self._learn_array(X, y, checks)
            if not reset and (self._by_name or not self._of_numbers):
                return self._with_targets(self._rows_of_array(X), y, checks)
            impute = self.missing == "impute"
            try:
                numbers, y = validate_data(self, X, y, reset=reset, **_accepted(X, impute), **checks)
            except ValueError as error:
                if not _holds_text(error):
                    raise
                if not reset:
                    return self._with_targets(self._rows_of_array(X), y, checks)
                return self._learn_array(X, y, checks)
            if reset:
                self._by_name = False
                self.encoder_ = TableEncoder.learn_numbers(numbers, impute)
            return self.encoder_.encode_numbers(numbers), np.asarray(y)
        table = as_table(X)
        if reset:
            self._learn_columns(table, y)
        if not self._by_name:
            return self._encoded(table.to_numpy(), y, reset=reset, **checks)
        return self._with_targets(self.encoder_.encode(table), y, checks)

    def _with_targets(self, rows: np.ndarray, y, checks: dict[str, Any]) -> tuple[np.ndarray, np.ndarray]:
        """Validate features and targets with scikit-learn."""
        rows, y = check_X_y(rows, y, dtype="float64", estimator=self, **checks)
        return np.asarray(rows), np.asarray(y)

    def _learn_array(self, X, y, checks: dict[str, Any]) -> tuple[np.ndarray, np.ndarray]:
        """Learn the encoder of an array with text or categorical columns; return features and targets."""
        if is_sparse(X):
            raise InputError(f"`categorical` needs a dense X, got a sparse matrix and {self.categorical!r}.")
        finite = "allow-nan" if self.missing == "impute" else True
        cells, y = validate_data(self, X, y, reset=True, dtype=None, ensure_all_finite=finite, **checks)
        positions = _positions(() if self.categorical is None else self.categorical, self.n_features_in_)
        self._by_name = False
        table, names = _table_of_array(np.asarray(cells), self._array_names), self._array_names
        categorical = [names[position] for position in positions]
        self.encoder_ = TableEncoder.learn(table, categorical=categorical, impute=self.missing == "impute")
        warn_of_columns(self.encoder_, table, y)
        return self._with_targets(self.encoder_.encode(table), y, checks)

    @property
    def _array_names(self) -> list[str]:
        """Names of the columns in the encoder."""
        return list(self.feature_names_in_) if self._by_name else [f"x{j}" for j in range(self.n_features_in_)]

    @property
    def _of_numbers(self) -> bool:
        """Whether every column is numeric and used."""
        return self.encoder_.takes_arrays and not self.encoder_.left_out

    def _learn_columns(self, table, y) -> None:
        """Learn the encoder of a DataFrame; warn of suspicious columns."""
        impute = self.missing == "impute"
        encoder = TableEncoder.learn(table, categorical=self.categorical or (), impute=impute)
        self._set_columns(encoder, table.columns)
        warn_of_columns(self.encoder_, table, y)

    def _set_columns(self, encoder: TableEncoder, columns: list[str]) -> None:
        """Set the attributes that describe the columns of a table with names."""
        self.encoder_ = encoder
        self._by_name = True
        self.n_features_in_ = len(columns)
        self.feature_names_in_ = np.array(columns, object)

    def _rows(self, X) -> Any:
        """Return the features of rows to predict: columns of DataFrames by name, of arrays by position."""
        if isinstance(X, EncodedTable):
            return X.matrix
        if self._has_nothing_to_check(X):
            return self.encoder_.encode_numbers(X)
        if is_frame(X) and self._by_name:
            return self.encoder_.encode(as_table(X))
        refuse_masked("X", X)
        return self._rows_of_array(X)

    def _has_nothing_to_check(self, X) -> bool:
        """Whether X is a finite float64 array for a model fitted on an array.

        scikit-learn's validation would take longer than the prediction of one row.
        """
        plain = type(X) is np.ndarray and X.dtype == np.float64 and X.ndim == 2 and len(X) > 0
        return (
            plain
            and not self._by_name
            and self._of_numbers
            and X.shape[1] == self.n_features_in_
            and bool(np.isfinite(X.sum()))
        )

    def _rows_of_array(self, X) -> Any:
        accepted = _accepted(X, self.encoder_.columns[0].accepts_missing)
        if self._of_numbers:
            try:
                return self.encoder_.encode_numbers(validate_data(self, X, reset=False, **accepted))
            except ValueError as error:
                if not _holds_text(error):
                    raise
        X = validate_data(self, X, reset=False, **{**accepted, "dtype": None, "accept_sparse": False})
        return self.encoder_.encode(_table_of_array(np.asarray(X), self._array_names))

    def rows_on_sphere(self, X) -> Any:
        """Return the network's input rows, (n, p + 1), of norm 1."""
        if isinstance(X, EncodedBlocks):
            return X.mapped(self.sphere_, self.dtype)
        return self.sphere_(self._rows(X))


def _holds_text(error: ValueError) -> bool:
    """Whether scikit-learn refused an array since it holds text."""
    return "could not convert string" in str(error)


def _table_of_array(X: np.ndarray, names: list[str]) -> "pl.DataFrame":
    import polars as pl

    if X.dtype.kind not in "biuf":
        return frame_of_objects(X, names)
    return pl.DataFrame({name: X[:, place] for place, name in enumerate(names)})


def _positions(categorical: Any, columns: int) -> list[int]:
    """Return the positions of categorical columns, given as positions or as a mask."""
    given: list[Any] = [categorical] if isinstance(categorical, str) else list(categorical)
    if len(given) == columns and all(isinstance(one, bool | np.bool_) for one in given):
        return [place for place, one in enumerate(given) if one]
    for one in given:
        if not is_whole_number(one) or not -columns <= one < columns:
            raise InputError(
                f"`categorical` must hold positions below {columns} where X is an array, got {one!r}; give numbers, or "
                "a DataFrame and the names of its columns."
            )
    return sorted({int(one) % columns for one in given})


def _accepted(X: Any, impute: bool) -> dict[str, Any]:
    """Options of scikit-learn's validation: NaN is allowed in dense rows if missing values are imputed."""
    finite = "allow-nan" if impute and not is_sparse(X) else True
    return {"dtype": np.float64, "ensure_all_finite": finite, "accept_sparse": "csr"}
