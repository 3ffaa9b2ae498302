"""Losses: one file each, one contract (``base.py``), and a registry of names (``registry.py``)."""

from fireset.training.losses.absolute_error import AbsoluteError
from fireset.training.losses.base import Loss, probabilities
from fireset.training.losses.huber import Huber
from fireset.training.losses.log_loss import LogLoss
from fireset.training.losses.poisson import Poisson
from fireset.training.losses.quantile import Quantile
from fireset.training.losses.registry import LOSSES, check_task, describe_loss, get_loss, restore_loss
from fireset.training.losses.squared_error import SquaredError

__all__ = [
    "LOSSES",
    "AbsoluteError",
    "Huber",
    "LogLoss",
    "Loss",
    "Poisson",
    "Quantile",
    "SquaredError",
    "check_task",
    "describe_loss",
    "get_loss",
    "probabilities",
    "restore_loss",
]
