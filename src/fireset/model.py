"""A trained model in one file: a fitted estimator with its network, and the name of the predicted column."""

import os
from dataclasses import dataclass
from typing import Any

from fireset._util.errors import InputError
from fireset.estimators import ShiftedReLUClassifier, ShiftedReLURegressor
from fireset.estimators.stored_fit import TASKS, restore, store
from fireset.network import ShiftedReLUNetwork
from fireset.tables.cells import one_line, quoted
from fireset.tables.encoder import TableEncoder
from fireset.tables.text_formats import BooleanFormat, NumberFormat, restore_format


@dataclass
class Model:
    """What ``fireset train`` makes and ``fireset predict`` uses."""

    task: str  # "classification" or "regression"
    target: str
    estimator: ShiftedReLUClassifier | ShiftedReLURegressor
    training: dict[str, Any]  # how it was made: settings and results, for people to read
    target_format: NumberFormat | BooleanFormat | None = None  # of text cells in the target column

    @property
    def encoder(self) -> TableEncoder:
        """Encoder of the table's columns."""
        return self.estimator.encoder_

    def save(self, path: str | os.PathLike) -> None:
        """Write one safetensors file, atomically."""
        description, arrays = store(self.estimator)
        description |= {"task": self.task, "target": self.target, "training": self.training}
        if self.target_format is not None:
            description["target_format"] = self.target_format.to_dict()
        self.estimator.network_.save(path, description, **arrays)

    @classmethod
    def load(cls, path: str | os.PathLike) -> "Model":
        """Read a model file; a damaged file raises InputError."""
        network, arrays, description = ShiftedReLUNetwork.from_file(path)
        if "task" not in description:
            raise InputError(
                f"{path} holds a network without a table's columns; "
                "load it with fireset.ShiftedReLUNetwork.load, or make a model with fireset train"
            )
        return cls.restore(path, network, arrays, description)

    @classmethod
    def restore(cls, path: str | os.PathLike, network: ShiftedReLUNetwork, arrays: dict, description: dict) -> "Model":
        """Make a model from the parts of the file ``path``; a damaged part raises InputError."""
        try:
            return cls._restore(network, arrays, description)
        except InputError as error:
            raise InputError(f"{path} is damaged: {error}") from error
        except KeyError as error:
            raise InputError(f"{path} is damaged: it has no {quoted(error.args[0])}") from error
        except (TypeError, ValueError, AttributeError, OverflowError) as error:
            raise InputError(f"{path} is damaged: {one_line(error)[:200]}") from error

    @classmethod
    def _restore(cls, network: ShiftedReLUNetwork, arrays: dict, description: dict) -> "Model":
        task, target, training = description["task"], description["target"], description["training"]
        if task not in TASKS or not isinstance(target, str) or not isinstance(training, dict):
            raise InputError("task, target or training is not what it should be")
        spelling = None
        if "target_format" in description:
            spelling = restore_format(description["target_format"])
            if spelling is None:
                raise InputError(f"target_format is no spelling, got {quoted(description['target_format'])}")
        return cls(task, target, restore(task, network, description, arrays), training, spelling)


def save(estimator: ShiftedReLUClassifier | ShiftedReLURegressor, path: str | os.PathLike, target: str = "y") -> None:
    """Write a fitted estimator to a model file, which ``load`` and the command line read.

    The file holds the parameters and all that ``fit`` has set: columns and their categories, the map of rows, the
    network, the chosen settings and the history. The training data are not in it.

    Parameters
    ----------
    estimator : ShiftedReLUClassifier or ShiftedReLURegressor
        Losses, engines and solvers that it was given as objects must be in a registry, or ``save`` raises InputError.
    path : str or path
    target : str
        The name of the predicted column.
    """
    from sklearn.utils.validation import check_is_fitted

    if not isinstance(estimator, ShiftedReLUClassifier | ShiftedReLURegressor):
        raise InputError(
            f"estimator must be a fitted ShiftedReLUClassifier or -Regressor, got {type(estimator).__name__}"
        )
    check_is_fitted(estimator)
    task = "classification" if isinstance(estimator, ShiftedReLUClassifier) else "regression"
    training = {"iterations": estimator.n_iter_, "stop_reason": estimator.result_.stop_reason.value}
    Model(task, target, estimator, training).save(path)


def load(path: str | os.PathLike) -> ShiftedReLUClassifier | ShiftedReLURegressor:
    """Return the estimator in a model file, which ``save`` or ``fireset train`` wrote.

    It has the parameters and the fitted attributes of the one that was saved: ``predict`` takes the table that it was
    trained on, or one like it; ``partial_fit``, and ``fit`` with ``warm_start``, continue training.
    """
    return Model.load(path).estimator
